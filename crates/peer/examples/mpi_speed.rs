//! Measures how fast one rank gets samples from the memory of another over MPI.
//!
//! ```text
//! mpirun -n 2 mpi_speed [SECONDS]
//! ```
//!
//! Rank 0 asks and rank 1 serves. Prints the cost of an idle transport, then one line for each size
//! of samples and number of asking threads.

use std::time::{Duration, Instant};

use belady_base::sync::Arc;
use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::tier::{RamTier, Tier};
use belady_peer::message::PinnedSample;
use belady_peer::mpi::{MpiConfig, MpiTransport};
use belady_peer::{
    Answer, Ask, Channel, GetReply, GetRequest, Handler, NodeId, Notice, Payload, Push,
    PushOutcome, Receive, Transport,
};

/// The samples of the serving rank.
const SAMPLES: u32 = 64;

#[derive(Debug)]
struct Holder(Arc<dyn Tier>);

impl Handler for Holder {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, limit: usize, replies: &mut Vec<GetReply>) {
        let mut bytes = 0;
        for ask in request.asks {
            let Some(lent) = PinnedSample::pin(&self.0, ask.sample) else {
                replies.push(GetReply::NotHere);
                continue;
            };
            let lent = Payload::Pinned(lent);
            bytes += lent.len();
            replies.push(GetReply::Here { bytes: lent, digest: 0, version: 0 });
            if bytes > limit {
                return;
            }
        }
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        taken.extend(pushes.iter().map(|_| PushOutcome::Stored));
    }

    fn told(&self, _: NodeId, _: &Notice) {}
}

struct Slots {
    memory: Vec<u8>,
    size: usize,
    here: u64,
}

impl Receive for Slots {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        &mut self.memory[at * self.size..][..self.size]
    }

    fn answered(&mut self, _: usize, answer: Answer) {
        self.here += u64::from(matches!(answer, Answer::Here { .. }));
    }
}

fn main() {
    let seconds = std::env::args().nth(1).map_or(2.0, |text| text.parse().expect("seconds"));
    let transport = MpiTransport::start(MpiConfig::default()).expect("ranks of mpirun");
    idle(&transport, seconds);
    for (channel, (size, batch)) in (0..).zip([(1 << 10, 1000), (128 << 10, 32), (4 << 20, 4)]) {
        let job = Arc::new(Holder(tier(size)));
        let weak = Arc::downgrade(&job);
        let serving = transport.dispatcher().register(Channel(channel), weak);
        transport.rendezvous().exchange("open", &[]).expect("both ranks");
        if transport.rendezvous().world().rank == 0 {
            for threads in [1, 2, 4] {
                measure(&transport, Channel(channel), (size, batch), threads, seconds);
            }
        }
        transport.rendezvous().exchange("measured", &[]).expect("both ranks");
        drop(serving);
    }
    transport.close();
}

fn idle(transport: &MpiTransport, seconds: f64) {
    transport.rendezvous().exchange("idle", &[]).expect("both ranks");
    let begun = processor_time();
    std::thread::sleep(Duration::from_secs_f64(seconds));
    if transport.rendezvous().world().rank == 0 {
        println!("idle: {:.2} % of a core", 100.0 * (processor_time() - begun) / seconds);
    }
}

fn tier(size: usize) -> Arc<dyn Tier> {
    let sizes = Sizes::Equal { bytes: size as u64, samples: SAMPLES };
    let tier = RamTier::new(Bytes(2 * u64::from(SAMPLES) * (size as u64 + 4096)), Arc::new(sizes));
    for sample in 0..SAMPLES {
        tier.put(sample, &vec![sample as u8; size], 0);
    }
    Arc::new(tier)
}

fn measure(
    transport: &MpiTransport,
    channel: Channel,
    (size, batch): (usize, u32),
    threads: usize,
    seconds: f64,
) {
    let begun = (Instant::now(), processor_time());
    let ask = || {
        let asks: Vec<_> =
            (0..batch).map(|at| Ask { sample: at % SAMPLES, last_use: false }).collect();
        let mut slots = Slots { memory: vec![0; size * asks.len()], size, here: 0 };
        while begun.0.elapsed().as_secs_f64() < seconds {
            let request = GetRequest { channel, epoch: 0, asks: &asks };
            let deadline = Instant::now() + Duration::from_mins(1);
            transport.get(1, &request, deadline, &mut slots).expect("rank 1 serves");
        }
        slots.here
    };
    let samples: u64 = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..threads).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    let (took, worked) = (begun.0.elapsed().as_secs_f64(), processor_time() - begun.1);
    let megabytes = samples as f64 * size as f64 / 1e6;
    println!(
        "{:>5} KiB, {threads} threads: {:>6.0} MB/s, {:>7.0} samples/s, {:.2} s of processor a GB \
         at rank 0",
        size >> 10,
        megabytes / took,
        samples as f64 / took,
        worked / megabytes * 1e3,
    );
}

/// Returns the CPU time of this process in seconds.
fn processor_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `usage` has space for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

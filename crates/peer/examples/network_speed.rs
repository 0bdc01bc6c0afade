//! Measures how fast samples arrive from a peer's RAM tier over loopback: two nodes in one process,
//! whose CPU time is that of both ends. Prints one object of JSON.
//!
//!     cargo run --release -p belady-peer --example network_speed -- --size 131072 --transport tcp
//!
//! `--samples` sets how many samples there are, `--batch` how many one request asks for, and
//! `--slots` how many slots they are read into: by default each has its own, as in the ring of a
//! loader. With `--samples 1 --slots 1` everything stays in the processor's cache, as it does with
//! programs that only measure networks.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use belady_base::memory::Memory;
use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::tier::{Put, RamTier, Tier};
use belady_peer::message::PinnedSample;
use belady_peer::tcp::{TcpConfig, TcpTransport};
use belady_peer::{
    Answer, Ask, Channel, GetReply, GetRequest, Handler, JobKey, JobWorld, NodeId, Notice, Payload,
    Push, PushOutcome, Receive, SampleId, Transport, digest,
};

/// A handler that serves a tier.
struct ServedTier {
    tier: Arc<dyn Tier>,
    digests: Vec<u64>,
}

impl ServedTier {
    fn filled(size: usize, samples: u32) -> Result<Self, Box<dyn Error>> {
        let sizes = Arc::new(Sizes::of(samples, |_| size as u64));
        let capacity = Bytes(size.next_multiple_of(4096) as u64 * u64::from(samples));
        let tier: Arc<dyn Tier> = Arc::new(RamTier::new(capacity, sizes));
        let mut digests = vec![];
        for sample in 0..samples {
            let bytes = vec![sample as u8 ^ 0x5a; size];
            if tier.put(sample, &bytes, 0) != Put::Stored {
                return Err("there is no space for the samples".into());
            }
            digests.push(digest(&bytes));
        }
        Ok(Self { tier, digests })
    }

    fn reply(&self, sample: SampleId) -> GetReply {
        let digest = self.digests.get(sample as usize);
        match PinnedSample::pin(&self.tier, sample).zip(digest) {
            Some((lent, &digest)) => {
                GetReply::Here { bytes: Payload::Pinned(lent), digest, version: 0 }
            }
            None => GetReply::NotHere,
        }
    }
}

impl Handler for ServedTier {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, limit: usize, replies: &mut Vec<GetReply>) {
        let mut bytes = 0;
        for ask in request.asks {
            if bytes > limit {
                return;
            }
            let reply = self.reply(ask.sample);
            if let GetReply::Here { bytes: payload, .. } = &reply {
                bytes += payload.len();
            }
            replies.push(reply);
        }
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        taken.extend(pushes.iter().map(|_| PushOutcome::Refused));
    }

    fn told(&self, _: NodeId, _: &Notice) {}
}

/// Reads into one slot after another.
struct Slots {
    size: usize,
    memory: Memory,
    here: u64,
}

impl Receive for Slots {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        let slots = self.memory.len() / self.size.max(1);
        &mut self.memory[at % slots.max(1) * self.size..][..self.size]
    }

    fn answered(&mut self, _: usize, answer: Answer) {
        self.here += u64::from(matches!(answer, Answer::Here { .. }));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let number = |name: &str, default: usize| -> Result<usize, Box<dyn Error>> {
        options.get(name).map_or(Ok(default), |text| Ok(text.parse()?))
    };
    let size = number("size", 128 << 10)?;
    let samples = number("samples", ((256 << 20) / size.max(1024)).max(1))? as u32;
    let batch = number("batch", ((32 << 20) / size.max(1024)).max(1))?;
    let slots = number("slots", batch)?.max(1);
    let limit = Duration::from_secs(number("seconds", 5)? as u64);
    let threads = number("threads", 1)?;
    let unix = match options.get("transport").map_or("tcp", String::as_str) {
        "tcp" => false,
        "unix" => true,
        other => return Err(format!("the transport `{other}` is neither tcp nor unix").into()),
    };

    let nodes = start(unix, threads)?;
    let served: Arc<dyn Handler> = Arc::new(ServedTier::filled(size, samples)?);
    let weak: Weak<dyn Handler> = Arc::downgrade(&served);
    let _serving = nodes[1].dispatcher().register(Channel(0), weak);
    // Connects, and touches the memory.
    let slots = || Slots { size, memory: Memory::zeroed(size * slots), here: 0 };
    read(&*nodes[0], samples, batch, slots(), Duration::ZERO)?;
    let (cpu, began) = (cpu_seconds(), Instant::now());
    let read =
        || read(&*nodes[0], samples, batch, slots(), limit).map_err(|error| error.to_string());
    let counts = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(read)).collect();
        let joined =
            readers.into_iter().map(|reader| reader.join().map_err(|_| "a thread died")?);
        joined.collect::<Result<Vec<u64>, String>>()
    })?;
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let count: u64 = counts.iter().sum();
    println!(
        "{{\"size\": {size}, \"samples\": {count}, \"bytes\": {}, \"seconds\": {seconds}, \
         \"cpu_seconds\": {cpu}}}",
        count * size as u64
    );
    for node in nodes {
        node.close();
    }
    Ok(())
}

/// Parses options of a name and a value each.
fn options() -> Result<HashMap<String, String>, Box<dyn Error>> {
    const KNOWN: [&str; 7] =
        ["size", "samples", "batch", "slots", "seconds", "threads", "transport"];
    let mut options = HashMap::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let name = argument.strip_prefix("--").filter(|name| KNOWN.contains(name));
        let name = name.ok_or_else(|| format!("{argument} is none of --{}", KNOWN.join(", --")))?;
        let value = arguments.next().ok_or_else(|| format!("{argument} has no value"))?;
        options.insert(name.to_owned(), value);
    }
    Ok(options)
}

fn start(unix: bool, connections: usize) -> Result<Vec<Arc<TcpTransport>>, Box<dyn Error>> {
    let key = JobKey::random()?;
    let listen = std::net::Ipv4Addr::LOCALHOST.into();
    let mut nodes = vec![];
    for rank in 0..2 {
        let config = TcpConfig::new(JobWorld { rank, size: 2 }, key.clone(), listen);
        nodes.push(TcpTransport::start(TcpConfig { unix, connections, ..config })?);
    }
    nodes[0].set_address(1, nodes[1].address());
    Ok(nodes)
}

/// Asks for batches until the time is over; returns how many samples arrived.
fn read(
    node: &dyn Transport,
    samples: u32,
    batch: usize,
    mut slots: Slots,
    limit: Duration,
) -> Result<u64, Box<dyn Error>> {
    let mut next = 0;
    let (began, mut asked) = (Instant::now(), 0);
    loop {
        let asks = (0..batch).map(|_| {
            next = (next + 1) % samples;
            Ask { sample: next, last_use: false }
        });
        let asks: Vec<Ask> = asks.collect();
        let request = GetRequest { channel: Channel(0), epoch: 0, asks: &asks };
        let deadline = Instant::now() + Duration::from_secs(10);
        node.get(1, &request, deadline, &mut slots)?;
        asked += batch as u64;
        if slots.here != asked {
            return Err("a sample was not there".into());
        }
        if began.elapsed() >= limit {
            return Ok(asked);
        }
    }
}

/// Returns the CPU time of all threads of this process.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

//! Samples of any size travel; only the memory of the asking node limits them.

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use belady_base::memory::Memory;
use belady_peer::tcp::{Address, TcpConfig, TcpTransport};
use belady_peer::{
    Answer, Ask, GetReply, GetRequest, Handler, JobKey, NodeId, Notice, Payload, PeerError, Push,
    PushOutcome, Receive, Registration, SampleId, Transport, digest,
};
use common::job::{CHANNEL, LONG};
use common::proxy::{Mode, Proxy};
use common::{config, nodes};

const MIB: usize = 1 << 20;

/// Returns a length of as many MiB as the sample's number.
fn bytes_of(sample: SampleId) -> Memory {
    let mut memory = Memory::zeroed(sample as usize * MIB);
    for (at, byte) in memory.iter_mut().enumerate().step_by(997) {
        *byte = (at / 997) as u8;
    }
    memory
}

/// A handler that has every sample, and stores every push.
#[derive(Default)]
struct Job(Mutex<Vec<(SampleId, u64)>>);

impl Job {
    fn open(node: &Arc<TcpTransport>) -> (Arc<Self>, Registration) {
        let job = Arc::new(Self::default());
        let weak: std::sync::Weak<dyn Handler> = Arc::<Self>::downgrade(&job);
        (job, node.dispatcher().register(CHANNEL, weak))
    }
}

impl Handler for Job {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, _: usize, replies: &mut Vec<GetReply>) {
        let bytes = bytes_of(request.asks[0].sample);
        let digest = digest(&bytes);
        replies.push(GetReply::Here { bytes: Payload::Copied(bytes), digest, version: 0 });
    }

    fn wants(&self, sample: SampleId, length: u64) -> bool {
        length == (sample as usize * MIB) as u64
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        for push in pushes {
            self.0.lock().unwrap().push((push.sample, digest(push.bytes)));
            taken.push(PushOutcome::Stored);
        }
    }

    fn told(&self, _: NodeId, _: &Notice) {}
}

struct Slot {
    bytes: Memory,
    answers: Vec<Answer>,
}

impl Receive for Slot {
    fn slot(&mut self, _: usize) -> &mut [u8] {
        &mut self.bytes
    }

    fn answered(&mut self, _: usize, answer: Answer) {
        self.answers.push(answer);
    }
}

fn get(
    node: &TcpTransport,
    peer: NodeId,
    sample: SampleId,
    patience: Duration,
) -> Result<Slot, PeerError> {
    let mut slot = Slot { bytes: Memory::zeroed(sample as usize * MIB), answers: vec![] };
    let asks = [Ask { sample, last_use: false }];
    let request = GetRequest { channel: CHANNEL, epoch: 0, asks: &asks };
    node.get(peer, &request, Instant::now() + patience, &mut slot)?;
    Ok(slot)
}

fn put(node: &TcpTransport, sample: SampleId, bytes: &[u8]) -> Vec<PushOutcome> {
    let push = Push { sample, tier: 1, epoch: 0, digest: digest(bytes), version: 0, bytes };
    node.put(1, CHANNEL, &[push], Instant::now() + LONG).unwrap()
}

#[test]
fn samples_of_80_and_150_mib_are_fetched_and_pushed() {
    for unix in [true, false] {
        let nodes = nodes(2, |config| TcpConfig { unix, ..config });
        let (job, _serving) = Job::open(&nodes[1]);
        for sample in [80, 150] {
            let bytes = bytes_of(sample);
            let right = digest(&bytes);
            let got = get(&nodes[0], 1, sample, LONG).unwrap();
            let here = Answer::Here { digest: right, version: 0 };
            assert!(got.answers == [here] && *got.bytes == *bytes);
            assert_eq!(put(&nodes[0], sample, &bytes), [PushOutcome::Stored]);
            assert_eq!(job.0.lock().unwrap().pop(), Some((sample, right)));
        }
    }
}

#[test]
fn a_push_that_is_refused_takes_no_memory_and_ends_no_connection() {
    let nodes = nodes(2, |config| config);
    let (job, _serving) = Job::open(&nodes[1]);
    assert_eq!(put(&nodes[0], 9, &vec![1; 70 * MIB]), [PushOutcome::Refused]);
    assert_eq!(put(&nodes[0], 1, &bytes_of(1)), [PushOutcome::Stored]);
    assert_eq!(job.0.lock().unwrap().len(), 1);
}

/// Reads from rank 1 through a proxy.
fn get_by(mode: Mode, sample: SampleId, patience: Duration) -> Result<Slot, PeerError> {
    let key = JobKey::random().unwrap();
    let start =
        |rank| TcpTransport::start(TcpConfig { unix: false, ..config(rank, 2, &key) }).unwrap();
    let nodes = [start(0), start(1)];
    let (_job, _serving) = Job::open(&nodes[1]);
    let proxy = Proxy::to(nodes[1].address().tcp, mode);
    nodes[0].set_address(1, Address { tcp: proxy.address, ..nodes[1].address() });
    get(&nodes[0], 1, sample, patience)
}

#[test]
fn a_large_sample_that_stalls_is_given_up() {
    let got = get_by(Mode::Stall(MIB), 40, Duration::from_secs(1));
    assert!(matches!(got, Err(PeerError::TimedOut { peer: 1, .. })));
}

#[test]
fn a_sample_that_keeps_arriving_may_exceed_the_time_limit() {
    // 128 pieces, which take 5 seconds together.
    let got = get_by(Mode::Slow(40), 8, Duration::from_secs(2)).unwrap();
    assert!(*got.bytes == *bytes_of(8));
}

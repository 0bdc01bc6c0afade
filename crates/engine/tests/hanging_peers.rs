//! A cache disk that hangs blocks neither other nodes nor a node that leaves; nor does a source
//! that hangs when files are compared with it.

mod common;

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use belady_control::model::Bytes;
use belady_control::sampler::{AccessStream, SampleId, Scheme, StreamConfig};
use belady_data::source::{
    Catalog, Operations, ReadError, Source, Synthetic, ThrottleSpec, Throttled, Want,
};
use belady_data::tier::TierFaults;
use belady_engine::{Engine, EngineConfig, JobConfig, Loader, PeerPatience, Retry, TierConfig};
use belady_peer::rendezvous::InProcessRendezvous;
use belady_peer::{Answer, Ask, Channel, Cluster, GetRequest, Push, PushOutcome, Receive};
use common::{tcp_network, told_digest};
use tempfile::TempDir;

const NEVER: Duration = Duration::from_mins(10);
const LONG: Duration = Duration::from_mins(1);
const NODES: u32 = 2;
const SAMPLES: u32 = 200;

fn dataset() -> Synthetic {
    Synthetic::of_sizes((0..SAMPLES).map(|sample| 1000 + u64::from(sample * 37 % 3_000)), 3)
}

/// The engine and loader of one node.
struct Node {
    cluster: Arc<Cluster>,
    engine: Engine,
    loader: Loader,
}

/// Fails the test instead of hanging it.
fn within_limit<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || drop(done.send(work())));
    outcome.recv_timeout(LONG).expect("it ends")
}

/// Starts all nodes of a job; the first node's disk fails like this.
fn start(disks: &Path, faults: TierFaults, retry: Retry, source: &Arc<dyn Source>) -> Vec<Node> {
    let rendezvous = InProcessRendezvous::new(NODES, LONG);
    let start = |rank: u32, cluster: Arc<Cluster>| {
        let engine = Engine::new(EngineConfig {
            threads: Some(2),
            tiers: vec![TierConfig::Disk {
                directory: disks.join(rank.to_string()),
                capacity: Bytes(2_000_000),
            }],
            retry,
            peers: Some(cluster.clone()),
            peer_patience: PeerPatience {
                wait: Duration::from_millis(200),
                answer: Duration::from_secs(2),
            },
            tier_faults: Some((faults, 5)).filter(|_| rank == 0),
            ..EngineConfig::default()
        })
        .unwrap();
        let loader = engine.start(&job(source)).unwrap();
        Node { cluster, engine, loader }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(tcp_network(NODES))
            .map(|(rank, transport)| {
                let cluster = Arc::new(Cluster::new(rendezvous.member(rank), transport));
                scope.spawn(move || start(rank, cluster))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn job(source: &Arc<dyn Source>) -> JobConfig {
    let job = JobConfig::new(source.clone());
    JobConfig { epochs: Some(4), batch: 10, staging: Bytes(1 << 20), ..job }
}

fn expected(rank: u32) -> Vec<Vec<SampleId>> {
    let job = job(&(Arc::new(dataset()) as Arc<dyn Source>));
    let stream = AccessStream::new(StreamConfig {
        samples: SAMPLES,
        ranks: NODES,
        batch: job.batch * NODES,
        order: job.order,
        scheme: Scheme::Uniform,
        seed: job.seed,
        sampler_drop_last: false,
        drop_last: job.drop_last,
    })
    .unwrap();
    let epochs = (0..4).map(|epoch| stream.epoch(epoch));
    epochs
        .flat_map(|order| {
            (0..order.iterations()).map(|at| order.batch(rank, at).collect()).collect::<Vec<_>>()
        })
        .collect()
}

/// Checks that all nodes deliver everything and leave.
fn run(disks: &Path, faults: TierFaults, retry: Retry) {
    let source: Arc<dyn Source> = Arc::new(dataset());
    let nodes = start(disks, faults, retry, &source);
    let threads: Vec<_> = (0..)
        .zip(nodes)
        .map(|(rank, mut node)| {
            std::thread::spawn(move || {
                let known = dataset();
                let mut seen = vec![];
                while let Some(batch) = node.loader.next_batch().unwrap() {
                    for sample in batch.iter() {
                        assert!(known.verify(sample.id, sample.bytes()), "sample {}", sample.id);
                    }
                    seen.push(batch.iter().map(|sample| sample.id).collect::<Vec<_>>());
                }
                assert_eq!(seen, expected(rank), "rank {rank}");
                let Node { cluster, engine, loader } = node;
                drop(loader);
                drop(engine);
                cluster.transport.close();
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn nodes_deliver_exact_epochs_and_leave_when_a_disk_of_one_hangs() {
    let hasty = Retry { timeout: Duration::from_millis(100), ..Retry::default() };
    let rates = [(0.02, 0.0), (0.0, 0.02)];
    for (hung_get, hung_put) in rates {
        within_limit(move || {
            let disks = TempDir::new().unwrap();
            let faults = TierFaults { hung_get, hung_put, hang: NEVER, ..TierFaults::default() };
            run(disks.path(), faults, hasty);
        });
    }
}

struct Slot(Vec<u8>, Vec<Answer>);

impl Receive for Slot {
    fn slot(&mut self, _: usize) -> &mut [u8] {
        &mut self.0
    }

    fn answered(&mut self, _: usize, answer: Answer) {
        self.1.push(answer);
    }
}

fn ask(node: &Node, sample: SampleId) -> Vec<Answer> {
    let mut slot = Slot(vec![0; dataset().catalog().size(sample) as usize], vec![]);
    let request =
        GetRequest { channel: Channel(0), epoch: 0, asks: &[Ask { sample, last_use: false }] };
    let got = node.cluster.transport.get(0, &request, Instant::now() + LONG, &mut slot);
    got.unwrap_or_else(|error| panic!("{error}"));
    slot.1
}

#[test]
fn a_peer_that_asks_a_hung_disk_gets_a_miss() {
    let disks = TempDir::new().unwrap();
    let source: Arc<dyn Source> = Arc::new(dataset());
    // The disk is warm from an earlier run.
    let path = disks.path().to_owned();
    within_limit(move || run(&path, TierFaults::default(), Retry::default()));
    let path = disks.path().to_owned();
    within_limit(move || {
        let faults = TierFaults { hung_get: 1.0, hang: NEVER, ..TierFaults::default() };
        // Its own reads hang for half a minute before they are given up.
        let nodes = start(&path, faults, Retry::default(), &source);
        for sample in 0..20 {
            let answers = ask(&nodes[1], sample);
            let told = matches!(answers[..], [Answer::NotHere | Answer::NotYet]);
            assert!(told, "sample {sample}: {answers:?}");
        }
        assert!(nodes[0].loader.tiers()[0].samples > 20, "the disk holds samples");
        drop(nodes);
    });
}

#[test]
fn a_push_to_a_disk_that_hangs_finds_no_room_and_blocks_no_node() {
    let disks = TempDir::new().unwrap();
    within_limit(move || {
        // Slower than the push.
        let slow: ThrottleSpec = "1:100B/s".parse().unwrap();
        let source: Arc<dyn Source> = Arc::new(Throttled::new(dataset(), slow, 1));
        let faults = TierFaults { hung_put: 1.0, hang: NEVER, ..TierFaults::default() };
        let nodes = start(disks.path(), faults, Retry::default(), &source);
        for sample in 0..5 {
            let mut bytes = vec![0; dataset().catalog().size(sample) as usize];
            dataset().read(&mut [Want::new(sample, &mut bytes)]).unwrap();
            let push = Push {
                sample,
                tier: 1,
                epoch: 0,
                digest: told_digest(&bytes),
                version: 0,
                bytes: &bytes,
            };
            let put = nodes[1].cluster.transport.put(0, Channel(0), &[push], Instant::now() + LONG);
            assert_eq!(put.unwrap(), [PushOutcome::NoSpace], "sample {sample}");
        }
        drop(nodes);
    });
}

/// A source whose comparisons of even samples never return.
#[derive(Debug)]
struct Silent(Synthetic);

impl Source for Silent {
    fn catalog(&self) -> &Catalog {
        self.0.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        self.0.read(wants)
    }

    fn operations(&self) -> Operations {
        self.0.operations()
    }

    fn is_compared(&self, sample: SampleId) -> bool {
        !sample.is_multiple_of(2)
    }

    fn compare(&self, sample: SampleId) -> Result<(), ReadError> {
        if !self.is_compared(sample) {
            std::thread::sleep(NEVER);
        }
        Ok(())
    }
}

#[test]
fn a_source_that_hangs_is_not_blamed_on_the_disk_and_keeps_no_peer_waiting() {
    let disks = TempDir::new().unwrap();
    let path = disks.path().to_owned();
    within_limit(move || run(&path, TierFaults::default(), Retry::default()));
    let path = disks.path().to_owned();
    within_limit(move || {
        let source: Arc<dyn Source> = Arc::new(Silent(dataset()));
        let nodes = start(&path, TierFaults::default(), Retry::default(), &source);
        let mut here = 0;
        // Both kinds in turn: a comparison works after one that hung.
        for sample in 0..40 {
            let answers = ask(&nodes[1], sample);
            let is_here = matches!(answers[..], [Answer::Here { .. }]);
            here += u32::from(is_here);
            assert!(!is_here || source.is_compared(sample), "sample {sample}");
            let put_off = matches!(answers[..], [Answer::NotYet | Answer::NotHere | Answer::Busy]);
            assert!(is_here || put_off, "sample {sample}: {answers:?}");
        }
        assert!(here > 0, "the disk serves what was compared");
        assert_eq!(nodes[0].loader.tiers()[0].degraded, None);
        drop(nodes);
    });
}

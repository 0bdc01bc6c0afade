//! Peers over MPI, in real processes.
//!
//! Each test starts itself under `mpirun` once more, and in there every process is a rank that runs
//! the body of the test. A rank that panics ends all of them.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::memory::Memory;
use belady_data::sync::{Arc, Mutex, lock};
use belady_data::tier::{RamTier, Tier};
use belady_peer::mpi::{MpiConfig, MpiTransport};
use belady_peer::{
    Answer, Ask, Channel, Cluster, MeetError, NodeId, Notice, Payload, PeerError, Push, Receive,
    Reply, Request, SampleId, Serve, Serving, Taken, Transport,
};

const TEST: &str = "BELADY_TEST_UNDER_MPI";
const JOB: Channel = Channel(3);

/// Runs a test by so many ranks.
fn by_ranks(ranks: u32, test: &str, body: impl FnOnce(&Arc<MpiTransport>)) {
    under_mpirun(ranks, test, || {
        let transport = MpiTransport::start(MpiConfig::default()).unwrap();
        assert_eq!(transport.meet().world().size, ranks);
        body(&transport);
        transport.close();
        assert!(matches!(tell(&transport, 0, 1), Err(PeerError::Left)));
    });
}

fn under_mpirun(ranks: u32, test: &str, body: impl FnOnce()) {
    if std::env::var(TEST).is_ok_and(|running| running == test) {
        if std::panic::catch_unwind(AssertUnwindSafe(body)).is_err() {
            // Otherwise the others would wait for this one.
            std::process::abort();
        }
        return;
    }
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", "300"])
        .args(["-n", &ranks.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(TEST, test)
        .output()
        .expect("mpirun: install openmpi-bin");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{}\n{said}", output.status);
    let passed = said.matches("test result: ok. 1 passed").count();
    assert_eq!(passed, ranks as usize, "{said}");
}

fn soon() -> Instant {
    Instant::now() + Duration::from_mins(1)
}

/// What a sample has in it, on whichever rank.
fn sample_of(holder: NodeId, sample: SampleId) -> Vec<u8> {
    // From nothing to some megabytes, many small and some that are more than a message has.
    let length = match sample % 8 {
        0 => 0,
        7 => 3 << 20,
        5 | 6 => 100_000,
        _ => 1000 + sample as usize,
    };
    (0..length)
        .map(|at| (at as u32 ^ (sample << 3) ^ holder).wrapping_mul(0x9e37_79b9) as u8)
        .collect()
}

/// A job that has samples 0 to 31, does not have those up to 63, expects those up to 95, and is
/// busy for those beyond.
#[derive(Debug)]
struct Store {
    tier: Arc<dyn Tier>,
    taken: Mutex<HashMap<SampleId, Vec<u8>>>,
    told: Mutex<Vec<(NodeId, Notice)>>,
    /// How long it takes to answer, in milliseconds.
    slow: AtomicU64,
}

impl Store {
    fn open(transport: &MpiTransport) -> (Arc<Self>, Serving) {
        let rank = transport.meet().world().rank;
        let sizes = (0..32).map(|sample| sample_of(rank, sample).len() as u64);
        let tier =
            RamTier::new(Bytes(64 << 20), Arc::new(Sizes::from_bytes(sizes.collect::<Vec<_>>())));
        for sample in 0..32 {
            tier.put(sample, &sample_of(rank, sample));
        }
        let store = Arc::new(Self {
            tier: Arc::new(tier),
            taken: Mutex::default(),
            told: Mutex::default(),
            slow: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&store);
        let serving = transport.desk().open(JOB, weak);
        (store, serving)
    }
}

impl Serve for Store {
    fn get(&self, from: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>) {
        assert!(from < 8);
        std::thread::sleep(Duration::from_millis(self.slow.load(Ordering::Relaxed)));
        let mut bytes = 0;
        for ask in request.asks {
            replies.push(match ask.sample {
                0..32 => {
                    let lent = belady_peer::transport::Lent::pin(&self.tier, ask.sample);
                    let lent =
                        lent.map_or_else(|| Payload::Copied(Memory::zeroed(0)), Payload::Lent);
                    bytes += lent.len();
                    let digest = belady_peer::digest(&lent);
                    Reply::Here { bytes: lent, digest }
                }
                32..64 => Reply::NotHere,
                64..96 => Reply::NotYet,
                _ => Reply::Busy,
            });
            if bytes > limit {
                return;
            }
        }
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>) {
        for push in pushes {
            taken.push(if push.digest == belady_peer::digest(push.bytes) {
                lock(&self.taken).insert(push.sample, push.bytes.to_vec());
                if push.sample % 2 == 0 { Taken::Stored } else { Taken::NoRoom }
            } else {
                Taken::Refused
            });
        }
    }

    fn told(&self, from: NodeId, notice: &Notice) {
        lock(&self.told).push((from, notice.clone()));
    }
}

#[derive(Debug)]
struct Slots {
    holder: NodeId,
    asks: Vec<Ask>,
    bytes: Vec<Vec<u8>>,
    answers: Vec<Answer>,
}

impl Receive for Slots {
    fn slot(&mut self, at: usize) -> &mut [u8] {
        assert_eq!(at, self.answers.len(), "in the order of the request");
        self.bytes.push(vec![0; sample_of(self.holder, self.asks[at].sample).len()]);
        self.bytes.last_mut().unwrap()
    }

    fn answered(&mut self, at: usize, answer: Answer) {
        assert_eq!(at, self.answers.len(), "in the order of the request");
        if self.bytes.len() == at {
            self.bytes.push(vec![]);
        }
        self.answers.push(answer);
    }
}

fn get(
    transport: &MpiTransport,
    peer: NodeId,
    samples: &[SampleId],
    deadline: Instant,
) -> Result<Slots, PeerError> {
    let asks: Vec<_> = samples.iter().map(|&sample| Ask { sample, last_use: false }).collect();
    let mut slots = Slots { holder: peer, asks: asks.clone(), bytes: vec![], answers: vec![] };
    let request = Request { channel: JOB, epoch: 1, asks: &asks };
    transport.get(peer, &request, deadline, &mut slots).map(|()| slots)
}

/// Gets samples, and sees that each is what it should be.
fn get_all(transport: &MpiTransport, peer: NodeId, samples: &[SampleId]) {
    let got = get(transport, peer, samples, soon()).unwrap();
    assert_eq!(got.answers.len(), samples.len());
    for ((&sample, slot), &answer) in samples.iter().zip(&got.bytes).zip(&got.answers) {
        let right = match sample {
            0..32 => {
                let bytes = sample_of(peer, sample);
                assert!(*slot == bytes, "sample {sample} of rank {peer}");
                Answer::Here { digest: belady_peer::digest(&bytes) }
            }
            32..64 => Answer::NotHere,
            64..96 => Answer::NotYet,
            _ => Answer::Busy,
        };
        assert_eq!(answer, right, "sample {sample} of rank {peer}");
    }
}

fn tell(transport: &MpiTransport, peer: NodeId, epoch: u32) -> Result<(), PeerError> {
    transport.tell(peer, JOB, &Notice::EpochDone { epoch }, soon())
}

/// All come here before any goes on.
fn together(transport: &MpiTransport, name: &str) {
    transport.meet().exchange(name, &[]).unwrap();
}

#[test]
fn every_rank_gets_from_every_rank_at_once_whatever_the_size() {
    by_ranks(4, "every_rank_gets_from_every_rank_at_once_whatever_the_size", |transport| {
        let (_store, _serving) = Store::open(transport);
        together(transport, "open");
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                scope.spawn(move || {
                    for peer in (0..4).map(|at| (at + thread) % 4) {
                        let samples: Vec<_> = (0..100).map(|at| (at * 7 + thread) % 100).collect();
                        get_all(transport, peer, &samples);
                    }
                });
            }
        });
        // More asks than one message has.
        get_all(transport, 1, &(0..5000).map(|at| at % 3 + 62).collect::<Vec<_>>());
        get_all(transport, 1, &[]);
        assert!((0..4).all(|peer| transport.is_near(peer)) && !transport.is_near(4));
        let nobody = tell(transport, 4, 1).unwrap_err().to_string();
        assert_eq!(nobody, "rank 4 cannot be reached at MPI: the job has 4 ranks");
        together(transport, "done");
    });
}

#[test]
fn pushes_and_notices_arrive_once_and_outcomes_come_back_in_order() {
    by_ranks(3, "pushes_and_notices_arrive_once_and_outcomes_come_back_in_order", |transport| {
        let (store, _serving) = Store::open(transport);
        together(transport, "open");
        let rank = transport.meet().world().rank;
        let peer = (rank + 1) % 3;
        let samples: Vec<_> = (0..40).map(|sample| (sample, sample_of(rank, sample))).collect();
        let mut pushes: Vec<_> = samples
            .iter()
            .map(|(sample, bytes)| Push {
                sample: *sample,
                tier: 1,
                epoch: 5,
                digest: belady_peer::digest(bytes),
                bytes,
            })
            .collect();
        pushes[11].digest ^= 1;
        let taken = transport.put(peer, JOB, &pushes, soon()).unwrap();
        for (push, taken) in pushes.iter().zip(&taken) {
            let right = match push.sample {
                11 => Taken::Refused,
                sample if sample % 2 == 0 => Taken::Stored,
                _ => Taken::NoRoom,
            };
            assert_eq!(*taken, right, "sample {}", push.sample);
        }
        assert_eq!(taken.len(), pushes.len());
        // Nobody serves there: it may be about to.
        let elsewhere = transport.put(peer, Channel(9), &pushes[..2], soon()).unwrap();
        assert_eq!(elsewhere, [Taken::NoRoom; 2]);
        tell(transport, peer, 7).unwrap();
        let released = Notice::Released { epoch: 4, samples: vec![3, 1, 2] };
        transport.tell(peer, JOB, &released, soon()).unwrap();
        together(transport, "done");
        let from = (rank + 2) % 3;
        let told = [(from, Notice::EpochDone { epoch: 7 }), (from, released)];
        assert_eq!(*lock(&store.told), told);
        let taken = lock(&store.taken);
        assert_eq!(taken.len(), 39);
        assert!(taken.iter().all(|(&sample, bytes)| *bytes == sample_of(from, sample)));
    });
}

#[test]
fn a_caller_goes_at_its_deadline_and_the_late_answer_hurts_nobody() {
    by_ranks(2, "a_caller_goes_at_its_deadline_and_the_late_answer_hurts_nobody", |transport| {
        let (store, _serving) = Store::open(transport);
        store.slow.store(200, Ordering::Relaxed);
        together(transport, "open");
        let peer = 1 - transport.meet().world().rank;
        std::thread::scope(|scope| {
            // More than there are turns with the peer.
            for _ in 0..24 {
                scope.spawn(move || {
                    let deadline = Instant::now() + Duration::from_millis(20);
                    let late = get(transport, peer, &[7, 15], deadline).unwrap_err();
                    assert!(matches!(late, PeerError::TimedOut { .. }), "{late}");
                });
            }
        });
        together(transport, "late");
        store.slow.store(0, Ordering::Relaxed);
        get_all(transport, peer, &[1, 7, 15, 40]);
        together(transport, "done");
    });
}

#[test]
fn who_closes_early_serves_until_all_have_closed() {
    by_ranks(3, "who_closes_early_serves_until_all_have_closed", |transport| {
        let (_store, _serving) = Store::open(transport);
        together(transport, "open");
        if transport.meet().world().rank == 2 {
            // The others are closing meanwhile.
            for _ in 0..20 {
                get_all(transport, 0, &(0..64).collect::<Vec<_>>());
                get_all(transport, 1, &(0..64).collect::<Vec<_>>());
            }
        }
        transport.close();
    });
}

#[test]
fn all_ranks_exchange_and_rank_0_spreads() {
    by_ranks(4, "all_ranks_exchange_and_rank_0_spreads", |transport| {
        let meet = transport.meet();
        let rank = meet.world().rank;
        let long = |rank: u32| vec![rank as u8; (rank * 1_000_003) as usize];
        for round in 0..3 {
            let all = meet.exchange(&format!("all {round}"), &long(rank)).unwrap();
            assert_eq!(all, (0..4).map(long).collect::<Vec<_>>());
        }
        let spread = meet.broadcast("one", &long(rank + 3)).unwrap();
        assert_eq!(spread, long(3));
        assert_eq!(meet.broadcast("nothing", &[]).unwrap(), []);
        let name = if rank == 2 { "seeds" } else { "keys" };
        let MeetError::Other(why) = meet.exchange(name, &[1]).unwrap_err() else {
            panic!("another")
        };
        let other = if rank == 2 { 0 } else { 2 };
        assert!(
            why.starts_with(&format!("rank {other} came to exchange something else than")),
            "{why}"
        );
        assert_eq!(meet.exchange("again", &[rank as u8]).unwrap(), [[0], [1], [2], [3]]);
    });
}

#[test]
fn two_transports_one_after_the_other_and_a_cluster_that_is_dropped() {
    under_mpirun(2, "two_transports_one_after_the_other_and_a_cluster_that_is_dropped", || {
        for round in 0..2 {
            let transport = MpiTransport::start(MpiConfig::default()).unwrap();
            let meet = transport.meet();
            assert_eq!(meet.exchange("round", &[round]).unwrap(), [[round], [round]]);
            drop(Cluster::new(meet, transport));
        }
    });
}

/// A rank that was never closed, as when an exception ends a program: MPI's end closes it.
#[test]
fn a_transport_that_nobody_closes_leaves_when_mpi_ends() {
    under_mpirun(3, "a_transport_that_nobody_closes_leaves_when_mpi_ends", || {
        let transport = MpiTransport::start(MpiConfig::default()).unwrap();
        let (store, serving) = Store::open(&transport);
        together(&transport, "open");
        if transport.meet().world().rank == 1 {
            get_all(&transport, 0, &(0..64).collect::<Vec<_>>());
            transport.close();
        } else {
            std::mem::forget((transport, store, serving));
        }
    });
}

#[test]
fn an_exchange_that_a_rank_never_comes_to_is_given_up_and_all_can_leave() {
    under_mpirun(3, "an_exchange_that_a_rank_never_comes_to_is_given_up_and_all_can_leave", || {
        let config = MpiConfig { meeting: Duration::from_secs(2), ..MpiConfig::default() };
        let transport = MpiTransport::start(config).unwrap();
        if transport.meet().world().rank != 1 {
            let why = transport.meet().exchange("hopes", &[]).unwrap_err().to_string();
            assert!(
                why.starts_with("not all 3 ranks came to exchange \"hopes\" over MPI"),
                "{why}"
            );
        }
        transport.close();
    });
}

#[test]
fn mpi_that_was_initialised_for_one_thread_is_refused_in_one_sentence() {
    under_mpirun(2, "mpi_that_was_initialised_for_one_thread_is_refused_in_one_sentence", || {
        let universe = mpi::initialize_with_threading(mpi::Threading::Serialized);
        let why = MpiTransport::start(MpiConfig::default()).unwrap_err().to_string();
        assert!(why.starts_with("MPI was initialised for threads of level Serialized"), "{why}");
        drop(universe);
        let why = MpiTransport::start(MpiConfig::default()).unwrap_err().to_string();
        assert!(why.starts_with("MPI has ended in this process"), "{why}");
    });
}

/// As beside mpi4py: the program has initialised MPI, uses it from threads of its own, and ends it.
#[test]
fn it_takes_part_in_an_mpi_that_others_use_and_end() {
    under_mpirun(2, "it_takes_part_in_an_mpi_that_others_use_and_end", || {
        use mpi::traits::*;
        let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).unwrap();
        let world = universe.world();
        let (rank, peer) = (world.rank(), 1 - world.rank());
        let transport = MpiTransport::start(MpiConfig::default()).unwrap();
        let (_store, _serving) = Store::open(&transport);
        together(&transport, "open");
        std::thread::scope(|scope| {
            let transport = &transport;
            scope.spawn(move || {
                for _ in 0..20 {
                    get_all(transport, peer as NodeId, &(0..64).collect::<Vec<_>>());
                }
            });
            for round in 0..200 {
                // With tags that peers use as well.
                let (mut sum, mut got) = (0, 0);
                world.all_reduce_into(
                    &(rank + round),
                    &mut sum,
                    mpi::collective::SystemOperation::sum(),
                );
                assert_eq!(sum, 1 + 2 * round);
                mpi::request::scope(|scope| {
                    let sent = world.process_at_rank(peer).immediate_send_with_tag(
                        scope,
                        &rank,
                        1 + round % 3,
                    );
                    world.process_at_rank(peer).receive_into_with_tag(&mut got, 1 + round % 3);
                    sent.wait();
                });
                assert_eq!(got, peer);
            }
        });
        if rank == 0 {
            transport.close();
        }
        drop(universe);
        assert!(matches!(tell(&transport, 0, 1), Err(PeerError::Left)));
    });
}

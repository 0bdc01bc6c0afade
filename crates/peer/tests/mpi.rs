//! Peers over MPI, in real processes.
//!
//! Each test starts itself again under `mpirun`, where every process is a rank that runs the test's
//! body. A rank that panics ends all of them.

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use belady_base::memory::Memory;
use belady_base::sync::{Arc, Condvar, Mutex, lock};
use belady_peer::conformance::{TestHandler, ask_everything};
use belady_peer::mpi::{MpiConfig, MpiTransport};
use belady_peer::{
    Answer, Ask, Channel, Cluster, GetReply, GetRequest, Handler, NodeId, Notice, Payload,
    PeerError, Push, PushOutcome, Receive, RendezvousError, Transport,
};

/// The variable that names the test that runs under `mpirun`.
const TEST: &str = "BELADY_TEST_UNDER_MPI";
/// A directory in which each rank creates a file at its end. (The output of ranks is mixed up.)
const DONE: &str = "BELADY_TEST_DONE";

/// Runs a body on a number of ranks, each with a transport and a test handler.
fn by_ranks(ranks: u32, test: &str, body: impl FnOnce(&MpiTransport, NodeId)) {
    under_mpirun(ranks, test, || {
        let transport = MpiTransport::start(MpiConfig::default()).unwrap();
        let world = transport.rendezvous().world();
        assert_eq!(world.size, ranks);
        let node: Arc<dyn Transport> = transport.clone();
        let handler = TestHandler::register(&node);
        together(&transport, "open");
        body(&transport, world.rank);
        transport.close();
        drop(handler);
        assert!(matches!(tell(&transport, 0), Err(PeerError::Left)));
        assert!(transport.rendezvous().exchange("late", &[]).is_err());
    });
}

fn under_mpirun(ranks: u32, test: &str, body: impl FnOnce()) {
    if std::env::var(TEST).is_ok_and(|running| running == test) {
        if std::panic::catch_unwind(AssertUnwindSafe(body)).is_err() {
            // Otherwise the others would wait for this rank.
            std::process::abort();
        }
        let done = PathBuf::from(std::env::var_os(DONE).unwrap());
        std::fs::write(done.join(std::process::id().to_string()), []).unwrap();
        return;
    }
    let done = tempfile::tempdir().unwrap();
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", "300"])
        .args(["-n", &ranks.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(TEST, test)
        .env(DONE, done.path())
        .output()
        .expect("mpirun: install openmpi-bin");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{}\n{said}", output.status);
    assert_eq!(std::fs::read_dir(done.path()).unwrap().count(), ranks as usize, "{said}");
}

/// Waits for all ranks.
fn together(transport: &MpiTransport, name: &str) {
    transport.rendezvous().exchange(name, &[]).unwrap();
}

fn tell(transport: &MpiTransport, peer: NodeId) -> Result<(), PeerError> {
    let deadline = Instant::now() + Duration::from_mins(1);
    transport.tell(peer, Channel(1), &Notice::EpochDone { epoch: 1 }, deadline)
}

#[test]
fn every_rank_keeps_what_transports_promise_while_all_ask_all() {
    by_ranks(3, "every_rank_keeps_what_transports_promise_while_all_ask_all", |transport, rank| {
        std::thread::scope(|scope| {
            for peer in 0..3 {
                // Also of itself.
                scope.spawn(move || ask_everything(transport, rank, peer));
            }
        });
        assert!((0..3).all(|peer| transport.is_near(peer)) && !transport.is_near(3));
        let refused = tell(transport, 3).unwrap_err().to_string();
        assert_eq!(refused, "rank 3 cannot be reached at MPI: the job has 3 ranks");
        together(transport, "done");
    });
}

/// A handler that answers when its gate is open.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    changed: Condvar,
}

/// The length of the samples behind the gate: more than MPI sends eagerly.
const BEHIND: usize = 3 << 20;

impl Handler for Gate {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, _: usize, replies: &mut Vec<GetReply>) {
        drop(self.changed.wait_while(lock(&self.open), |open| !*open).unwrap());
        replies.extend(request.asks.iter().map(|ask| {
            let mut bytes = Memory::zeroed(BEHIND);
            bytes.fill(ask.sample as u8);
            let digest = belady_peer::digest(&bytes);
            GetReply::Here { bytes: Payload::Copied(bytes), digest, version: -7 }
        }));
    }

    fn put(&self, _: NodeId, _: &[Push<'_>], _: &mut Vec<PushOutcome>) {}

    fn told(&self, _: NodeId, _: &Notice) {}
}

struct Slot(Vec<u8>);

impl Receive for Slot {
    fn slot(&mut self, _: usize) -> &mut [u8] {
        &mut self.0
    }

    fn answered(&mut self, _: usize, answer: Answer) {
        assert_eq!(answer, Answer::Here { digest: belady_peer::digest(&self.0), version: -7 });
    }
}

fn get_behind(transport: &MpiTransport, peer: NodeId, limit: Duration) -> Result<(), PeerError> {
    let mut slot = Slot(vec![0; BEHIND]);
    let asks = [7, 9, 11].map(|sample| Ask { sample, last_use: true });
    let request = GetRequest { channel: Channel(1), epoch: 1, asks: &asks };
    transport.get(peer, &request, Instant::now() + limit, &mut slot)?;
    assert!(slot.0 == vec![11; BEHIND]);
    Ok(())
}

#[test]
fn a_caller_returns_at_its_deadline_and_the_late_answer_is_harmless() {
    let name = "a_caller_returns_at_its_deadline_and_the_late_answer_is_harmless";
    by_ranks(2, name, |transport, rank| {
        let gate = Arc::new(Gate::default());
        let job: Arc<dyn Handler> = gate.clone();
        let _serving = transport.dispatcher().register(Channel(1), Arc::downgrade(&job));
        together(transport, "gates");
        let peer = 1 - rank;
        std::thread::scope(|scope| {
            // More than the peer may have calls.
            for _ in 0..24 {
                scope.spawn(move || {
                    let late = get_behind(transport, peer, Duration::from_millis(20)).unwrap_err();
                    assert!(matches!(late, PeerError::TimedOut { .. }), "{late}");
                });
            }
        });
        together(transport, "late");
        *lock(&gate.open) = true;
        gate.changed.notify_all();
        get_behind(transport, peer, Duration::from_mins(1)).unwrap();
        ask_everything(transport, rank, peer);
        together(transport, "done");
    });
}

#[test]
fn a_rank_that_closes_early_serves_until_all_have_closed() {
    by_ranks(3, "a_rank_that_closes_early_serves_until_all_have_closed", |transport, rank| {
        if rank == 2 {
            // The others are closing meanwhile.
            ask_everything(transport, 2, 0);
            ask_everything(transport, 2, 1);
        }
    });
}

#[test]
fn all_ranks_exchange_and_rank_0_broadcasts() {
    by_ranks(4, "all_ranks_exchange_and_rank_0_broadcasts", |transport, rank| {
        let meet = transport.rendezvous();
        let long = |rank: u32| vec![rank as u8; (rank * 1_000_003) as usize];
        for round in 0..3 {
            let all = meet.exchange(&format!("all {round}"), &long(rank)).unwrap();
            assert_eq!(all, (0..4).map(long).collect::<Vec<_>>());
        }
        let spread = meet.broadcast("one", &long(rank + 3)).unwrap();
        assert_eq!(spread, long(3));
        assert_eq!(meet.broadcast("nothing", &[]).unwrap(), []);
        let name = if rank == 2 { "seeds" } else { "keys" };
        let why = meet.exchange(name, &[1]).unwrap_err().to_string();
        let other = if rank == 2 { 0 } else { 2 };
        let right = format!("rank {other} came to another exchange than {name:?}");
        assert!(why.starts_with(&right), "{why}");
        assert_eq!(meet.exchange("again", &[rank as u8]).unwrap(), [[0], [1], [2], [3]]);
    });
}

#[test]
fn two_transports_one_after_the_other_and_clusters_that_are_dropped() {
    under_mpirun(2, "two_transports_one_after_the_other_and_clusters_that_are_dropped", || {
        for round in 0..2 {
            let transport = MpiTransport::start(MpiConfig::default()).unwrap();
            let meet = transport.rendezvous();
            assert_eq!(meet.exchange("round", &[round]).unwrap(), [[round], [round]]);
            drop(Cluster::new(meet, transport));
        }
    });
}

/// As when an exception ends a program: MPI's end closes what is open.
#[test]
fn an_open_transport_leaves_when_mpi_ends() {
    under_mpirun(3, "an_open_transport_leaves_when_mpi_ends", || {
        let transport = MpiTransport::start(MpiConfig::default()).unwrap();
        let node: Arc<dyn Transport> = transport.clone();
        let handler = TestHandler::register(&node);
        together(&transport, "open");
        if transport.rendezvous().world().rank == 1 {
            ask_everything(&*transport, 1, 0);
            transport.close();
        } else {
            std::mem::forget((transport, node, handler));
        }
    });
}

#[test]
fn an_exchange_with_a_missing_rank_is_given_up_and_all_can_leave() {
    let name = "an_exchange_with_a_missing_rank_is_given_up_and_all_can_leave";
    under_mpirun(3, name, || {
        let config =
            MpiConfig { rendezvous_timeout: Duration::from_secs(2), ..MpiConfig::default() };
        let Ok(transport) = MpiTransport::start(config) else {
            panic!("a machine so busy that processes do not start within two seconds")
        };
        if transport.rendezvous().world().rank != 1 {
            let why = transport.rendezvous().exchange("hopes", &[]).unwrap_err().to_string();
            let right = "not all 3 ranks came to \"hopes\" over MPI within 2s";
            assert!(why.starts_with(right), "{why}");
        }
        transport.close();
    });
}

#[test]
fn an_mpi_with_a_lower_thread_level_is_refused_in_one_sentence() {
    under_mpirun(2, "an_mpi_with_a_lower_thread_level_is_refused_in_one_sentence", || {
        let refused = || match MpiTransport::start(MpiConfig::default()) {
            Err(RendezvousError::Other(why)) => why,
            other => panic!("{other:?}"),
        };
        let universe = mpi::initialize_with_threading(mpi::Threading::Serialized);
        let why = refused();
        assert!(why.starts_with("MPI was initialised for threads of level Serialized"), "{why}");
        drop(universe);
        let why = refused();
        assert!(why.starts_with("MPI is finalised in this process"), "{why}");
    });
}

/// As beside mpi4py: the program initialises MPI, uses it in a thread, and finalises it.
#[test]
fn peers_share_an_mpi_that_the_program_uses_and_finalises() {
    under_mpirun(2, "peers_share_an_mpi_that_the_program_uses_and_finalises", || {
        let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).unwrap();
        let transport = MpiTransport::start(MpiConfig::default()).unwrap();
        let rank = transport.rendezvous().world().rank;
        let node: Arc<dyn Transport> = transport.clone();
        let _handler = TestHandler::register(&node);
        together(&transport, "open");
        std::thread::scope(|scope| {
            scope.spawn(|| ask_everything(&*transport, rank, 1 - rank));
            (0..200).for_each(|round| use_mpi(&universe, round));
        });
        if rank == 0 {
            transport.close();
        }
        // Rank 1 has not closed its own.
        drop(universe);
        assert!(matches!(tell(&transport, 0), Err(PeerError::Left)));
    });
}

/// A program whose ranks wait for each other in MPI between one's close and the other's must not
/// hang: the rank that closes continues after a while, and its peers are still served.
#[test]
fn closing_does_not_wait_for_ever_and_goes_on_serving() {
    under_mpirun(2, "closing_does_not_wait_for_ever_and_goes_on_serving", || {
        let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).unwrap();
        let config = MpiConfig { close_timeout: Duration::from_millis(50), ..MpiConfig::default() };
        let transport = MpiTransport::start(config).unwrap();
        let rank = transport.rendezvous().world().rank;
        let node: Arc<dyn Transport> = transport.clone();
        let _handler = TestHandler::register(&node);
        together(&transport, "open");
        if rank == 0 {
            transport.close();
        }
        use_mpi(&universe, 1);
        if rank == 1 {
            ask_everything(&*transport, 1, 0);
            transport.close();
        }
        drop(universe);
    });
}

/// Sends numbers from rank to rank, with tags that peers use as well.
fn use_mpi(universe: &mpi::environment::Universe, round: i32) {
    use mpi::traits::*;
    let world = universe.world();
    let (rank, peer) = (world.rank(), 1 - world.rank());
    let (mut sum, mut got) = (0, 0);
    let add = mpi::collective::SystemOperation::sum();
    world.all_reduce_into(&(rank + round), &mut sum, add);
    assert_eq!(sum, 1 + 2 * round);
    let other = world.process_at_rank(peer);
    mpi::request::scope(|scope| {
        let sent = other.immediate_send_with_tag(scope, &rank, 1 + round % 3);
        other.receive_into_with_tag(&mut got, 1 + round % 3);
        sent.wait();
    });
    assert_eq!(got, peer);
}

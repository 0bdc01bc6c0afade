//! The outcome of calls when peers restart, die, stall or send garbage.

mod common;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belady_peer::tcp::{Address, TcpConfig, TcpTransport};
use belady_peer::{JobKey, Notice, PeerError, Transport};
use common::job::{CHANNEL, Job, LONG, get, get_some};
use common::proxy::{Mode, Proxy};
use common::{LOOPBACK, config, nodes};

fn over_tcp(config: TcpConfig) -> TcpConfig {
    TcpConfig { unix: false, ..config }
}

/// Returns a pair of nodes; the first reaches the second only through a proxy.
fn through(mode: Mode) -> (Vec<Arc<TcpTransport>>, Proxy) {
    let key = JobKey::random().unwrap();
    let start = |rank| TcpTransport::start(over_tcp(config(rank, 2, &key))).unwrap();
    let nodes = vec![start(0), start(1)];
    let proxy = Proxy::to(nodes[1].address().tcp, mode);
    nodes[0].set_address(1, Address { tcp: proxy.address, ..nodes[1].address() });
    (nodes, proxy)
}

#[test]
fn a_peer_that_restarts_at_another_address_is_found_once_it_connects() {
    let key = JobKey::random().unwrap();
    let first = TcpTransport::start(config(0, 2, &key)).unwrap();
    let (job, _serving) = Job::open(&first);
    let peer = TcpTransport::start(config(1, 2, &key)).unwrap();
    let (_theirs, serving) = Job::open(&peer);
    first.set_address(1, peer.address());
    get_some(&*first, 1);
    let old = peer.address();
    peer.close();
    drop(serving);
    assert!(get(&*first, 1, 1, LONG).1.is_err());

    let peer = TcpTransport::start(config(1, 2, &key)).unwrap();
    let (_theirs, _their_serving) = Job::open(&peer);
    assert_ne!(peer.address(), old);
    peer.set_address(0, first.address());
    peer.tell(0, CHANNEL, &Notice::EpochDone { epoch: 0 }, Instant::now() + LONG).unwrap();
    assert_eq!(job.state.lock().unwrap().heard_of, [1]);
    get_some(&*first, 1);
    first.set_address(1, old);
    get_some(&*first, 1);
}

#[test]
fn a_call_succeeds_over_a_connection_that_a_restart_made_stale() {
    let key = JobKey::random().unwrap();
    let start = |rank, port| {
        TcpTransport::start(TcpConfig { port, ..over_tcp(config(rank, 2, &key)) }).unwrap()
    };
    let (first, peer) = (start(0, 0), start(1, 0));
    first.set_address(1, peer.address());
    let (_job, serving) = Job::open(&peer);
    get_some(&*first, 1);
    let port = peer.address().tcp.port();
    peer.close();
    drop(serving);
    let peer = start(1, port);
    let (_job, _serving) = Job::open(&peer);
    get_some(&*first, 1);
    peer.close();
}

#[test]
fn answers_before_a_peer_died_are_kept() {
    let (nodes, proxy) = through(Mode::Cut(5 << 20));
    let (_job, _serving) = Job::open(&nodes[1]);
    let (slots, got) = get(&*nodes[0], 1, 20, LONG);
    assert!(matches!(got, Err(PeerError::Closed { peer: 1, .. })), "{got:?}");
    assert!((1..5).contains(&slots.right) && slots.wrong == 0, "{}", slots.right);
    *proxy.mode.lock().unwrap() = Mode::Pass;
    get_some(&*nodes[0], 1);
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 2, "the broken one is not used again");
}

#[test]
fn corrupted_bytes_are_noticed_wherever_they_are() {
    // The header of the first reply; its entries; a sample. The handshake has less than 300 bytes.
    let mut seen = [0; 3];
    for at in (0..400).step_by(7).chain([5000, 1 << 20]) {
        let (nodes, _proxy) = through(Mode::Flip(at));
        let (_job, _serving) = Job::open(&nodes[1]);
        let (slots, got) = get(&*nodes[0], 1, 3, Duration::from_secs(20));
        match got {
            Ok(()) => {
                assert_eq!((slots.right, slots.wrong), (2, 1), "byte {at}");
                seen[0] += 1;
            }
            Err(PeerError::Garbled { .. }) => seen[1] += 1,
            Err(_) => seen[2] += 1,
        }
    }
    assert!(seen.iter().all(|&count| count > 1), "{seen:?}");
}

#[test]
fn calls_to_a_silent_peer_end_at_their_deadline_and_delay_no_others() {
    let nodes = nodes(3, |config| config);
    let (job, _serving) = Job::open(&nodes[1]);
    let (_other, _other_serving) = Job::open(&nodes[2]);
    job.set_shut(true);
    let limit = Duration::from_millis(100);
    let (slots, got) = get(&*nodes[0], 1, 2, limit);
    assert!(matches!(got, Err(PeerError::TimedOut { peer: 1, .. })), "{got:?}");
    assert_eq!(slots.right, 0);
    get_some(&*nodes[0], 2);
    job.set_shut(false);
    get_some(&*nodes[0], 1);
}

#[test]
fn a_deadline_covers_the_whole_handshake_even_if_bytes_keep_arriving() {
    let (nodes, _proxy) = through(Mode::Trickle(1000));
    let (_job, _serving) = Job::open(&nodes[1]);
    // All of it would take hours.
    let (_, got) = get(&*nodes[0], 1, 2, Duration::from_millis(500));
    assert!(matches!(got, Err(PeerError::TimedOut { .. })), "{got:?}");
}

#[test]
fn a_rank_that_does_not_read_delays_no_other() {
    let (mut nodes, _proxy) = through(Mode::Stall(3 << 20));
    let (_job, _serving) = Job::open(&nodes[1]);
    let patient = nodes.remove(0);
    let (slots, got) = get(&*patient, 1, 50, Duration::from_secs(1));
    assert!(matches!(got, Err(PeerError::TimedOut { .. })), "{got:?}");
    assert!(slots.right <= 3);
    patient.set_address(1, nodes[0].address());
    // The server ends although one of its threads is stuck in a write.
    nodes[0].close();
}

#[test]
fn leaving_ends_all_calls_in_flight() {
    let nodes = nodes(2, over_tcp);
    let (job, _serving) = Job::open(&nodes[1]);
    job.set_shut(true);
    // Some wait for an answer, others for a connection.
    std::thread::scope(|scope| {
        let ask = || get(&*nodes[0], 1, 1, LONG).1;
        let calls: Vec<_> = (0..6).map(|_| scope.spawn(ask)).collect();
        job.wait_for(4);
        nodes[0].close();
        for call in calls {
            let got = call.join().unwrap();
            assert!(matches!(got, Err(PeerError::Left)), "{got:?}");
        }
        job.set_shut(false);
    });
    nodes[1].close();
}

#[test]
fn leaving_does_not_wait_for_an_unresponsive_host() {
    let nodes = nodes(2, over_tcp);
    // A listener that accepts nothing, with a full queue.
    let full = TcpListener::bind((LOOPBACK, 0)).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let address = full.local_addr().unwrap();
    let quick = Duration::from_millis(50);
    let waiting = |_| std::net::TcpStream::connect_timeout(&address, quick).ok();
    let _waiting: Vec<_> = (0..4).map_while(waiting).collect();
    let newer = nodes[1].address().incarnation + 1;
    nodes[0].set_address(1, Address { tcp: address, incarnation: newer, ..nodes[1].address() });
    std::thread::scope(|scope| {
        // The limit of the call is far longer than a test may take.
        let call = scope.spawn(|| get(&*nodes[0], 1, 1, Duration::from_hours(24)).1);
        nodes[0].close();
        let got = call.join().unwrap();
        assert!(matches!(got, Err(PeerError::Left)), "{got:?}");
    });
}

#[test]
fn a_forked_child_leaves_the_connections_of_its_parent_alone() {
    let nodes = nodes(2, |config| config);
    let (_job, _serving) = Job::open(&nodes[1]);
    get_some(&*nodes[0], 1);
    // SAFETY: the child makes one call that only checks its process id, closes what is not its own,
    // and ends without unwinding.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let got = nodes[0].tell(1, CHANNEL, &Notice::EpochDone { epoch: 0 }, Instant::now());
        let is_right = matches!(got, Err(PeerError::Left));
        nodes[0].close();
        drop(nodes);
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child above, and `status` may be written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    get_some(&*nodes[0], 1);
    get_some(&*nodes[0], 1);
}

#[test]
fn a_node_with_a_stuck_handler_can_leave() {
    let nodes = nodes(2, |config| config);
    let (job, _serving) = Job::open(&nodes[1]);
    job.set_shut(true);
    let asking = nodes[0].clone();
    let asks = std::thread::spawn(move || get(&*asking, 1, 1, LONG).1.is_err());
    job.wait_for(1);
    let (done, left) = std::sync::mpsc::channel();
    let leaving = nodes[1].clone();
    std::thread::spawn(move || {
        leaving.close();
        done.send(()).unwrap();
    });
    left.recv_timeout(LONG / 2).expect("it does not wait for what is stuck");
    assert!(asks.join().unwrap(), "the caller is told that it has left");
    job.set_shut(false);
}

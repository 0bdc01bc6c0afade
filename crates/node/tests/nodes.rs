//! Jobs of several nodes: each has one engine for its ranks, and the engines are each other's peers.
//! Engines run on threads of the test, or in processes that it kills.

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{EngineError, ErrorClass};
use belady_node::{NodeConnection, NodeError, NodesSpec, ServerOptions, serve};
use belady_peer::{JobKey, TcpAccess};

use common::{Files, Server, checked, expected, next, orders, place, spec};

const BATCH: u32 = 4;
/// The socket of an engine that is a process of its own.
const SOCKET: &str = "BELADY_TEST_NODE_SOCKET";

/// The ranks of the job on each node.
struct Ranks(Vec<Vec<u32>>);

impl Ranks {
    /// Node after node, as torchrun counts.
    fn contiguous(nodes: u32, each: u32) -> Self {
        Self((0..nodes).map(|node| (node * each..(node + 1) * each).collect()).collect())
    }

    /// One rank on each node in turn.
    fn in_turn(nodes: u32, each: u32) -> Self {
        let of_node = |node| (0..each).map(|turn| turn * nodes + node).collect();
        Self((0..nodes).map(of_node).collect())
    }

    fn count(&self) -> u32 {
        self.0.iter().map(Vec::len).sum::<usize>() as u32
    }

    /// The description of each node.
    fn nodes(&self, limit: Duration) -> Vec<NodesSpec> {
        let key = JobKey::random().unwrap();
        let listen = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let of_node = |node| NodesSpec {
            run: 1,
            node,
            nodes: self.0.len() as u32,
            numbering: self.0.concat(),
            access: TcpAccess { key: key.clone(), listen, unix: false, tls: None },
            limit_ns: limit.as_nanos() as u64,
        };
        (0..self.0.len() as u32).map(of_node).collect()
    }
}

/// Lets the engines at these sockets meet; returns the connections of the first ranks.
fn meet(sockets: &[PathBuf], ranks: &Ranks) -> Vec<Arc<NodeConnection>> {
    let specs = ranks.nodes(Duration::from_mins(1));
    let open = |socket: &PathBuf| Arc::new(NodeConnection::open(socket).unwrap());
    let connections: Vec<_> = sockets.iter().map(open).collect();
    let meetings = connections.iter().zip(&specs).map(|(node, spec)| node.meet(spec).unwrap());
    let meetings: Vec<_> = meetings.collect();
    let meeting = meetings[0].clone().unwrap();
    assert!(meetings[1..].iter().all(Option::is_none));
    std::thread::scope(|scope| {
        for (connection, spec) in connections.iter().zip(&specs) {
            scope.spawn(|| connection.join(spec, &meeting).unwrap());
        }
    });
    connections
}

/// What a rank has got, and the error that has ended it.
type Seen = (Vec<Vec<u32>>, Option<EngineError>);

/// Reads with all ranks in step, as in training. `each_step` is called with the number of the step
/// between two of them. Returns what each rank got, by node.
fn read_all(
    files: &Arc<Files>,
    sockets: &[PathBuf],
    ranks: &Ranks,
    (cache, epochs): (u64, u32),
    each_step: impl Fn(usize) + Send + Sync + 'static,
) -> Vec<Vec<Seen>> {
    let count = ranks.count();
    let barrier = Arc::new(Barrier::new(count as usize));
    let each_step = Arc::new(each_step);
    let steps = expected(&orders(files.source.catalog().len(), 0, count, BATCH), epochs).len();
    let mut nodes = vec![];
    for (socket, of_node) in sockets.iter().zip(&ranks.0) {
        let mut threads = vec![];
        for (local, &rank) in (0..).zip(of_node) {
            let place = place(local, of_node.len() as u32);
            let (files, socket) = (files.clone(), socket.clone());
            let (barrier, each_step) = (barrier.clone(), each_step.clone());
            threads.push(std::thread::spawn(move || -> Seen {
                let connection = NodeConnection::open(&socket).unwrap();
                let orders = orders(files.source.catalog().len(), rank, count, BATCH);
                let (job, spec) = (files.job(epochs), spec(cache));
                let started = connection.start(place, &spec, &job, &files.recipe, orders);
                let mut loader = started.unwrap();
                let (mut seen, mut error) = (vec![], None);
                for step in 0..steps {
                    if barrier.wait().is_leader() {
                        each_step(step);
                    }
                    barrier.wait();
                    if error.is_none() {
                        match next(&mut loader) {
                            Ok(batch) => seen.push(checked(&batch.unwrap())),
                            Err(why) => error = Some(why),
                        }
                    }
                }
                if error.is_none() {
                    assert!(next(&mut loader).unwrap().is_none());
                }
                (seen, error)
            }));
        }
        nodes.push(threads);
    }
    let join = |node: Vec<std::thread::JoinHandle<Seen>>| {
        node.into_iter().map(|rank| rank.join().unwrap()).collect()
    };
    nodes.into_iter().map(join).collect()
}

/// Runs a job on engines that are threads, and returns the metrics of each engine.
fn run(samples: u32, ranks: &Ranks, percent: u64, epochs: u32) -> (u64, Vec<MetricsSnapshot>) {
    let files = Arc::new(Files::new(samples));
    let servers: Vec<_> = ranks.0.iter().map(|_| Server::new(ServerOptions::default())).collect();
    let sockets: Vec<_> = servers.iter().map(|server| server.socket.clone()).collect();
    let connections = meet(&sockets, ranks);
    let cache = files.total() * percent / 100 / ranks.0.len() as u64;
    let seen = read_all(&files, &sockets, ranks, (cache, epochs), |_| {});
    for (of_node, seen) in ranks.0.iter().zip(seen) {
        for (&rank, (seen, error)) in of_node.iter().zip(seen) {
            assert!(error.is_none(), "rank {rank}: {error:?}");
            let orders = orders(samples, rank, ranks.count(), BATCH);
            assert_eq!(seen, expected(&orders, epochs), "rank {rank}");
        }
    }
    let metrics = connections.iter().map(|one| one.metrics(1, 0).unwrap()).collect();
    drop(connections);
    for server in servers {
        server.end();
    }
    (files.total(), metrics)
}

#[test]
fn each_node_has_one_engine_and_all_caches_are_one() {
    let (total, metrics) = run(240, &Ranks::contiguous(2, 2), 110, 4);
    let read: u64 = metrics.iter().map(|node| node.source.bytes).sum();
    assert!(read <= total + total / 50, "{read} of {total}");
    for node in &metrics {
        assert_eq!(node.peers.nodes, 1, "the other node, and not three other ranks");
        assert!(node.peers.read.bytes + node.peers.taken.bytes > 0);
    }
}

#[test]
fn ranks_that_are_not_counted_node_after_node_get_their_own_order() {
    let epochs = 4;
    let (total, metrics) = run(270, &Ranks::in_turn(3, 2), 60, epochs);
    let read: u64 = metrics.iter().map(|node| node.source.bytes).sum();
    let bound = total + u64::from(epochs - 1) * (total - total * 60 / 100);
    assert!(read <= bound + u64::from(epochs - 1) * total / 20, "{read}, bound {bound}");
}

/// Not a test of its own: the process of an engine.
#[test]
fn as_an_engine() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let listener = UnixListener::bind(&socket).unwrap();
    serve(&listener, ServerOptions::default()).unwrap();
}

/// A node engine that is a process, and does not outlive the test.
struct Process {
    child: Child,
    socket: PathBuf,
}

impl Process {
    fn start(folder: &Path, node: usize) -> Self {
        let socket = folder.join(format!("{node}.sock"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "as_an_engine", "--nocapture", "--test-threads=1"]);
        let child = command.env(SOCKET, &socket).spawn().unwrap();
        // A connection without a greeting does not count as a rank.
        while UnixStream::connect(&socket).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { child, socket }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }
}

#[test]
fn an_engine_that_is_killed_costs_the_other_nodes_reads_of_the_source_alone() {
    let folder = tempfile::tempdir().unwrap();
    for killed in [0, 1] {
        let (samples, epochs) = (240, 4);
        let files = Arc::new(Files::new(samples));
        let engines: Vec<_> =
            (0..2).map(|node| Process::start(folder.path(), 2 * killed + node)).collect();
        let sockets: Vec<_> = engines.iter().map(|engine| engine.socket.clone()).collect();
        let ranks = Ranks::contiguous(2, 2);
        let _connections = meet(&sockets, &ranks);
        let pid = rustix::process::Pid::from_raw(engines[killed].child.id().cast_signed()).unwrap();
        let kill = move |step| {
            if step == 35 {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
        };
        let seen = read_all(&files, &sockets, &ranks, (files.total() * 55 / 100, epochs), kill);
        for (node, seen) in seen.into_iter().enumerate() {
            for (&rank, (seen, error)) in ranks.0[node].iter().zip(seen) {
                let mut expected = expected(&orders(samples, rank, 4, BATCH), epochs);
                if node == killed {
                    assert_eq!(error.map(|it| it.class()), Some(ErrorClass::Lost));
                    expected.truncate(seen.len());
                } else {
                    assert!(error.is_none(), "{error:?}");
                }
                assert_eq!(seen, expected, "rank {rank}");
            }
        }
    }
}

#[test]
fn ranks_are_told_at_once_that_an_engine_has_ended_before_their_job_began() {
    let folder = tempfile::tempdir().unwrap();
    for killed in [0, 1] {
        let start = |node| Process::start(folder.path(), 2 * killed + node);
        let mut engines = [start(0), start(1)];
        let sockets = engines.each_ref().map(|engine| engine.socket.clone());
        let connections = meet(&sockets, &Ranks::contiguous(2, 1));
        engines[killed].child.kill().unwrap();
        let files = Files::new(20);
        let orders = orders(20, 1 - killed as u32, 2, BATCH);
        let (spec, job) = (spec(0), files.job(1));
        let connection = &connections[1 - killed];
        let error = connection.start(place(0, 1), &spec, &job, &files.recipe, orders).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost);
        assert!(error.to_string().contains(&format!("rank {killed} ended before")), "{error}");
    }
}

#[test]
fn a_node_that_cannot_start_a_job_tells_the_ranks_of_all_nodes_why() {
    let ranks = Ranks::contiguous(2, 1);
    let servers: Vec<_> = (0..2).map(|_| Server::new(ServerOptions::default())).collect();
    let sockets: Vec<_> = servers.iter().map(|server| server.socket.clone()).collect();
    let connections = meet(&sockets, &ranks);
    let files = Arc::new(Files::new(20));
    let errors: Vec<EngineError> = std::thread::scope(|scope| {
        let start = |node: usize| {
            let (connection, files) = (&connections[node], &files);
            scope.spawn(move || {
                let mut spec = spec(0);
                if node == 1 {
                    spec.system = Some(belady_node::RawPath::absolute("/nowhere.toml".as_ref()));
                }
                let orders = orders(20, node as u32, 2, BATCH);
                connection
                    .start(place(0, 1), &spec, &files.job(1), &files.recipe, orders)
                    .unwrap_err()
            })
        };
        let threads = [start(0), start(1)];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(errors[0].to_string().contains("rank 1 cannot take part"), "{}", errors[0]);
    assert!(errors.iter().all(|error| error.to_string().contains("/nowhere.toml")), "{errors:?}");
    drop(connections);
    for server in servers {
        server.end();
    }
}

#[test]
fn engines_with_different_keys_do_not_meet() {
    let servers: Vec<_> = (0..2).map(|_| Server::new(ServerOptions::default())).collect();
    let ranks = Ranks::contiguous(2, 2);
    let ours = ranks.nodes(Duration::from_millis(300)).remove(0);
    let theirs = ranks.nodes(Duration::from_millis(300)).remove(1);
    let connection = |at: usize| NodeConnection::open(&servers[at].socket).unwrap();
    let (first, second) = (connection(0), connection(1));
    let meeting = first.meet(&ours).unwrap().unwrap();
    assert_eq!(second.meet(&theirs).unwrap(), None);
    let errors: Vec<NodeError> = std::thread::scope(|scope| {
        let other = scope.spawn(|| second.join(&theirs, &meeting).unwrap_err());
        vec![first.join(&ours, &meeting).unwrap_err(), other.join().unwrap()]
    });
    for error in errors {
        assert!(error.to_string().contains("cannot meet those of the other nodes"), "{error}");
    }
    drop((first, second));
    for server in servers {
        server.end();
    }
}

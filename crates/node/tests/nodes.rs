//! Jobs of several nodes: each has one engine for its ranks, and the engines are each other's peers.
//! Engines run on threads of the test, or in processes that it kills.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{EngineError, ErrorClass};
use belady_node::{
    EngineSpec, JobPlace, NodeConnection, NodeError, NodesSpec, ServerOptions, serve,
};

use belady_peer::rendezvous::tcp::ask;
use belady_peer::tcp::{Address, Tls};
use belady_peer::{ADDRESSES, JobKey, TcpAccess};
use belady_testing::certificates::{Authority, Certificate};

use common::{Files, Server, checked, expected, next, orders, place, spec};

const BATCH: u32 = 4;
/// The socket of an engine that is a process of its own.
const SOCKET: &str = "BELADY_TEST_NODE_SOCKET";
/// The cache of such an engine, if it outlives jobs.
const KEPT_CACHE: &str = "BELADY_TEST_NODE_CACHE";
/// The last run.
static RUNS: AtomicU64 = AtomicU64::new(0);

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

    /// The description of each node, for a run of its own.
    fn nodes(&self, limit: Duration) -> Vec<NodesSpec> {
        let key = JobKey::random().unwrap();
        let run = RUNS.fetch_add(1, Ordering::Relaxed) + 1;
        let listen = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let of_node = |node| NodesSpec {
            run,
            node,
            nodes: self.0.len() as u32,
            numbering: self.0.concat(),
            access: TcpAccess { key: key.clone(), listen, unix: false, tls: None },
            limit_ns: limit.as_nanos() as u64,
        };
        (0..self.0.len() as u32).map(of_node).collect()
    }
}

/// Adds the certificates of each node, by its number.
fn under(mut specs: Vec<NodesSpec>, tls: impl Fn(u32) -> Option<Tls>) -> Vec<NodesSpec> {
    for spec in &mut specs {
        spec.access.tls = tls(spec.node);
    }
    specs
}

/// Makes the certificate of a node.
fn tls(authority: &Authority, node: u32) -> Tls {
    let Certificate { certificate, key, authority } = authority.certificate(&node.to_string());
    Tls { certificate, key, authority, name: None }
}

/// Engines that have met.
struct Met {
    run: u64,
    /// Those of the first ranks.
    connections: Vec<Arc<NodeConnection>>,
    /// Where the engine of node 0 listens.
    meeting: String,
}

/// Lets the engines at these sockets meet.
fn meet(sockets: &[PathBuf], specs: &[NodesSpec]) -> Met {
    let (connections, meeting, joined) = try_to_meet(sockets, specs);
    for joined in joined {
        joined.unwrap();
    }
    Met { run: specs[0].run, connections, meeting }
}

/// The connections of the first ranks, where the engine of node 0 listens, and whether each has met
/// the others.
type Meeting = (Vec<Arc<NodeConnection>>, String, Vec<Result<(), NodeError>>);

fn try_to_meet(sockets: &[PathBuf], specs: &[NodesSpec]) -> Meeting {
    let open = |socket: &PathBuf| Arc::new(NodeConnection::open(socket).unwrap());
    let connections: Vec<_> = sockets.iter().map(open).collect();
    let meetings = connections.iter().zip(specs).map(|(node, spec)| node.meet(spec).unwrap());
    let meetings: Vec<_> = meetings.collect();
    let meeting = meetings[0].clone().unwrap();
    assert!(meetings[1..].iter().all(Option::is_none));
    let joined = std::thread::scope(|scope| {
        let join = |(connection, spec)| {
            let (connection, meeting): (&Arc<NodeConnection>, &str) = (connection, &meeting);
            scope.spawn(move || connection.join(spec, meeting))
        };
        let threads: Vec<_> = connections.iter().zip(specs).map(join).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    (connections, meeting, joined)
}

/// How long engines wait for each other that all come.
const LIMIT: Duration = Duration::from_mins(1);

/// What a rank has got, and the error that has ended it.
type Seen = (Vec<Vec<u32>>, Option<EngineError>);

/// Reads with all ranks in step, as in training. `each_step` is called with the number of the step
/// between two of them. Returns what each rank got, by node.
fn read_all(
    files: &Arc<Files>,
    sockets: &[PathBuf],
    (run, ranks): (u64, &Ranks),
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
            let place = JobPlace { run, ..place(local, of_node.len() as u32) };
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

/// Runs a job, and checks what each rank gets.
fn train(
    files: &Arc<Files>,
    sockets: &[PathBuf],
    (run, ranks): (u64, &Ranks),
    (cache, epochs): (u64, u32),
) {
    let seen = read_all(files, sockets, (run, ranks), (cache, epochs), |_| {});
    for (of_node, seen) in ranks.0.iter().zip(seen) {
        for (&rank, (seen, error)) in of_node.iter().zip(seen) {
            assert!(error.is_none(), "rank {rank}: {error:?}");
            let orders = orders(files.source.catalog().len(), rank, ranks.count(), BATCH);
            assert_eq!(seen, expected(&orders, epochs), "rank {rank}");
        }
    }
}

/// Runs a job on engines that are threads and meet like this, and returns the metrics of each
/// engine. `met` is called when they have.
fn run(
    (samples, percent, epochs): (u32, u64, u32),
    ranks: &Ranks,
    specs: &[NodesSpec],
    met: impl FnOnce(&Met),
) -> (u64, Vec<MetricsSnapshot>) {
    let files = Arc::new(Files::new(samples));
    let servers: Vec<_> = ranks.0.iter().map(|_| Server::new(ServerOptions::default())).collect();
    let sockets = sockets(&servers);
    let engines = meet(&sockets, specs);
    met(&engines);
    let cache = files.total() * percent / 100 / ranks.0.len() as u64;
    train(&files, &sockets, (engines.run, ranks), (cache, epochs));
    let metrics = metrics(&engines);
    drop(engines);
    for server in servers {
        server.end();
    }
    (files.total(), metrics)
}

fn sockets(servers: &[Server]) -> Vec<PathBuf> {
    servers.iter().map(|server| server.socket.clone()).collect()
}

fn metrics(engines: &Met) -> Vec<MetricsSnapshot> {
    engines.connections.iter().map(|one| one.metrics(engines.run, 0).unwrap()).collect()
}

fn source_bytes(metrics: &[MetricsSnapshot]) -> u64 {
    metrics.iter().map(|node| node.source.bytes).sum()
}

/// The bytes of samples that came from other nodes.
fn exchanged(node: &MetricsSnapshot) -> u64 {
    node.peers.read.bytes + node.peers.taken.bytes
}

#[test]
fn each_node_has_one_engine_and_all_caches_are_one() {
    let ranks = Ranks::contiguous(2, 2);
    let (total, metrics) = run((240, 110, 4), &ranks, &ranks.nodes(LIMIT), |_| {});
    let read = source_bytes(&metrics);
    assert!(read <= total + total / 50, "{read} of {total}");
    for node in &metrics {
        assert_eq!(node.peers.nodes, 1, "the other node, and not three other ranks");
        assert!(exchanged(node) > 0);
    }
}

#[test]
fn ranks_that_are_not_counted_node_after_node_get_their_own_order() {
    let (ranks, epochs) = (Ranks::in_turn(3, 2), 4);
    let (total, metrics) = run((270, 60, epochs), &ranks, &ranks.nodes(LIMIT), |_| {});
    let read = source_bytes(&metrics);
    let bound = total + u64::from(epochs - 1) * (total - total * 60 / 100);
    assert!(read <= bound + u64::from(epochs - 1) * total / 20, "{read}, bound {bound}");
}

/// Not a test of its own: the process of an engine.
#[test]
fn as_an_engine() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let listener = UnixListener::bind(&socket).unwrap();
    let cache = std::env::var(KEPT_CACHE).ok().map(|cache| cache.parse().unwrap());
    serve(&listener, cache.map_or_else(ServerOptions::default, kept)).unwrap();
}

/// The options of an engine that outlives jobs.
fn kept(cache: u64) -> ServerOptions {
    ServerOptions { stays: true, engine: Some(spec(cache)) }
}

/// A node engine that is a process, and does not outlive the test.
struct Process {
    child: Child,
    socket: PathBuf,
}

impl Process {
    fn start(folder: &Path, node: usize, kept_cache: Option<u64>) -> Self {
        let socket = folder.join(format!("{node}.sock"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "as_an_engine", "--nocapture", "--test-threads=1"]);
        command.env(SOCKET, &socket);
        if let Some(cache) = kept_cache {
            command.env(KEPT_CACHE, cache.to_string());
        }
        let child = command.spawn().unwrap();
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
    for (killed, is_kept) in [(0, false), (1, false), (0, true), (1, true)] {
        let folder = tempfile::tempdir().unwrap();
        let (samples, epochs) = (240, 4);
        let files = Arc::new(Files::new(samples));
        let cache = files.total() * 55 / 100;
        let start = |node| Process::start(folder.path(), node, is_kept.then_some(cache));
        let engines: Vec<_> = (0..2).map(start).collect();
        let sockets: Vec<_> = engines.iter().map(|engine| engine.socket.clone()).collect();
        let ranks = Ranks::contiguous(2, 2);
        let met = meet(&sockets, &ranks.nodes(LIMIT));
        let pid = rustix::process::Pid::from_raw(engines[killed].child.id().cast_signed()).unwrap();
        let kill = move |step| {
            if step == 35 {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            }
        };
        let seen = read_all(&files, &sockets, (met.run, &ranks), (cache, epochs), kill);
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
        let start = |node| Process::start(folder.path(), 2 * killed + node, None);
        let mut engines = [start(0), start(1)];
        let sockets = engines.each_ref().map(|engine| engine.socket.clone());
        let Met { run, connections, .. } = meet(&sockets, &Ranks::contiguous(2, 1).nodes(LIMIT));
        engines[killed].child.kill().unwrap();
        let files = Files::new(20);
        let orders = orders(20, 1 - killed as u32, 2, BATCH);
        let (spec, job) = (spec(0), files.job(1));
        let connection = &connections[1 - killed];
        let place = JobPlace { run, ..place(0, 1) };
        let error = connection.start(place, &spec, &job, &files.recipe, orders).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Lost);
        assert!(error.to_string().contains(&format!("rank {killed} ended before")), "{error}");
    }
}

#[test]
fn a_node_that_cannot_start_a_job_tells_the_ranks_of_all_nodes_why() {
    let ranks = Ranks::contiguous(2, 1);
    let servers: Vec<_> = (0..2).map(|_| Server::new(ServerOptions::default())).collect();
    let Met { run, connections, .. } = meet(&sockets(&servers), &ranks.nodes(LIMIT));
    let place = JobPlace { run, ..place(0, 1) };
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
                connection.start(place, &spec, &files.job(1), &files.recipe, orders).unwrap_err()
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

/// Lets engines try to meet, and returns why each cannot.
fn refusals(specs: &[NodesSpec]) -> Vec<String> {
    let servers: Vec<_> = specs.iter().map(|_| Server::new(ServerOptions::default())).collect();
    let (connections, _, joined) = try_to_meet(&sockets(&servers), specs);
    drop(connections);
    for server in servers {
        server.end();
    }
    joined.into_iter().map(|joined| joined.unwrap_err().to_string()).collect()
}

#[test]
fn engines_with_different_keys_do_not_meet() {
    let ranks = Ranks::contiguous(2, 2);
    let mut specs = ranks.nodes(Duration::from_millis(300));
    specs[1].access.key = JobKey::random().unwrap();
    for error in refusals(&specs) {
        assert!(error.contains("cannot meet those of the other nodes"), "{error}");
        let secrets = specs.iter().map(|spec| spec.access.key.to_text());
        assert!(secrets.into_iter().all(|secret| !error.contains(&secret)), "{error}");
    }
}

#[test]
fn engines_that_are_given_certificates_exchange_samples_under_tls_alone() {
    let (ranks, authority) = (Ranks::contiguous(2, 2), Authority::new());
    let specs = under(ranks.nodes(LIMIT), |node| Some(tls(&authority, node)));
    let speak_tls = |met: &Met| {
        let place = met.meeting.parse().unwrap();
        let addresses = ask(&place, &specs[0].access.key, ADDRESSES, LIMIT).unwrap();
        assert_eq!(addresses.len(), 2);
        for address in addresses {
            let address = Address::from_bytes(&address.unwrap()).unwrap();
            assert!(address.unix.is_none(), "a Unix socket has no TLS");
            let mut stream = TcpStream::connect(address.tcp).unwrap();
            stream.write_all(&[0; 64]).unwrap();
            let mut answer = [0; 2];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [21, 3], "an alert of TLS to what is no TLS");
        }
    };
    let (total, metrics) = run((240, 110, 4), &ranks, &specs, speak_tls);
    let read = source_bytes(&metrics);
    assert!(read <= total + total / 50, "{read} of {total}");
    assert!(metrics.iter().all(|node| exchanged(node) > 0), "{metrics:?}");
}

#[test]
fn an_engine_without_the_certificates_of_the_others_does_not_meet_them() {
    let (ranks, authority) = (Ranks::contiguous(2, 2), Authority::new());
    for without in [0, 1] {
        let of_node = |node| (node != without).then(|| tls(&authority, node));
        let errors = refusals(&under(ranks.nodes(LIMIT), of_node));
        assert!(errors.iter().all(|error| error.contains("TLS")), "{errors:?}");
    }
    let missing = |node| {
        let given = tls(&authority, node);
        let key = if node == 1 { "/nowhere/node.key".into() } else { given.key };
        Some(Tls { key, ..given })
    };
    let errors = refusals(&under(ranks.nodes(Duration::from_secs(2)), missing));
    assert!(errors[1].contains("/nowhere/node.key"), "{errors:?}");
}

#[test]
fn an_engine_with_a_certificate_of_another_authority_gets_no_sample_and_gives_none() {
    let ranks = Ranks::contiguous(2, 2);
    let authorities = [Authority::new(), Authority::new()];
    let of_node = |node: u32| Some(tls(&authorities[node as usize], node));
    let specs = under(ranks.nodes(LIMIT), of_node);
    let (total, metrics) = run((60, 110, 2), &ranks, &specs, |_| {});
    assert!(metrics.iter().all(|node| exchanged(node) == 0), "{metrics:?}");
    assert!(source_bytes(&metrics) >= total);
}

/// The sockets that a process has open.
fn open_sockets(engine: &Process) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", engine.child.id())).unwrap();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn engines_that_outlive_jobs_are_peers_in_each_and_the_next_one_finds_their_caches() {
    let files = Arc::new(Files::new(240));
    let total = files.total();
    // An eighth of each quota is left to other jobs, and space in memory is rounded.
    let servers: Vec<_> = (0..2).map(|_| Server::new(kept(total * 7 / 10))).collect();
    let sockets = sockets(&servers);
    let mut read = vec![];
    // Twice the same ranks, and then others on each node.
    for ranks in [Ranks::contiguous(2, 2), Ranks::contiguous(2, 2), Ranks::in_turn(2, 2)] {
        let met = meet(&sockets, &ranks.nodes(LIMIT));
        train(&files, &sockets, (met.run, &ranks), (0, 3));
        let metrics = metrics(&met);
        assert!(metrics.iter().all(|node| node.peers.nodes == 1 && exchanged(node) > 0));
        read.push(source_bytes(&metrics));
        // The caches are there for the next job when this one has ended.
        for engine in &met.connections {
            while !engine.status().unwrap().jobs.is_empty() {
                std::thread::yield_now();
            }
        }
    }
    assert!(read[0] <= total + total / 50, "{read:?} of {total}");
    assert_eq!(read[1..], [read[0]; 2], "of {total}");
    let alone = Ranks::contiguous(1, 2);
    let run = RUNS.fetch_add(1, Ordering::Relaxed) + 1;
    train(&files, &sockets[..1], (run, &alone), (0, 1));
    stop(servers);
}

/// Ends engines that outlive jobs.
fn stop(servers: Vec<Server>) {
    for server in servers {
        NodeConnection::open(&server.socket).unwrap().stop().unwrap();
        server.end();
    }
}

#[test]
fn jobs_that_run_at_once_on_engines_that_outlive_them_get_their_own_orders() {
    let files = Arc::new(Files::new(240));
    let total = files.total();
    let servers: Vec<_> = (0..2).map(|_| Server::new(kept(total * 3 / 4))).collect();
    let sockets = sockets(&servers);
    let all = [Ranks::contiguous(2, 2), Ranks::in_turn(2, 2), Ranks::contiguous(2, 1)];
    let jobs: Vec<_> =
        all.into_iter().map(|ranks| (meet(&sockets, &ranks.nodes(LIMIT)), ranks)).collect();
    std::thread::scope(|scope| {
        for (met, ranks) in &jobs {
            let (files, sockets) = (&files, &sockets);
            scope.spawn(move || train(files, sockets, (met.run, ranks), (0, 3)));
        }
    });
    drop(jobs);
    stop(servers);
}

#[test]
fn engines_that_outlive_jobs_with_different_numbers_of_caches_are_refused_in_a_sentence() {
    let of_caches = |count| {
        let engine = EngineSpec { tiers: vec![(None, 1 << 16); count], ..spec(0) };
        Server::new(ServerOptions { stays: true, engine: Some(engine) })
    };
    let servers = vec![of_caches(1), of_caches(2)];
    let Met { run, connections, .. } =
        meet(&sockets(&servers), &Ranks::contiguous(2, 1).nodes(LIMIT));
    let (place, files) = (JobPlace { run, ..place(0, 1) }, Files::new(20));
    let errors: Vec<EngineError> = std::thread::scope(|scope| {
        let start = |(rank, connection): (u32, &Arc<NodeConnection>)| {
            let (connection, files) = (connection.clone(), &files);
            scope.spawn(move || {
                let (orders, job) = (orders(20, rank, 2, BATCH), files.job(1));
                connection.start(place, &spec(0), &job, &files.recipe, orders).unwrap_err()
            })
        };
        let threads: Vec<_> = (0..).zip(&connections).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for error in errors {
        assert!(error.to_string().contains("the number of cache tiers"), "{error}");
    }
    drop(connections);
    stop(servers);
}

#[test]
fn an_engine_that_outlives_a_job_keeps_no_connection_with_the_other_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let files = Arc::new(Files::new(60));
    let start = |node| Process::start(folder.path(), node, Some(files.total()));
    let engines: Vec<_> = (0..2).map(start).collect();
    let sockets: Vec<_> = engines.iter().map(|engine| engine.socket.clone()).collect();
    // A session that says nothing yet.
    let before: Vec<_> = engines.iter().map(open_sockets).collect();
    let ranks = Ranks::contiguous(2, 1);
    let met = meet(&sockets, &ranks.nodes(LIMIT));
    train(&files, &sockets, (met.run, &ranks), (0, 2));
    assert!(engines.iter().map(open_sockets).zip(&before).all(|(now, before)| now > *before));
    drop(met);
    for (engine, before) in engines.iter().zip(before) {
        while open_sockets(engine) > before {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

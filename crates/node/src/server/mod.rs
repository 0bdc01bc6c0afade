//! The process of a node engine.
//!
//! One thread accepts connections. Each connection has a thread that reads its messages
//! ([`session`]); each rank of a job has two more, one that reads and one that sends batches
//! ([`lane`]). A job starts when all of its ranks have attached ([`gathering`]), together with the
//! engines of the other nodes, if there are any ([`nodes`]).

mod gathering;
mod lane;
mod nodes;
mod orders;
mod run;
mod session;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belady_base::fork::OwnDescriptor;
use belady_base::sync::{Arc, Mutex, lock};
use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{Engine, EngineConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::message::{NodeJobId, NodeStatus};
use crate::spec::EngineSpec;
use gathering::Gatherings;
use nodes::RunNodes;

/// How often the server checks whether to end.
const TICK: Duration = Duration::from_millis(20);
/// A process that no rank has connected to within this time ends.
const FIRST_CONNECTION: Duration = Duration::from_mins(2);

/// How a node engine runs.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Whether it stays when its last rank has gone.
    pub stays: bool,
    /// The engine of all jobs; `None` for one for each engine that a run asks for.
    pub engine: Option<EngineSpec>,
}

/// What the threads of the process share.
#[derive(Debug)]
struct NodeServer {
    options: ServerOptions,
    /// The engine of all jobs, if the options describe one.
    kept: Option<Arc<Engine>>,
    /// The engines of runs, by run and number.
    engines: Mutex<HashMap<(u64, u32), Arc<Engine>>>,
    /// How many members each run has.
    runs: Mutex<HashMap<u64, u32>>,
    gatherings: Gatherings,
    nodes: RunNodes,
    /// Processes that have said hello and are connected.
    processes: Mutex<u32>,
    /// The datasets of running jobs, by lane.
    lanes: Mutex<Vec<(NodeJobId, String)>>,
    was_used: AtomicBool,
    is_stopping: AtomicBool,
}

/// Serves at the socket that is the standard input, and removes its path at the end.
///
/// # Errors
/// If the standard input is not a socket, or as [`serve`].
pub fn serve_stdin(socket: &Path, options: ServerOptions) -> Result<(), String> {
    let listener = std::io::stdin().as_fd().try_clone_to_owned();
    let listener = listener.and_then(|fd| OwnDescriptor::of(UnixListener::from(fd)));
    let listener = listener.map_err(|error| error.to_string())?;
    let served = serve(&listener, options);
    // An engine of the same name may have taken its place.
    let _ = std::fs::remove_file(socket);
    served
}

/// Serves ranks until the last one has gone, or, if the process stays, until it is told to stop.
///
/// # Errors
/// If the engine of the options cannot be started.
pub fn serve(listener: &UnixListener, options: ServerOptions) -> Result<(), String> {
    let kept = options.engine.as_ref().map(|spec| {
        let config = EngineConfig { several_jobs: true, ..spec.config()? };
        Engine::new(config).map(Arc::new).map_err(|error| error.to_string())
    });
    let server = Arc::new(NodeServer {
        kept: kept.transpose()?,
        options,
        engines: Mutex::default(),
        runs: Mutex::default(),
        gatherings: Gatherings::default(),
        nodes: RunNodes::default(),
        processes: Mutex::new(0),
        lanes: Mutex::default(),
        was_used: AtomicBool::new(false),
        is_stopping: AtomicBool::new(false),
    });
    let began = Instant::now();
    let tick = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
    while !server.is_over(began.elapsed()) {
        let mut polled = [PollFd::new(listener, PollFlags::IN)];
        if poll(&mut polled, Some(&tick)).unwrap_or(0) == 0 {
            continue;
        }
        // The connection may be gone already.
        let Ok((stream, _)) = listener.accept() else { continue };
        let server = server.clone();
        let session = std::thread::Builder::new().name("belady-session".into());
        if let Err(error) = session.spawn(move || session::run(&server, stream)) {
            tracing::warn!("cannot serve a process: {error}");
        }
    }
    server.nodes.close();
    Ok(())
}

impl NodeServer {
    fn is_over(&self, age: Duration) -> bool {
        if self.is_stopping.load(Ordering::Acquire) {
            return true;
        }
        let was_used = self.was_used.load(Ordering::Acquire);
        let is_unused = *lock(&self.processes) == 0 && (was_used || age > FIRST_CONNECTION);
        is_unused && !self.options.stays
    }

    /// Returns the metrics of an engine, if it runs.
    fn metrics(&self, run: u64, number: u32) -> Option<MetricsSnapshot> {
        let of_run = || lock(&self.engines).get(&(run, number)).cloned();
        let engine = self.kept.clone().or_else(of_run)?;
        Some(engine.metrics().snapshot())
    }

    /// Returns the engine of a run, and starts it if need be.
    fn engine(&self, run: u64, number: u32, spec: &EngineSpec) -> Result<Arc<Engine>, String> {
        let mut engines = lock(&self.engines);
        if let Some(engine) = engines.get(&(run, number)) {
            return Ok(engine.clone());
        }
        let nodes = self.nodes.of_run(run);
        let nodes = nodes.map(|nodes| (nodes.cluster, nodes.numbering.to_vec()));
        let engine = match (&self.kept, nodes) {
            (Some(kept), None) => return Ok(kept.clone()),
            (Some(kept), Some((cluster, numbering))) => kept.among(cluster, numbering),
            (None, nodes) => {
                let (peers, rank_numbers) = nodes.unzip();
                let rank_numbers = rank_numbers.unwrap_or_default();
                Engine::new(EngineConfig { peers, rank_numbers, ..spec.config()? })
            }
        };
        let engine = Arc::new(engine.map_err(|error| error.to_string())?);
        Ok(engines.entry((run, number)).or_insert(engine).clone())
    }

    fn status(&self) -> NodeStatus {
        let mut jobs: Vec<(NodeJobId, String, u32)> = vec![];
        for (key, name) in lock(&self.lanes).iter() {
            match jobs.iter_mut().find(|(other, ..)| other == key) {
                Some((.., ranks)) => *ranks += 1,
                None => jobs.push((*key, name.clone(), 1)),
            }
        }
        let engines: Vec<Arc<Engine>> = match &self.kept {
            Some(kept) => vec![kept.clone()],
            None => lock(&self.engines).values().cloned().collect(),
        };
        NodeStatus {
            pid: std::process::id(),
            stays: self.options.stays,
            processes: *lock(&self.processes),
            jobs: jobs.into_iter().map(|(_, name, ranks)| (name, ranks)).collect(),
            engines: engines.iter().map(|engine| engine.metrics().snapshot()).collect(),
        }
    }
}

//! A rank's side of a node engine.
//!
//! A [`NodeConnection`] belongs to the process, a [`NodeJob`] to one loader. The job's *data*
//! connection is read by the thread that takes batches, so a batch passes no other thread; any
//! thread may send on it. A thread answers the engine's questions about orders.

mod job;
mod loader;
mod monitor;
mod start;
mod transformed;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::OrderProvider;
use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{EngineError, ErrorClass, JobConfig};
use rustix::net::sockopt::socket_peercred;

use crate::error::NodeError;
use crate::message::{
    Attachment, FromEngine, NodeJobId, NodeStatus, OrdersSpec, PROTOCOL, ToEngine,
};
use crate::message_socket::MessageSocket;
use crate::nodes::NodesSpec;
use crate::spec::{DatasetRecipe, EngineSpec, JobSpec};

pub use job::NodeJob;
pub use loader::NodeLoader;
pub use monitor::NodeMonitor;
pub use transformed::NodeTransformed;

/// How long an engine may take to answer a greeting or a query: it may be starting on a machine
/// that swaps.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long engines that are all told to meet may take. One that was killed before it came to the
/// rendezvous is not noticed there.
const MEETING: Duration = Duration::from_mins(1);

/// Where a job stands among those of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPlace {
    /// Drawn once for the processes of the run.
    pub run: u64,
    /// The number of the engine in its process.
    pub engine: u32,
    /// The number of the job on that engine.
    pub job: u32,
    /// The rank among those of this node.
    pub rank: u32,
    /// How many ranks of the job are on this node.
    pub ranks: u32,
}

/// The connection of this process to a node engine.
#[derive(Debug)]
pub struct NodeConnection {
    connection: Mutex<MessageSocket>,
    socket: PathBuf,
    pid: u32,
}

impl NodeConnection {
    /// Connects to the engine that listens at a path.
    ///
    /// # Errors
    /// If none does, or it is another user's or of another version.
    pub fn open(socket: &Path) -> Result<Self, NodeError> {
        let unreachable = |error| NodeError::Unreachable { path: socket.to_owned(), error };
        let stream = UnixStream::connect(socket).map_err(unreachable)?;
        let peer = socket_peercred(&stream).map_err(|error| unreachable(error.into()))?;
        let own = rustix::process::geteuid();
        if peer.uid != own {
            let (found, own) = (peer.uid.as_raw(), own.as_raw());
            return Err(NodeError::OtherUser { path: socket.to_owned(), found, own });
        }
        let connection = MessageSocket::new(stream).map_err(unreachable)?;
        let ours = env!("CARGO_PKG_VERSION").to_owned();
        let hello = ToEngine::Hello { protocol: PROTOCOL, version: ours.clone() };
        connection.send(&hello).map_err(unreachable)?;
        match answer(&connection, PATIENCE).map_err(unreachable)? {
            FromEngine::Welcome { protocol: PROTOCOL, .. } => {}
            FromEngine::Welcome { version: theirs, .. } => {
                return Err(NodeError::OtherVersion { path: socket.to_owned(), theirs, ours });
            }
            _ => return Err(unreachable(io::ErrorKind::InvalidData.into())),
        }
        let pid = rustix::process::Pid::as_raw(Some(peer.pid)) as u32;
        Ok(Self { connection: Mutex::new(connection), socket: socket.to_owned(), pid })
    }

    /// Returns the path of the engine's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the process that listened when this was opened: the engine, or the rank that has
    /// started it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns what the engine does.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self) -> Result<NodeStatus, NodeError> {
        match self.ask(&ToEngine::Status)? {
            FromEngine::Status(status) => Ok(status),
            _ => Err(self.unreachable(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Returns the metrics of an engine of a run; nothing before its first job.
    ///
    /// # Errors
    /// If the process does not answer.
    pub fn metrics(&self, run: u64, engine: u32) -> Result<MetricsSnapshot, NodeError> {
        match self.ask(&ToEngine::Metrics { run, engine })? {
            FromEngine::Metrics(snapshot) => Ok(snapshot.map(|it| *it).unwrap_or_default()),
            _ => Err(self.unreachable(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Tells the engine which node of the job it serves. That of node 0 then listens: returns where.
    ///
    /// # Errors
    /// If it does not answer, or cannot listen.
    pub fn meet(&self, nodes: &NodesSpec) -> Result<Option<String>, NodeError> {
        match self.ask(&ToEngine::Meet(Box::new(nodes.clone())))? {
            FromEngine::Meeting(meeting) => meeting.map_err(NodeError::Nodes),
            _ => Err(self.unreachable(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Lets the engine meet those of the other nodes, where that of node 0 listens. Returns when
    /// all have met.
    ///
    /// # Errors
    /// If it does not answer, or they have not met within a minute.
    pub fn join(&self, nodes: &NodesSpec, meeting: &str) -> Result<(), NodeError> {
        let question = ToEngine::Join { run: nodes.run, meeting: meeting.to_owned() };
        match self.ask_within(&question, MEETING)? {
            FromEngine::Joined(joined) => joined.map_err(NodeError::Nodes),
            _ => Err(self.unreachable(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Ends the engine and all of its jobs.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn stop(&self) -> Result<(), NodeError> {
        self.ask(&ToEngine::Stop).map(drop)
    }

    fn ask(&self, question: &ToEngine) -> Result<FromEngine, NodeError> {
        self.ask_within(question, PATIENCE)
    }

    fn ask_within(&self, question: &ToEngine, patience: Duration) -> Result<FromEngine, NodeError> {
        let connection = lock(&self.connection);
        let asked = connection.send(question).and_then(|()| answer(&connection, patience));
        asked.map_err(|error| self.unreachable(error))
    }

    fn unreachable(&self, error: io::Error) -> NodeError {
        NodeError::Unreachable { path: self.socket.clone(), error }
    }

    /// Starts a job together with the other ranks of this node, and waits for them. Local rank 0
    /// sends the dataset. `config` has no order; `orders` knows what all ranks read.
    ///
    /// # Errors
    /// If the engine refuses the job. With [`ErrorClass::Lost`], the engine has ended.
    pub fn start(
        &self,
        place: JobPlace,
        engine: &EngineSpec,
        config: &JobConfig,
        dataset: &DatasetRecipe,
        orders: Arc<dyn OrderProvider>,
    ) -> Result<NodeLoader, EngineError> {
        let failed = |error: io::Error| EngineError::Reported {
            class: ErrorClass::Lost,
            text: NodeError::Job(error).to_string(),
        };
        let mut catalogs = vec![];
        let dataset = (place.rank == 0).then(|| dataset.spec(&mut catalogs));
        let attachment = Attachment {
            place: NodeJobId { run: place.run, engine: place.engine, job: place.job },
            rank: place.rank,
            ranks: place.ranks,
            engine: engine.clone(),
            job: JobSpec::of(config),
            dataset: dataset.transpose().map_err(failed)?,
            orders: OrdersSpec {
                ahead: orders.ahead(),
                largest_batch: orders.largest_batch(),
                first_epoch: orders.number(0),
            },
        };
        let sockets = job::JobSockets::new().map_err(failed)?;
        let mut sent: Vec<OwnedFd> = sockets.there.into_iter().map(Into::into).collect();
        sent.extend(catalogs);
        let borrowed: Vec<BorrowedFd<'_>> = sent.iter().map(AsFd::as_fd).collect();
        let message = ToEngine::Attach(Box::new(attachment));
        lock(&self.connection).send_with(&message, &borrowed).map_err(failed)?;
        drop(sent);
        start::wait(sockets.here, orders, config.source.clone(), self.pid)
    }
}

fn answer(connection: &MessageSocket, patience: Duration) -> io::Result<FromEngine> {
    if !connection.wait(patience)? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let answer = connection.receive()?;
    answer.map(|(answer, _)| answer).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

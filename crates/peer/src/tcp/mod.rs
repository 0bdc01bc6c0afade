//! The transport over TCP, and over Unix sockets between nodes on one machine.
//!
//! A call takes a connection to the peer (`pool`) or opens one (`dial`), sends its request in a
//! frame ([`frame`]) and reads the replies straight to their destination (`call`). On the other
//! side a thread serves the connection (`accept`): it passes each request to the dispatcher and
//! writes the replies straight from the memory of tiers ([`serve`]).
//!
//! Only nodes that have proved that they have the job's key are served ([`crate::auth`],
//! `hello`). TLS encrypts the traffic if the user has certificates (`tls`).
//!
//! A restarted node has another port, and tells it to every node that it connects to. The newest
//! known address of a node is used.

mod accept;
mod address;
mod call;
mod dial;
pub mod frame;
mod hello;
mod pool;
mod serve;
mod shared;
mod socket;
mod stream;
mod tls;
mod unix;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant, SystemTime};

use belady_base::fork::OwnDescriptor;
use belady_base::open_files::{self, IdleDescriptors};
use belady_base::sync::{Arc, Mutex, lock};

use accept::{Acceptor, Limits, Listeners};
pub use address::{Address, MachineId};
use call::Connection;
use hello::PeerHello;
use pool::{Lease, Leased, NoLease};
use serve::Conversation;
use shared::{MemoryBudget, NodeShared};
pub use stream::TalkError;
pub use tls::Tls;
use unix::UnixSocket;

use crate::dispatcher::Dispatcher;
use crate::key::JobKey;
use crate::message::{Channel, GetRequest, Notice, Push, PushOutcome, Receive};
use crate::rendezvous::JobWorld;
use crate::transport::Transport;
use crate::{NodeId, PeerError};

/// Memory for large pushes of all peers at once. A larger push takes all of it.
const PUT_MEMORY: usize = 128 << 20;
/// A peer that accepts nothing, or stops within a message, for this long is given up.
const STALL: Duration = Duration::from_secs(30);
/// How long closing waits for serving threads.
const GRACE: Duration = Duration::from_secs(2);
/// Connections that may be unauthenticated at once.
const UNAUTHENTICATED: usize = 64;
/// Connections of one peer that are served: more than it opens, since those that it has given up
/// may still be busy here.
const EACH: usize = 16;

/// Files that a process opens beside connections: its own, listeners, caches.
const OWN_FILES: u64 = 24;

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    /// This node's rank and the number of ranks.
    pub world: JobWorld,
    /// The job's key.
    pub key: JobKey,
    /// Tells jobs with the same key apart; the same on all nodes.
    pub job: u64,
    /// The address of the interface that the job uses. The other nodes must be able to connect to
    /// it.
    pub listen: IpAddr,
    /// The port to listen at; 0 picks a free one.
    pub port: u16,
    /// Whether nodes on the same machine use Unix sockets.
    pub unix: bool,
    /// Certificates for TLS, if it is used.
    pub tls: Option<Tls>,
    /// The most connections to each peer.
    pub connections: usize,
}

impl TcpConfig {
    /// Returns the configuration with default values for the rest.
    pub fn new(world: JobWorld, key: JobKey, listen: IpAddr) -> Self {
        Self { world, key, job: 0, listen, port: 0, unix: true, tls: None, connections: 4 }
    }
}

/// The transport over TCP of one node.
#[derive(Debug)]
pub struct TcpTransport {
    shared: Arc<NodeShared>,
    acceptor: Mutex<Option<Acceptor>>,
}

impl TcpTransport {
    /// Listens, and accepts connections. The addresses of peers are not known yet.
    pub fn start(config: TcpConfig) -> Result<Arc<Self>, PeerError> {
        Self::start_with(config, Limits { unauthenticated: UNAUTHENTICATED, each: EACH })
    }

    fn start_with(config: TcpConfig, limits: Limits) -> Result<Arc<Self>, PeerError> {
        let TcpConfig { world, key, job, listen, port, unix, tls, connections } = config;
        let tls = tls.map(|tls| tls.load()).transpose()?;
        let (tcp, local) = bind((listen, port).into())?;
        let unix = if unix { open_unix() } else { None };
        let address = Address {
            incarnation: now(),
            tcp: local,
            unix: unix.as_ref().map(|acceptor| acceptor.path().to_owned()),
            machine: MachineId::this().unwrap_or(MachineId::UNKNOWN),
        };
        let hello = PeerHello { job, world, address };
        let connections = connections.min(affordable(world)).max(1);
        let shared = Arc::new(NodeShared::new(key, hello, tls, connections));
        let spare: Arc<dyn IdleDescriptors> = shared.clone();
        open_files::register(Arc::downgrade(&spare));
        let acceptor = Acceptor::open(shared.clone(), Listeners { tcp, unix }, limits)
            .map_err(|error| cannot_listen(local, &error))?;
        Ok(Arc::new(Self { shared, acceptor: Mutex::new(Some(acceptor)) }))
    }

    /// Returns the address by which the others reach this node.
    pub fn address(&self) -> Address {
        self.shared.hello.address.clone()
    }

    /// Sets a peer's address, unless a newer one is known.
    pub fn set_address(&self, peer: NodeId, address: Address) {
        if let Some(pool) = self.shared.peers.get(peer as usize) {
            pool.learn(address);
        }
    }

    /// Makes a call, and repeats it on a new connection if a pooled one was stale.
    fn call<T>(
        &self,
        peer: NodeId,
        deadline: Instant,
        mut say: impl FnMut(&mut Connection) -> Result<T, TalkError>,
    ) -> Result<T, PeerError> {
        let shared = &*self.shared;
        shared.check()?;
        let began = Instant::now();
        let limit = deadline.saturating_duration_since(began);
        let told = |error: PeerError| match error {
            _ if shared.live.is_closed() => PeerError::Left,
            PeerError::Unreachable { error, .. } | PeerError::Closed { error, .. }
                if error.kind() == io::ErrorKind::TimedOut =>
            {
                PeerError::TimedOut { peer, limit }
            }
            other => other,
        };
        let mut fresh = false;
        loop {
            let (lease, found) = self.lease(peer, deadline, fresh).map_err(told)?;
            let is_used = matches!(found, Leased::Free(_));
            let mut connection = match found {
                Leased::Free(connection) => connection,
                Leased::To(address) => {
                    dial::dial(shared, peer, &address, deadline).map_err(told)?
                }
            };
            connection.begin(began, limit);
            let error = match say(&mut connection) {
                Ok(outcome) => {
                    lease.give_back(connection);
                    return Ok(outcome);
                }
                Err(TalkError::Io(error)) => error,
                Err(why) => {
                    return Err(told(PeerError::Garbled { peer, what: why.to_string() }));
                }
            };
            let is_stale = is_used && !connection.answered && !fresh;
            if !is_stale || error.kind() == io::ErrorKind::TimedOut {
                return Err(told(PeerError::Closed { peer, error }));
            }
            fresh = true;
        }
    }

    fn lease(
        &self,
        peer: NodeId,
        deadline: Instant,
        fresh: bool,
    ) -> Result<(Lease<'_>, Leased), PeerError> {
        let nowhere = |what: &str| {
            let error = io::ErrorKind::NotFound.into();
            PeerError::Unreachable { peer, address: what.to_owned(), error }
        };
        let pool = self.shared.peers.get(peer as usize);
        let pool = pool.ok_or_else(|| nowhere("any address, since the job has fewer ranks"))?;
        pool.take(deadline, fresh).map_err(|none| match none {
            NoLease::NoAddress => nowhere("an address that is not known yet"),
            NoLease::TimedOut => PeerError::Closed { peer, error: io::ErrorKind::TimedOut.into() },
        })
    }
}

/// Serves an authenticated rank over any byte stream, until the other side ends.
pub fn serve<S: io::Read + io::Write>(
    stream: S,
    from: NodeId,
    dispatcher: &Dispatcher,
) -> Result<(), TalkError> {
    Conversation::new(stream, from, dispatcher, &MemoryBudget::new(PUT_MEMORY)).serve()
}

/// Returns how many connections to each peer fit into an eighth of the descriptors. The peers open
/// as many to this node.
fn affordable(world: JobWorld) -> usize {
    let (limit, others) = (open_files::limit(), u64::from(world.size.max(2) - 1));
    let (needed, allowed) = (OWN_FILES + 2 * others, limit - limit / 4);
    if allowed < needed {
        tracing::warn!(
            "this process may open {limit} files, too few for connections with {others} other \
             ranks: samples of ranks that it cannot reach are read from the source; allow {} files \
             (ulimit -n)",
            needed + needed / 3 + 1
        );
    }
    usize::try_from(limit / 8 / others).unwrap_or(usize::MAX)
}

fn open_unix() -> Option<UnixSocket> {
    let opened = UnixSocket::open();
    let told = |error: &io::Error| {
        tracing::warn!("cannot open a Unix socket, so ranks on this machine use TCP: {error}");
    };
    opened.inspect_err(told).ok()
}

fn bind(to: SocketAddr) -> Result<(OwnDescriptor<TcpListener>, SocketAddr), PeerError> {
    if to.ip().is_unspecified() {
        let what = format!(
            "{} is every interface, and no address that others can connect to: give the address of \
             the interface that the job uses",
            to.ip()
        );
        return Err(PeerError::Setup(what));
    }
    let bound = TcpListener::bind(to).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        Ok((OwnDescriptor::of(listener)?, local))
    });
    bound.map_err(|error| cannot_listen(to, &error))
}

fn cannot_listen(to: SocketAddr, error: &io::Error) -> PeerError {
    PeerError::Setup(format!(
        "cannot listen at {to}: {error}; give an address of this machine and a port that is free"
    ))
}

/// Returns a number that is higher for nodes that start later, as well as clocks can tell.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Transport for TcpTransport {
    fn get(
        &self,
        peer: NodeId,
        request: &GetRequest<'_>,
        deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        self.call(peer, deadline, |connection| connection.get(request, into))
    }

    fn put(
        &self,
        peer: NodeId,
        channel: Channel,
        pushes: &[Push<'_>],
        deadline: Instant,
    ) -> Result<Vec<PushOutcome>, PeerError> {
        self.call(peer, deadline, |connection| {
            let mut outcomes = Vec::with_capacity(pushes.len());
            connection.put(channel, pushes, &mut outcomes)?;
            Ok(outcomes)
        })
    }

    fn tell(
        &self,
        peer: NodeId,
        channel: Channel,
        notice: &Notice,
        deadline: Instant,
    ) -> Result<(), PeerError> {
        self.call(peer, deadline, |connection| connection.tell(channel, notice))
    }

    fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.shared.dispatcher
    }

    fn is_near(&self, peer: NodeId) -> bool {
        let address = self.shared.peers.get(peer as usize).and_then(pool::ConnectionPool::address);
        address.is_some_and(|address| self.shared.hello.address.machine.is_same(address.machine))
    }

    fn close(&self) {
        if self.shared.is_forked() || !self.shared.live.close() {
            return;
        }
        self.shared.peers.iter().for_each(pool::ConnectionPool::close);
        let acceptor = lock(&self.acceptor).take();
        if let Some(acceptor) = acceptor {
            acceptor.close();
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}

//! Nodes that talk over TCP, or over Unix sockets on one machine.
//!
//! A call takes a connection to the peer ([`pool`]), opens one if need be ([`dial`]), says what it wants
//! in frames ([`frame`]) and reads the replies straight to where they are wanted ([`call`]). On the other
//! side the connection has a thread ([`accept`]) that takes each request to the desk and writes what it
//! gets from there, straight from the memory of tiers ([`serve`]).
//!
//! Nobody is served who has not proved that he has the job's key ([`crate::auth`], [`hello`]). TLS
//! hides what is said, if the user has certificates ([`tls`]).
//!
//! Where a node is can change: after a restart it has another port, and says so to whomever it
//! connects to. The newest that is known of it counts.

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
mod tls;
mod unix;
mod wire;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant, SystemTime};

use belady_data::fork::Own;
use belady_data::open_files::{self, Spare};
use belady_data::sync::{Arc, Mutex, lock};

use accept::{Door, Limits, Listeners};
pub use address::{Address, Machine};
use call::Connection;
use hello::Hello;
use pool::{Found, Lease, NoLease};
use serve::Conversation;
use shared::{Budget, Shared};
pub use tls::Tls;
use unix::UnixDoor;
pub use wire::TalkError;

use crate::desk::{Channel, Desk};
use crate::key::Key;
use crate::meet::World;
use crate::transport::{Notice, Push, Receive, Request, Taken, Transport};
use crate::{NodeId, PeerError};

/// For large pushes of all peers, at once. One that is larger has all of it to itself.
const PUT_MEMORY: usize = 128 << 20;
/// A peer that takes nothing, or stops in the midst of a word, for so long is given up.
const STALL: Duration = Duration::from_secs(30);
/// Threads that serve are waited for so long when the node leaves.
const GRACE: Duration = Duration::from_secs(2);
/// Visitors that have not proved themselves.
const VISITORS: usize = 64;
/// Connections of one peer that are served: more than it opens, since those that it has given up may
/// still be busy here.
const EACH: usize = 16;

/// Files that a process has open beside connections: its own, listeners, caches.
const OWN_FILES: u64 = 24;

/// How a node takes part.
#[derive(Clone, Debug)]
pub struct TcpConfig {
    pub world: World,
    /// Whoever has it is of the job.
    pub key: Key,
    /// Tells jobs apart that have the same key; the same on all nodes.
    pub job: u64,
    /// The address of the interface that the job uses. Others must be able to connect to it.
    pub listen: IpAddr,
    /// 0: one that is free.
    pub port: u16,
    /// Whether nodes on the same machine use Unix sockets.
    pub unix: bool,
    pub tls: Option<Tls>,
    /// To each peer, at most.
    pub connections: usize,
}

impl TcpConfig {
    pub fn new(world: World, key: Key, listen: IpAddr) -> Self {
        Self { world, key, job: 0, listen, port: 0, unix: true, tls: None, connections: 4 }
    }
}

/// A node on the network.
#[derive(Debug)]
pub struct TcpTransport {
    shared: Arc<Shared>,
    door: Mutex<Option<Door>>,
}

impl TcpTransport {
    /// Listens, and lets others in. Nobody is known yet.
    pub fn start(config: TcpConfig) -> Result<Arc<Self>, PeerError> {
        Self::start_with(config, Limits { visitors: VISITORS, each: EACH })
    }

    fn start_with(config: TcpConfig, limits: Limits) -> Result<Arc<Self>, PeerError> {
        let TcpConfig { world, key, job, listen, port, unix, tls, connections } = config;
        let tls = tls.map(|tls| tls.load()).transpose()?;
        let (tcp, local) = bind((listen, port).into())?;
        let unix = if unix { open_unix() } else { None };
        let address = Address {
            incarnation: now(),
            tcp: local,
            unix: unix.as_ref().map(|door| door.path().to_owned()),
            machine: Machine::this().unwrap_or(Machine::UNKNOWN),
        };
        let hello = Hello { job, world, address };
        let connections = connections.min(affordable(world)).max(1);
        let shared = Arc::new(Shared::new(key, hello, tls, connections));
        let spare: Arc<dyn Spare> = shared.clone();
        open_files::register(Arc::downgrade(&spare));
        let door = Door::open(shared.clone(), Listeners { tcp, unix }, limits)
            .map_err(|error| cannot_listen(local, &error))?;
        Ok(Arc::new(Self { shared, door: Mutex::new(Some(door)) }))
    }

    /// What the others have to know to reach this node.
    pub fn address(&self) -> Address {
        self.shared.hello.address.clone()
    }

    /// Where a peer is, unless something newer is known.
    pub fn set_address(&self, peer: NodeId, address: Address) {
        if let Some(pool) = self.shared.peers.get(peer as usize) {
            pool.learn(address);
        }
    }

    /// Makes a call on some connection; once more on a fresh one if the first was stale.
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
            let is_used = matches!(found, Found::Free(_));
            let mut connection = match found {
                Found::Free(connection) => connection,
                Found::To(address) => dial::dial(shared, peer, &address, deadline).map_err(told)?,
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
    ) -> Result<(Lease<'_>, Found), PeerError> {
        let nowhere = |what: &str| {
            let error = io::ErrorKind::NotFound.into();
            PeerError::Unreachable { peer, address: what.to_owned(), error }
        };
        let pool = self.shared.peers.get(peer as usize);
        let pool = pool.ok_or_else(|| nowhere("any address, since there are fewer ranks"))?;
        pool.take(deadline, fresh).map_err(|none| match none {
            NoLease::NoAddress => nowhere("an address that it has not told yet"),
            NoLease::TimedOut => PeerError::Closed { peer, error: io::ErrorKind::TimedOut.into() },
        })
    }
}

/// Serves one who has proved to be this rank, over anything that carries bytes, until the other side
/// ends.
pub fn serve<S: io::Read + io::Write>(
    stream: S,
    from: NodeId,
    desk: &Desk,
) -> Result<(), TalkError> {
    Conversation::new(stream, from, desk, &Budget::new(PUT_MEMORY)).serve()
}

/// Connections to each peer that fit into an eighth of the descriptors. The others open as many to this
/// node.
fn affordable(world: World) -> usize {
    let (limit, others) = (open_files::limit(), u64::from(world.size.max(2) - 1));
    let (needed, room) = (OWN_FILES + 2 * others, limit - limit / 4);
    if room < needed {
        tracing::warn!(
            "this process may have {limit} files open, which are few for connections with {others} \
             others: samples of those that it cannot reach are read from the source. Allow it {} \
             (ulimit -n)",
            needed + needed / 3 + 1
        );
    }
    usize::try_from(limit / 8 / others).unwrap_or(usize::MAX)
}

fn open_unix() -> Option<UnixDoor> {
    let opened = UnixDoor::open();
    let told = |error: &io::Error| {
        tracing::warn!(
            "ranks on this machine talk over TCP, since there is no Unix socket: {error}"
        );
    };
    opened.inspect_err(told).ok()
}

fn bind(to: SocketAddr) -> Result<(Own<TcpListener>, SocketAddr), PeerError> {
    if to.ip().is_unspecified() {
        let what = format!(
            "{} is every interface, and no address that others can connect to: give the address of the \
             interface that the job uses",
            to.ip()
        );
        return Err(PeerError::Setup(what));
    }
    let bound = TcpListener::bind(to).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        Ok((Own::of(listener)?, local))
    });
    bound.map_err(|error| cannot_listen(to, &error))
}

fn cannot_listen(to: SocketAddr, error: &io::Error) -> PeerError {
    PeerError::Setup(format!(
        "cannot listen at {to}: {error}; give an address of this machine and a port that is free"
    ))
}

/// Higher for whoever begins later, as well as clocks can tell.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Transport for TcpTransport {
    fn get(
        &self,
        peer: NodeId,
        request: &Request<'_>,
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
    ) -> Result<Vec<Taken>, PeerError> {
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

    fn desk(&self) -> &Arc<Desk> {
        &self.shared.desk
    }

    fn is_near(&self, peer: NodeId) -> bool {
        let address = self.shared.peers.get(peer as usize).and_then(pool::Pool::address);
        address.is_some_and(|address| self.shared.hello.address.machine.is_same(address.machine))
    }

    fn close(&self) {
        if self.shared.is_forked() || !self.shared.live.close() {
            return;
        }
        self.shared.peers.iter().for_each(pool::Pool::close);
        let door = lock(&self.door).take();
        if let Some(door) = door {
            door.close();
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.close();
    }
}

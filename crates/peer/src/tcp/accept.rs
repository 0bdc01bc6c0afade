//! Accepts connections: one thread accepts, and each connection is served by a thread of its own.
//!
//! Connections that have not proved the key are few and have little time. When there are too many,
//! new ones wait, and then the oldest is closed.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_base::fork::OwnDescriptor;
use belady_base::open_files::{self, IdleDescriptors};
use belady_base::sync::{Arc, Condvar, Mutex, lock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::hello::{PeerHello, greet};
use super::serve::Conversation;
use super::shared::NodeShared;
use super::socket::{Descriptor, Limit, Socket, hang_up};
use super::stream::{PeerStream, TalkError};
use super::unix::UnixSocket;
use crate::NodeId;
use crate::auth::Role;
use crate::rate_limited_log::RateLimitedLog;
use crate::wire::WireMessage;

/// The time to prove the key.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// An unauthenticated connection is not closed before this time: a node with the key needs less.
const WAIT: Duration = Duration::from_millis(500);
/// The pause after an error that persists, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// Serving reads and sends; the handlers (disk tiers, checksums) need little more.
const STACK: usize = 512 << 10;

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most unauthenticated connections.
    pub unauthenticated: usize,
    /// The most connections of one rank.
    pub each: usize,
}

/// The listening sockets.
#[derive(Debug)]
pub struct Listeners {
    pub tcp: OwnDescriptor<std::net::TcpListener>,
    pub unix: Option<UnixSocket>,
}

/// The thread that accepts, and those that serve.
#[derive(Debug)]
pub struct Acceptor {
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    admission: Arc<ConnectionAdmission>,
}

/// Admits connections within the limits.
#[derive(Debug)]
struct ConnectionAdmission {
    limits: Limits,
    connections: Mutex<ServedConnections>,
    /// A connection was authenticated or has ended.
    changed: Condvar,
    log: RateLimitedLog,
}

#[derive(Debug, Default)]
struct ServedConnections {
    /// The oldest first.
    unauthenticated: VecDeque<(Instant, Weak<Descriptor>)>,
    /// Connections of each rank that are served.
    serving: Vec<usize>,
    threads: Vec<JoinHandle<()>>,
}

impl Acceptor {
    /// Starts to accept connections.
    pub fn open(
        shared: Arc<NodeShared>,
        listeners: Listeners,
        limits: Limits,
    ) -> std::io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let serving = vec![0; shared.peers.len()];
        let connections = Mutex::new(ServedConnections { serving, ..ServedConnections::default() });
        let (changed, log) = (Condvar::new(), RateLimitedLog::default());
        let admission = Arc::new(ConnectionAdmission { limits, connections, changed, log });
        let thread = {
            let (wake, admission) = (wake.clone(), admission.clone());
            let thread = std::thread::Builder::new().name("belady-accept".into());
            thread.spawn(move || accept_all(&shared, &listeners, &wake, &admission))?
        };
        Ok(Self { wake, thread, admission })
    }

    /// Waits for all threads, whose connections were shut down before; not for ever, since a
    /// handler may be stuck. The calling thread may be one of them, if it held the last reference
    /// to something.
    pub fn close(self) {
        // Cannot fail: it is the only number that is ever added.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        let own = std::thread::current().id();
        let _ = self.thread.join();
        let threads = std::mem::take(&mut lock(&self.admission.connections).threads);
        let others = threads.into_iter().filter(|thread| thread.thread().id() != own);
        let left = crate::threads::join_within(others, super::GRACE);
        if left > 0 {
            tracing::warn!(
                threads = left,
                "serving threads did not end in time and were left behind"
            );
        }
    }
}

fn accept_all(
    shared: &Arc<NodeShared>,
    listeners: &Listeners,
    wake: &OwnedFd,
    admission: &Arc<ConnectionAdmission>,
) {
    let unix = listeners.unix.as_ref().map(|door| door.listener.as_fd());
    while !shared.live.is_closed() {
        let mut waited = vec![PollFd::new(wake, PollFlags::IN)];
        waited.push(PollFd::new(&listeners.tcp, PollFlags::IN));
        waited.extend(unix.as_ref().map(|unix| PollFd::new(unix, PollFlags::IN)));
        match poll(&mut waited, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!("no rank can connect to this process any more: {error}");
                return;
            }
        }
        let ready: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        let mut failed = false;
        if ready[1] {
            failed |=
                accept_tcp(shared, listeners, admission).is_err_and(|error| !is_passing(&error));
        }
        if ready.get(2) == Some(&true) {
            failed |=
                accept_unix(shared, listeners, admission).is_err_and(|error| !is_passing(&error));
        }
        if failed {
            let pause = PAUSE.try_into().unwrap_or_default();
            let _ = poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&pause));
        }
    }
}

/// Returns whether the error concerns only the connection that could not be accepted.
fn is_passing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | ConnectionAborted | Interrupted)
}

fn accept_tcp(
    shared: &Arc<NodeShared>,
    from: &Listeners,
    admission: &Arc<ConnectionAdmission>,
) -> std::io::Result<()> {
    let (stream, address) = from.tcp.accept()?;
    stream.set_nonblocking(false)?;
    let connection = NewConnection { name: address.to_string(), is_near: false };
    admission.admit(shared, stream.into(), connection);
    Ok(())
}

fn accept_unix(
    shared: &Arc<NodeShared>,
    from: &Listeners,
    admission: &Arc<ConnectionAdmission>,
) -> std::io::Result<()> {
    let Some(door) = &from.unix else { return Ok(()) };
    let (stream, _) = door.listener.accept()?;
    stream.set_nonblocking(false)?;
    let connection = NewConnection { name: "this machine".into(), is_near: true };
    admission.admit(shared, stream.into(), connection);
    Ok(())
}

/// Moves a socket out of the descriptors for reads; idle connections are closed first.
fn spared(shared: &NodeShared, socket: OwnedFd) -> std::io::Result<Descriptor> {
    if open_files::is_for_reads(&socket) {
        shared.close_idle();
    }
    open_files::moved_down(socket).and_then(OwnDescriptor::of)
}

/// A connection that was accepted.
struct NewConnection {
    name: String,
    /// It came over the Unix socket.
    is_near: bool,
}

impl ConnectionAdmission {
    fn admit(
        self: &Arc<Self>,
        shared: &Arc<NodeShared>,
        socket: OwnedFd,
        connection: NewConnection,
    ) {
        let socket = match spared(shared, socket) {
            Ok(socket) => Arc::new(socket),
            Err(error) => return self.log.refused(&connection.name, &error),
        };
        if shared.live.enter(&socket).is_err() {
            return;
        }
        self.limit_unauthenticated();
        let mut connections = lock(&self.connections);
        connections.unauthenticated.push_back((Instant::now(), Arc::downgrade(&socket)));
        connections.threads.retain(|thread| !thread.is_finished());
        let (admission, shared) = (self.clone(), shared.clone());
        let thread = std::thread::Builder::new().name("belady-serve".into()).stack_size(STACK);
        let thread = thread.spawn(move || admission.receive(&shared, &socket, &connection));
        match thread {
            Ok(thread) => connections.threads.push(thread),
            Err(error) => {
                connections.unauthenticated.pop_back();
                drop(connections);
                tracing::warn!("refused a connection, because no thread could be started: {error}");
            }
        }
    }

    /// Waits until few connections are unauthenticated, and closes those that take long.
    fn limit_unauthenticated(&self) {
        let mut connections = lock(&self.connections);
        while connections.unauthenticated.len() >= self.limits.unauthenticated
            && let Some((since, oldest)) = connections.unauthenticated.pop_front()
        {
            let left = WAIT.saturating_sub(since.elapsed());
            if left.is_zero() {
                oldest.upgrade().iter().for_each(|socket| hang_up(socket));
                continue;
            }
            connections.unauthenticated.push_front((since, oldest));
            let waited = self.changed.wait_timeout(connections, left);
            connections = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Serves a connection: the work of its thread.
    fn receive(&self, shared: &NodeShared, socket: &Arc<Descriptor>, connection: &NewConnection) {
        let authenticated = self.authenticate(shared, socket, connection);
        self.finish_handshake(socket);
        if let Some((wire, other)) = authenticated {
            self.serve(shared, wire, &other);
        }
        hang_up(socket);
    }

    /// Authenticates a connection, or logs why it is refused.
    fn authenticate(
        &self,
        shared: &NodeShared,
        socket: &Arc<Descriptor>,
        connection: &NewConnection,
    ) -> Option<(PeerStream, PeerHello)> {
        let authenticated = handshake(shared, socket, connection.is_near);
        if shared.live.is_closed() {
            return None;
        }
        authenticated.map_err(|why| self.log.refused(&connection.name, &why)).ok()
    }

    /// Removes a connection from the unauthenticated ones.
    fn finish_handshake(&self, socket: &Arc<Descriptor>) {
        let this = Arc::downgrade(socket);
        lock(&self.connections).unauthenticated.retain(|(_, connection)| !connection.ptr_eq(&this));
        self.changed.notify_all();
    }

    fn serve(&self, shared: &NodeShared, wire: PeerStream, other: &PeerHello) {
        let rank = other.world.rank;
        let slot = self.enter(rank);
        let mut conversation = Conversation::new(wire, rank, &shared.dispatcher, &shared.memory);
        let served = if slot.is_some() {
            shared.heard_of(other);
            conversation.say(&WireMessage::Welcome).and_then(|()| conversation.serve())
        } else {
            conversation.say(&WireMessage::Full)
        };
        match served {
            Ok(()) => {}
            _ if shared.live.is_closed() => {}
            // Processes end and networks fail; the caller knows more about it.
            Err(TalkError::Io(error)) => tracing::debug!("connection of rank {rank}: {error}"),
            Err(why) => {
                tracing::warn!("closed a connection of rank {rank}, which sent {why}");
            }
        }
    }

    /// Counts one more connection of this rank, if it may be served.
    fn enter(&self, rank: NodeId) -> Option<ServingSlot<'_>> {
        let serving = &mut lock(&self.connections).serving[rank as usize];
        if *serving >= self.limits.each {
            return None;
        }
        *serving += 1;
        Some(ServingSlot { admission: self, rank })
    }
}

/// The count of a served connection; released on drop, even if serving panics.
struct ServingSlot<'a> {
    admission: &'a ConnectionAdmission,
    rank: NodeId,
}

impl Drop for ServingSlot<'_> {
    fn drop(&mut self) {
        lock(&self.admission.connections).serving[self.rank as usize] -= 1;
    }
}

fn handshake(
    shared: &NodeShared,
    socket: &Arc<Descriptor>,
    is_near: bool,
) -> Result<(PeerStream, PeerHello), super::hello::HelloError> {
    let plain = Socket::new(socket.clone(), Limit::Until(Instant::now() + HANDSHAKE));
    let io = |error| super::hello::HelloError::Auth(crate::auth::AuthError::Io(error));
    if !is_near {
        plain.prepare_tcp().map_err(io)?;
    }
    let mut wire = match &shared.tls {
        Some(tls) if !is_near => PeerStream::Tls(Box::new(tls.accept(plain).map_err(io)?)),
        _ => PeerStream::Plain(plain),
    };
    let binding = wire.binding().map_err(io)?;
    let other = greet(&mut wire, binding, &shared.key, Role::Listens, &shared.hello)?;
    wire.set_limit(Limit::Each(super::STALL));
    Ok((wire, other))
}

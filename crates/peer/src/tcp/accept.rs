//! Where others come in: one thread accepts, and each connection is served by a thread of its own.
//!
//! Until it has proved itself, a connection is a visitor that knocks. Visitors are few and have little
//! time; when there are too many, new ones wait, and then the oldest is sent away.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_data::fork::Own;
use belady_data::open_files::{self, Spare};
use belady_data::sync::{Arc, Condvar, Mutex, lock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::frame::Kind;
use super::hello::{Hello, greet};
use super::serve::Conversation;
use super::shared::Shared;
use super::socket::{Descriptor, Limit, Socket, hang_up};
use super::unix::UnixDoor;
use super::wire::{TalkError, Wire};
use crate::NodeId;
use crate::auth::Role;
use crate::complaints::Complaints;

/// Time to prove oneself.
const KNOCK: Duration = Duration::from_secs(5);
/// A visitor is sent away no earlier, when there are too many: who has the key needs less.
const WAIT: Duration = Duration::from_millis(500);
/// Pause after an error that will not go away at once, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// Serving reads and sends; what jobs do there (disk tiers, checksums) needs little more.
const STACK: usize = 512 << 10;

/// How many may come in.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// That have not proved themselves.
    pub visitors: usize,
    /// Of one rank that are served.
    pub each: usize,
}

/// Sockets that others connect to.
#[derive(Debug)]
pub struct Listeners {
    pub tcp: Own<std::net::TcpListener>,
    pub unix: Option<UnixDoor>,
}

/// The threads of a node.
#[derive(Debug)]
pub struct Door {
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    inside: Arc<Inside>,
}

/// Who is in.
#[derive(Debug)]
struct Inside {
    limits: Limits,
    guests: Mutex<Guests>,
    /// One is through or gone.
    changed: Condvar,
    complaints: Complaints,
}

#[derive(Debug, Default)]
struct Guests {
    /// The oldest first.
    visitors: VecDeque<(Instant, Weak<Descriptor>)>,
    /// Connections of each rank that are served.
    serving: Vec<usize>,
    threads: Vec<JoinHandle<()>>,
}

impl Door {
    /// Lets others in, from now on.
    pub fn open(
        shared: Arc<Shared>,
        listeners: Listeners,
        limits: Limits,
    ) -> std::io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let serving = vec![0; shared.peers.len()];
        let guests = Mutex::new(Guests { serving, ..Guests::default() });
        let (changed, complaints) = (Condvar::new(), Complaints::default());
        let inside = Arc::new(Inside { limits, guests, changed, complaints });
        let thread = {
            let (wake, inside) = (wake.clone(), inside.clone());
            let thread = std::thread::Builder::new().name("belady-accept".into());
            thread.spawn(move || accept_all(&shared, &listeners, &wake, &inside))?
        };
        Ok(Self { wake, thread, inside })
    }

    /// Waits for all threads, whose connections were ended before; not for ever, since a job may be
    /// stuck in what it does for others. One of them may be the one that calls this, when it held the
    /// last of something.
    pub fn close(self) {
        // Cannot fail: it is the only number that was ever added.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        let own = std::thread::current().id();
        let _ = self.thread.join();
        let threads = std::mem::take(&mut lock(&self.inside.guests).threads);
        let others = threads.into_iter().filter(|thread| thread.thread().id() != own);
        let left = crate::threads::join_within(others, super::GRACE);
        if left > 0 {
            tracing::warn!(threads = left, "left threads behind that serve others and do not end");
        }
    }
}

fn accept_all(shared: &Arc<Shared>, listeners: &Listeners, wake: &OwnedFd, inside: &Arc<Inside>) {
    let unix = listeners.unix.as_ref().map(|door| door.listener.as_fd());
    while !shared.live.is_closed() {
        let mut waited = vec![PollFd::new(wake, PollFlags::IN)];
        waited.push(PollFd::new(&listeners.tcp, PollFlags::IN));
        waited.extend(unix.as_ref().map(|unix| PollFd::new(unix, PollFlags::IN)));
        match poll(&mut waited, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!("nobody can connect any more: {error}");
                return;
            }
        }
        let ready: Vec<bool> = waited.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        let mut failed = false;
        if ready[1] {
            failed |= accept_tcp(shared, listeners, inside).is_err_and(|error| !is_passing(&error));
        }
        if ready.get(2) == Some(&true) {
            failed |=
                accept_unix(shared, listeners, inside).is_err_and(|error| !is_passing(&error));
        }
        if failed {
            let pause = PAUSE.try_into().unwrap_or_default();
            let _ = poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&pause));
        }
    }
}

/// Whether it concerns only the connection that could not be accepted.
fn is_passing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | ConnectionAborted | Interrupted)
}

fn accept_tcp(shared: &Arc<Shared>, from: &Listeners, inside: &Arc<Inside>) -> std::io::Result<()> {
    let (stream, address) = from.tcp.accept()?;
    stream.set_nonblocking(false)?;
    let visitor = Visitor { name: address.to_string(), is_near: false };
    inside.let_in(shared, stream.into(), visitor);
    Ok(())
}

fn accept_unix(
    shared: &Arc<Shared>,
    from: &Listeners,
    inside: &Arc<Inside>,
) -> std::io::Result<()> {
    let Some(door) = &from.unix else { return Ok(()) };
    let (stream, _) = door.listener.accept()?;
    stream.set_nonblocking(false)?;
    let visitor = Visitor { name: "this machine".into(), is_near: true };
    inside.let_in(shared, stream.into(), visitor);
    Ok(())
}

/// A connection that reads of samples can do without: those that nobody uses go first.
fn spared(shared: &Shared, socket: OwnedFd) -> std::io::Result<Descriptor> {
    if open_files::is_for_reads(&socket) {
        shared.let_go();
    }
    open_files::moved_down(socket).and_then(Own::of)
}

/// Somebody who has connected.
struct Visitor {
    name: String,
    /// By the Unix socket.
    is_near: bool,
}

impl Inside {
    fn let_in(self: &Arc<Self>, shared: &Arc<Shared>, socket: OwnedFd, visitor: Visitor) {
        let socket = match spared(shared, socket) {
            Ok(socket) => Arc::new(socket),
            Err(error) => return self.complaints.refused(&visitor.name, &error),
        };
        if shared.live.enter(&socket).is_err() {
            return;
        }
        self.make_room();
        let mut guests = lock(&self.guests);
        guests.visitors.push_back((Instant::now(), Arc::downgrade(&socket)));
        guests.threads.retain(|thread| !thread.is_finished());
        let (inside, shared) = (self.clone(), shared.clone());
        let thread = std::thread::Builder::new().name("belady-serve".into()).stack_size(STACK);
        let thread = thread.spawn(move || inside.receive(&shared, &socket, &visitor));
        match thread {
            Ok(thread) => guests.threads.push(thread),
            Err(error) => {
                guests.visitors.pop_back();
                drop(guests);
                tracing::warn!(
                    "a connection was refused, since there is no thread for it: {error}"
                );
            }
        }
    }

    /// Waits until there are few visitors, and sends those away that take long.
    fn make_room(&self) {
        let mut guests = lock(&self.guests);
        while guests.visitors.len() >= self.limits.visitors
            && let Some((since, oldest)) = guests.visitors.pop_front()
        {
            let left = WAIT.saturating_sub(since.elapsed());
            if left.is_zero() {
                oldest.upgrade().iter().for_each(|socket| hang_up(socket));
                continue;
            }
            guests.visitors.push_front((since, oldest));
            let waited = self.changed.wait_timeout(guests, left);
            guests = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What the thread of a connection does.
    fn receive(&self, shared: &Shared, socket: &Arc<Descriptor>, visitor: &Visitor) {
        let greeted = self.greeted(shared, socket, visitor);
        self.is_through(socket);
        if let Some((wire, other)) = greeted {
            self.serve(shared, wire, &other);
        }
        hang_up(socket);
    }

    /// One who has proved himself; others are complained of.
    fn greeted(
        &self,
        shared: &Shared,
        socket: &Arc<Descriptor>,
        visitor: &Visitor,
    ) -> Option<(Wire, Hello)> {
        let greeted = welcome(shared, socket, visitor.is_near);
        if shared.live.is_closed() {
            return None;
        }
        greeted.map_err(|why| self.complaints.refused(&visitor.name, &why)).ok()
    }

    fn is_through(&self, socket: &Arc<Descriptor>) {
        let this = Arc::downgrade(socket);
        lock(&self.guests).visitors.retain(|(_, visitor)| !visitor.ptr_eq(&this));
        self.changed.notify_all();
    }

    fn serve(&self, shared: &Shared, wire: Wire, other: &Hello) {
        let rank = other.world.rank;
        let seat = self.enter(rank);
        let mut conversation = Conversation::new(wire, rank, &shared.desk, &shared.memory);
        let served = if seat.is_some() {
            shared.heard_of(other);
            conversation.say(Kind::Welcome).and_then(|()| conversation.serve())
        } else {
            conversation.say(Kind::Full)
        };
        match served {
            Ok(()) => {}
            _ if shared.live.is_closed() => {}
            // Processes end, and networks fail: whoever asked knows more about it.
            Err(TalkError::Io(error)) => tracing::debug!("connection of rank {rank}: {error}"),
            Err(why) => {
                tracing::warn!("connection of rank {rank} was ended, since it sent {why}");
            }
        }
    }

    /// One more connection of this rank, if it can be served.
    fn enter(&self, rank: NodeId) -> Option<Seat<'_>> {
        let serving = &mut lock(&self.guests).serving[rank as usize];
        if *serving >= self.limits.each {
            return None;
        }
        *serving += 1;
        Some(Seat { inside: self, rank })
    }
}

/// The place of a connection that is served; it is free again also if serving it panics.
struct Seat<'a> {
    inside: &'a Inside,
    rank: NodeId,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        lock(&self.inside.guests).serving[self.rank as usize] -= 1;
    }
}

fn welcome(
    shared: &Shared,
    socket: &Arc<Descriptor>,
    is_near: bool,
) -> Result<(Wire, Hello), super::hello::Unwelcome> {
    let plain = Socket::new(socket.clone(), Limit::Until(Instant::now() + KNOCK));
    let io = |error| super::hello::Unwelcome::Auth(crate::auth::AuthError::Io(error));
    if !is_near {
        plain.prepare_tcp().map_err(io)?;
    }
    let mut wire = match &shared.tls {
        Some(tls) if !is_near => Wire::Tls(Box::new(tls.accept(plain).map_err(io)?)),
        _ => Wire::Plain(plain),
    };
    let binding = wire.binding().map_err(io)?;
    let other = greet(&mut wire, binding, &shared.key, Role::Listens, &shared.hello)?;
    wire.set_limit(Limit::Each(super::STALL));
    Ok((wire, other))
}

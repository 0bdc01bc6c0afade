//! The state that calls and serving threads of a node share.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Weak;
use std::time::Duration;

use belady_base::open_files::IdleDescriptors;
use belady_base::sync::atomic::{AtomicBool, Ordering};
use belady_base::sync::{Arc, Condvar, Mutex, lock};

use super::hello::PeerHello;
use super::pool::ConnectionPool;
use super::socket::{Descriptor, hang_up};
use super::tls::Credentials;
use crate::PeerError;
use crate::dispatcher::Dispatcher;
use crate::key::JobKey;

/// The state of one node.
#[derive(Debug)]
pub struct NodeShared {
    pub key: JobKey,
    pub hello: PeerHello,
    pub tls: Option<Credentials>,
    pub dispatcher: Arc<Dispatcher>,
    /// Connections to each rank.
    pub peers: Vec<ConnectionPool>,
    pub live: OpenSockets,
    /// Memory for pushes that are being received.
    pub memory: MemoryBudget,
    /// The process that owns the sockets: a forked child must not use them.
    process: u32,
}

impl NodeShared {
    pub fn new(
        key: JobKey,
        hello: PeerHello,
        tls: Option<Credentials>,
        connections: usize,
    ) -> Self {
        let peers = (0..hello.world.size).map(|_| ConnectionPool::new(connections)).collect();
        Self {
            key,
            hello,
            tls,
            dispatcher: Arc::default(),
            peers,
            live: OpenSockets::default(),
            memory: MemoryBudget::new(super::PUT_MEMORY),
            process: std::process::id(),
        }
    }

    pub fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Checks that this process may still use it.
    pub fn check(&self) -> Result<(), PeerError> {
        if self.is_forked() || self.live.is_closed() { Err(PeerError::Left) } else { Ok(()) }
    }

    /// Records that an authenticated node was seen, and its address.
    pub fn heard_of(&self, other: &PeerHello) {
        self.peers[other.world.rank as usize].learn(other.address.clone());
        self.dispatcher.heard_of(other.world.rank, other.address.incarnation);
    }
}

/// Closes idle connections.
impl IdleDescriptors for NodeShared {
    fn close_idle(&self) {
        self.peers.iter().for_each(ConnectionPool::close_idle);
    }
}

/// All sockets of a node, so that they can be shut down at once.
#[derive(Debug, Default)]
pub struct OpenSockets {
    closed: AtomicBool,
    sockets: Mutex<HashMap<RawFd, Weak<Descriptor>>>,
}

impl OpenSockets {
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Registers a socket that is shut down together with all others.
    pub fn enter(&self, socket: &Arc<Descriptor>) -> Result<(), PeerError> {
        let mut sockets = lock(&self.sockets);
        if self.is_closed() {
            return Err(PeerError::Left);
        }
        // Numbers of closed sockets are reused, so this does not grow.
        sockets.insert(socket.as_raw_fd(), Arc::downgrade(socket));
        Ok(())
    }

    /// Shuts down all sockets; returns false if they were before.
    pub fn close(&self) -> bool {
        let sockets = lock(&self.sockets);
        if self.closed.swap(true, Ordering::AcqRel) {
            return false;
        }
        sockets.values().filter_map(Weak::upgrade).for_each(|socket| hang_up(&socket));
        true
    }
}

/// A limit on memory in use.
#[derive(Debug)]
pub struct MemoryBudget {
    all: usize,
    free: Mutex<usize>,
    freed: Condvar,
}

/// A part of the budget, returned on drop.
#[derive(Debug)]
pub struct MemoryShare<'a>(&'a MemoryBudget, usize);

impl MemoryBudget {
    pub fn new(bytes: usize) -> Self {
        Self { all: bytes, free: Mutex::new(bytes), freed: Condvar::new() }
    }

    /// Waits for `bytes`, or for the whole budget if that is less; `None` if it takes too long.
    pub fn take(&self, bytes: usize, limit: Duration) -> Option<MemoryShare<'_>> {
        let bytes = bytes.min(self.all);
        let short = |free: &mut usize| *free < bytes;
        let waited = self.freed.wait_timeout_while(lock(&self.free), limit, short);
        let (mut free, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        *free = free.checked_sub(bytes)?;
        Some(MemoryShare(self, bytes))
    }
}

impl Drop for MemoryShare<'_> {
    fn drop(&mut self) {
        *lock(&self.0.free) += self.1;
        self.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_returned_goes_to_a_waiter() {
        let budget = MemoryBudget::new(10);
        let first = budget.take(7, Duration::ZERO).unwrap();
        assert!(budget.take(4, Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| budget.take(4, Duration::from_mins(1)).is_some());
            drop(first);
            assert!(waits.join().unwrap());
        });
        let all = budget.take(11, Duration::ZERO).expect("more than there is has all to itself");
        assert!(budget.take(1, Duration::ZERO).is_none());
        drop(all);
        assert!(budget.take(10, Duration::ZERO).is_some());
    }
}

//! What calls and serving threads of one node share.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Weak;
use std::time::Duration;

use belady_data::open_files::Spare;
use belady_data::sync::atomic::{AtomicBool, Ordering};
use belady_data::sync::{Arc, Condvar, Mutex, lock};

use super::hello::Hello;
use super::pool::Pool;
use super::socket::{Descriptor, hang_up};
use super::tls::Credentials;
use crate::PeerError;
use crate::desk::Desk;
use crate::key::Key;

/// One node.
#[derive(Debug)]
pub struct Shared {
    pub key: Key,
    pub hello: Hello,
    pub tls: Option<Credentials>,
    pub desk: Arc<Desk>,
    /// Connections to each rank.
    pub peers: Vec<Pool>,
    pub live: Live,
    /// For pushes that are being received.
    pub memory: Budget,
    /// The process that this belongs to: a forked child must leave its sockets alone.
    process: u32,
}

impl Shared {
    pub fn new(key: Key, hello: Hello, tls: Option<Credentials>, connections: usize) -> Self {
        let peers = (0..hello.world.size).map(|_| Pool::new(connections)).collect();
        Self {
            key,
            hello,
            tls,
            desk: Arc::default(),
            peers,
            live: Live::default(),
            memory: Budget::new(super::PUT_MEMORY),
            process: std::process::id(),
        }
    }

    pub fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Whether this process may still use it.
    pub fn check(&self) -> Result<(), PeerError> {
        if self.is_forked() || self.live.is_closed() { Err(PeerError::Left) } else { Ok(()) }
    }

    /// Something was heard of a node that has proved itself: it is there, and there.
    pub fn heard_of(&self, other: &Hello) {
        self.peers[other.world.rank as usize].learn(other.address.clone());
        self.desk.heard_of(other.world.rank, other.address.incarnation);
    }
}

/// Connections that nobody uses.
impl Spare for Shared {
    fn let_go(&self) {
        self.peers.iter().for_each(Pool::let_go);
    }
}

/// All connections of a node, so that they can be ended at once.
#[derive(Debug, Default)]
pub struct Live {
    closed: AtomicBool,
    sockets: Mutex<HashMap<RawFd, Weak<Descriptor>>>,
}

impl Live {
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// From now on a socket is ended with all others; it is ended already if they are.
    pub fn enter(&self, socket: &Arc<Descriptor>) -> Result<(), PeerError> {
        let mut sockets = lock(&self.sockets);
        if self.is_closed() {
            return Err(PeerError::Left);
        }
        // Numbers of sockets that are gone are used again, so this does not grow.
        sockets.insert(socket.as_raw_fd(), Arc::downgrade(socket));
        Ok(())
    }

    /// Ends all; false if they were ended before.
    pub fn close(&self) -> bool {
        let sockets = lock(&self.sockets);
        if self.closed.swap(true, Ordering::AcqRel) {
            return false;
        }
        sockets.values().filter_map(Weak::upgrade).for_each(|socket| hang_up(&socket));
        true
    }
}

/// Memory that may be used at once.
#[derive(Debug)]
pub struct Budget {
    all: usize,
    free: Mutex<usize>,
    freed: Condvar,
}

/// Some of it, which is given back when this is dropped.
#[derive(Debug)]
pub struct Share<'a>(&'a Budget, usize);

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Self { all: bytes, free: Mutex::new(bytes), freed: Condvar::new() }
    }

    /// Waits for so much, or for all if that is less; `None` if it takes too long.
    pub fn take(&self, bytes: usize, limit: Duration) -> Option<Share<'_>> {
        let bytes = bytes.min(self.all);
        let short = |free: &mut usize| *free < bytes;
        let waited = self.freed.wait_timeout_while(lock(&self.free), limit, short);
        let (mut free, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        *free = free.checked_sub(bytes)?;
        Some(Share(self, bytes))
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *lock(&self.0.free) += self.1;
        self.0.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_can_be_had_by_who_waits() {
        let budget = Budget::new(10);
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

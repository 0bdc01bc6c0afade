//! The connections of this node to one peer, and the peer's address.
//!
//! A caller takes an idle connection, opens one if there are few, or waits for one. It returns the
//! connection only if the call succeeded.

use std::sync::PoisonError;
use std::time::Instant;

use belady_base::sync::{Condvar, Mutex, MutexGuard, lock};

use super::address::Address;
use super::call::Connection;

#[derive(Debug)]
pub struct ConnectionPool {
    most: usize,
    state: Mutex<PoolState>,
    /// A connection was returned or closed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    address: Option<Address>,
    free: Vec<Connection>,
    /// The number of connections, idle or in use.
    open: usize,
}

impl PoolState {
    fn is_at(&self, incarnation: u64) -> bool {
        self.address.as_ref().is_some_and(|address| address.incarnation == incarnation)
    }

    /// Closes idle connections.
    fn forget_free(&mut self) {
        self.open -= self.free.len();
        self.free.clear();
    }
}

/// The right to use one connection.
#[derive(Debug)]
pub struct Lease<'a>(&'a ConnectionPool);

/// The connection of a lease.
#[derive(Debug)]
pub enum Leased {
    /// An idle connection.
    Free(Connection),
    /// A connection that the caller has to open.
    To(Address),
}

/// Why there is no connection.
#[derive(Debug, PartialEq, Eq)]
pub enum NoLease {
    TimedOut,
    NoAddress,
}

impl ConnectionPool {
    pub fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), changed: Condvar::new() }
    }

    pub fn address(&self) -> Option<Address> {
        lock(&self.state).address.clone()
    }

    /// Sets the peer's address, if it is newer than the known one.
    pub fn learn(&self, address: Address) {
        let mut state = lock(&self.state);
        if state.address.as_ref().is_none_or(|known| known.incarnation < address.incarnation) {
            state.address = Some(address);
            state.forget_free();
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Returns an idle connection, or the right to open one; waits for it until `until`. With
    /// `fresh`, idle connections are closed first.
    pub fn take(&self, until: Instant, fresh: bool) -> Result<(Lease<'_>, Leased), NoLease> {
        let mut state = lock(&self.state);
        if fresh {
            state.forget_free();
        }
        loop {
            let address = state.address.as_ref().ok_or(NoLease::NoAddress)?;
            if state.open < self.most && state.free.is_empty() {
                let address = address.clone();
                state.open += 1;
                return Ok((Lease(self), Leased::To(address)));
            }
            if let Some(connection) = state.free.pop() {
                return Ok((Lease(self), Leased::Free(connection)));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoLease::TimedOut);
            }
            state = wait(&self.changed, state, left);
        }
    }

    /// Closes idle connections; others are opened when they are needed.
    pub fn close_idle(&self) {
        lock(&self.state).forget_free();
    }

    /// Closes idle connections, and wakes callers that wait.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.forget_free();
        state.address = None;
        drop(state);
        self.changed.notify_all();
    }
}

fn wait<'a>(
    changed: &Condvar,
    state: MutexGuard<'a, PoolState>,
    left: std::time::Duration,
) -> MutexGuard<'a, PoolState> {
    changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
}

impl Lease<'_> {
    /// Returns the connection to the pool after a successful call.
    pub fn give_back(self, connection: Connection) {
        let mut state = lock(&self.0.state);
        if state.is_at(connection.incarnation) {
            state.free.push(connection);
            // Dropping the lease takes one off again.
            state.open += 1;
        }
    }
}

/// Closes the connection.
impl Drop for Lease<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).open -= 1;
        self.0.changed.notify_one();
    }
}

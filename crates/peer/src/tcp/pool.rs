//! The connections of this node to one other, and where it is.
//!
//! There are no threads: whoever has something to ask takes a connection that is free, or opens one if
//! there are few, or waits for one. It comes back only if the conversation ended well.

use std::sync::PoisonError;
use std::time::Instant;

use belady_data::sync::{Condvar, Mutex, MutexGuard, lock};

use super::address::Address;
use super::call::Connection;

#[derive(Debug)]
pub struct Pool {
    most: usize,
    state: Mutex<State>,
    /// A connection has come back or is gone.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    address: Option<Address>,
    free: Vec<Connection>,
    /// Free or used.
    open: usize,
}

impl State {
    fn is_at(&self, incarnation: u64) -> bool {
        self.address.as_ref().is_some_and(|address| address.incarnation == incarnation)
    }

    /// Gives up those that nobody uses, since they lead nowhere.
    fn forget_free(&mut self) {
        self.open -= self.free.len();
        self.free.clear();
    }
}

/// The right to one connection.
#[derive(Debug)]
pub struct Lease<'a>(&'a Pool);

/// Which connection that is.
#[derive(Debug)]
pub enum Found {
    /// One that was used before.
    Free(Connection),
    /// One that is to be opened.
    To(Address),
}

/// Why there is no connection to be had.
#[derive(Debug, PartialEq, Eq)]
pub enum NoLease {
    TimedOut,
    NoAddress,
}

impl Pool {
    pub fn new(most: usize) -> Self {
        Self { most, state: Mutex::default(), changed: Condvar::new() }
    }

    pub fn address(&self) -> Option<Address> {
        lock(&self.state).address.clone()
    }

    /// It is there, if that is news.
    pub fn learn(&self, address: Address) {
        let mut state = lock(&self.state);
        if state.address.as_ref().is_none_or(|known| known.incarnation < address.incarnation) {
            state.address = Some(address);
            state.forget_free();
            drop(state);
            self.changed.notify_all();
        }
    }

    /// A connection that is free or may be opened; waits for it until then. `fresh`: none of those that
    /// are free is any good.
    pub fn take(&self, until: Instant, fresh: bool) -> Result<(Lease<'_>, Found), NoLease> {
        let mut state = lock(&self.state);
        if fresh {
            state.forget_free();
        }
        loop {
            let address = state.address.as_ref().ok_or(NoLease::NoAddress)?;
            if state.open < self.most && state.free.is_empty() {
                let address = address.clone();
                state.open += 1;
                return Ok((Lease(self), Found::To(address)));
            }
            if let Some(connection) = state.free.pop() {
                return Ok((Lease(self), Found::Free(connection)));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoLease::TimedOut);
            }
            state = wait(&self.changed, state, left);
        }
    }

    /// Ends those that nobody uses; others are opened when they are needed.
    pub fn let_go(&self) {
        lock(&self.state).forget_free();
    }

    /// Ends those that nobody uses, and wakes those who wait.
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
    state: MutexGuard<'a, State>,
    left: std::time::Duration,
) -> MutexGuard<'a, State> {
    changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
}

impl Lease<'_> {
    /// The conversation has ended well.
    pub fn give_back(self, connection: Connection) {
        let mut state = lock(&self.0.state);
        if state.is_at(connection.incarnation) {
            state.free.push(connection);
            // It stays open.
            state.open += 1;
        }
    }
}

/// It is gone.
impl Drop for Lease<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).open -= 1;
        self.0.changed.notify_one();
    }
}

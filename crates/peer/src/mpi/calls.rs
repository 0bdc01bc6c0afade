//! The calls of this node that are not answered yet.
//!
//! Every call has a number, by which its answer finds it. A caller returns at its deadline, but the
//! call stays until it is answered, since MPI cannot cancel it. So that such calls do not pile up
//! with a slow peer, a peer has a limited number of calls at once, and further callers wait.

use std::collections::HashMap;
use std::io;
use std::sync::PoisonError;
use std::time::Instant;

use belady_base::sync::{Arc, Condvar, Mutex, lock};

use super::comm::Answered;
use crate::{NodeId, PeerError};

/// Unanswered calls to one peer: as many as its threads work on, and as many again that wait.
const TURNS: usize = 16;

/// Why no call can be made any more.
#[derive(Clone, Debug)]
pub enum MpiEnd {
    Left,
    Failed(String),
}

impl MpiEnd {
    fn error(&self, peer: NodeId) -> PeerError {
        match self {
            Self::Left => PeerError::Left,
            Self::Failed(why) => PeerError::Closed { peer, error: io::Error::other(why.clone()) },
        }
    }
}

#[derive(Debug, Default)]
pub struct Calls {
    state: Mutex<OpenCalls>,
    /// A call may begin, or none will any more.
    turn: Condvar,
}

#[derive(Debug, Default)]
struct OpenCalls {
    next: u64,
    open: HashMap<u64, (NodeId, Arc<Call>)>,
    /// Unanswered calls by peer.
    turns: HashMap<NodeId, usize>,
    end: Option<MpiEnd>,
}

/// A call that has begun.
#[derive(Debug, Default)]
pub struct Call {
    outcome: Mutex<Option<Result<Answered, MpiEnd>>>,
    changed: Condvar,
}

impl Call {
    fn settle(&self, outcome: Result<Answered, MpiEnd>) {
        *lock(&self.outcome) = Some(outcome);
        self.changed.notify_one();
    }

    /// Waits for the answer; `None` if the deadline passes.
    pub fn wait(&self, peer: NodeId, deadline: Instant) -> Option<Result<Answered, PeerError>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = lock(&self.outcome);
        let waited = self.changed.wait_timeout_while(outcome, left, |outcome| outcome.is_none());
        let (mut outcome, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Some(outcome.take()?.map_err(|end| end.error(peer)))
    }
}

impl Calls {
    /// Begins a call when the peer has few enough; `None` if it has not until the deadline.
    pub fn begin(
        &self,
        peer: NodeId,
        deadline: Instant,
    ) -> Option<Result<(u64, Arc<Call>), PeerError>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let must_wait = |state: &mut OpenCalls| {
            state.end.is_none() && state.turns.get(&peer).is_some_and(|&taken| taken >= TURNS)
        };
        let waited = self.turn.wait_timeout_while(lock(&self.state), left, must_wait);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(end) = &state.end {
            return Some(Err(end.error(peer)));
        }
        if waited.timed_out() {
            return None;
        }
        let (number, call) = (state.next, Arc::<Call>::default());
        state.next += 1;
        *state.turns.entry(peer).or_default() += 1;
        state.open.insert(number, (peer, call.clone()));
        Some(Ok((number, call)))
    }

    /// Completes a call. An answer that belongs to no call is dropped.
    pub fn answered(&self, answer: Answered) {
        let (from, number) = (answer.from, answer.call);
        let mut state = lock(&self.state);
        if state.open.get(&number).is_none_or(|(peer, _)| *peer != from) {
            tracing::warn!(rank = from, number, "received an answer that belongs to no call");
            return;
        }
        let call = state.open.remove(&number);
        if let Some(taken) = state.turns.get_mut(&from) {
            *taken -= 1;
        }
        drop(state);
        // All, since callers wait for different peers.
        self.turn.notify_all();
        if let Some((_, call)) = call {
            call.settle(Ok(answer));
        }
    }

    /// Begins no more calls, and wakes the callers of those that are open. The calls stay open
    /// until they are answered.
    pub fn end(&self, end: &MpiEnd) {
        let mut state = lock(&self.state);
        state.end.get_or_insert_with(|| end.clone());
        let open: Vec<_> = state.open.values().map(|(_, call)| call.clone()).collect();
        drop(state);
        for call in open {
            call.settle(Err(end.clone()));
        }
        self.turn.notify_all();
    }

    pub fn are_open(&self) -> bool {
        !lock(&self.state).open.is_empty()
    }
}

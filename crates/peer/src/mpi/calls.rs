//! What this node has asked others and is waiting for.
//!
//! Every call has a number, by which its answer finds it. A caller that has waited until its deadline
//! goes away; the call stays until it is answered, since MPI takes nothing back. So that calls
//! that nobody waits for do not pile up with a slow peer, a peer has only so many at once, and
//! who comes then waits for its turn.

use std::collections::HashMap;
use std::io;
use std::sync::PoisonError;
use std::time::Instant;

use belady_data::sync::{Arc, Condvar, Mutex, lock};

use super::comm::Answered;
use crate::{NodeId, PeerError};

/// Calls to one peer that are not answered: what its threads can work on, and as many that wait.
const TURNS: usize = 16;

/// Why no call can be made any more.
#[derive(Clone, Debug)]
pub enum End {
    Left,
    Failed(String),
}

impl End {
    fn error(&self, peer: NodeId) -> PeerError {
        match self {
            Self::Left => PeerError::Left,
            Self::Failed(why) => PeerError::Closed { peer, error: io::Error::other(why.clone()) },
        }
    }
}

#[derive(Debug, Default)]
pub struct Calls {
    state: Mutex<State>,
    /// A peer has a turn free, or there will be none.
    turn: Condvar,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: HashMap<u64, (NodeId, Arc<Call>)>,
    /// By peer.
    turns: HashMap<NodeId, usize>,
    end: Option<End>,
}

/// A call that was begun.
#[derive(Debug, Default)]
pub struct Call {
    outcome: Mutex<Option<Result<Answered, End>>>,
    changed: Condvar,
}

impl Call {
    fn settle(&self, outcome: Result<Answered, End>) {
        *lock(&self.outcome) = Some(outcome);
        self.changed.notify_one();
    }

    /// The answer; `None` if the deadline has passed.
    pub fn wait(&self, peer: NodeId, deadline: Instant) -> Option<Result<Answered, PeerError>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let outcome = lock(&self.outcome);
        let waited = self.changed.wait_timeout_while(outcome, left, |outcome| outcome.is_none());
        let (mut outcome, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Some(outcome.take()?.map_err(|end| end.error(peer)))
    }
}

impl Calls {
    /// Begins a call when the peer has a turn free; `None` if it has none until the deadline.
    pub fn begin(
        &self,
        peer: NodeId,
        deadline: Instant,
    ) -> Option<Result<(u64, Arc<Call>), PeerError>> {
        let left = deadline.saturating_duration_since(Instant::now());
        let must_wait = |state: &mut State| {
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

    /// A peer has answered a call. What answers no call of ours is dropped.
    pub fn answered(&self, answer: Answered) {
        let (from, number) = (answer.from, answer.call);
        let mut state = lock(&self.state);
        if state.open.get(&number).is_none_or(|(peer, _)| *peer != from) {
            tracing::warn!(rank = from, number, "an answer to what was not asked");
            return;
        }
        let call = state.open.remove(&number);
        if let Some(taken) = state.turns.get_mut(&from) {
            *taken -= 1;
        }
        drop(state);
        // All, since those who wait for turns wait for different peers.
        self.turn.notify_all();
        if let Some((_, call)) = call {
            call.settle(Ok(answer));
        }
    }

    /// From now on no call is begun, and nobody waits for those that were. They stay open until they
    /// are answered.
    pub fn end(&self, end: &End) {
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

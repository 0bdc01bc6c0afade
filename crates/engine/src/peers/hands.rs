//! Threads that make calls of tiers for other nodes, where such a call may never return. The source is
//! tier 0: files are compared with it before anything of them is given.
//!
//! The thread that serves a peer waits for the call no longer than the peer waits for its answer. Then
//! the peer is told that the sample is not here, and so are all others who want something of that tier,
//! until the call returns. One that takes too long even for this node's own loading gives the tier up
//! ([`crate::hangs`]). The thread that is stuck owns what it touches, and nobody waits for it.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use belady_data::sync::atomic::{AtomicU32, Ordering};
use belady_data::sync::{Arc, Mutex, lock};
use belady_peer::TierId;

use crate::run::Run;

/// A hand that has had nothing to do for so long ends.
const IDLE: Duration = Duration::from_secs(10);
/// What calls of tiers need, and a little more.
const STACK: usize = 512 << 10;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub struct Hands {
    /// Those that have nothing to do, the last to become so at the end.
    idle: Arc<Mutex<Vec<Sender<Work>>>>,
    /// By tier: calls that take longer than a peer waits.
    late: Vec<AtomicU32>,
}

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InTime,
    Late,
    GivenUp,
    Ended,
}

impl Hands {
    pub fn new(tiers: usize) -> Self {
        let late = (0..=tiers).map(|_| AtomicU32::new(0)).collect();
        Self { idle: Arc::default(), late }
    }

    /// Whether a call of a tier for a peer has not returned in time.
    pub fn is_late(&self, tier: TierId) -> bool {
        self.late_calls(tier).is_some_and(|late| late.load(Ordering::Acquire) > 0)
    }

    fn late_calls(&self, tier: TierId) -> Option<&AtomicU32> {
        self.late.get(usize::from(tier))
    }

    /// Has some thread do it; false if there is none.
    fn give(&self, mut work: Work) -> bool {
        loop {
            let Some(hand) = lock(&self.idle).pop() else { break };
            match hand.send(work) {
                Ok(()) => return true,
                // It has just ended.
                Err(mpsc::SendError(back)) => work = back,
            }
        }
        let idle = self.idle.clone();
        let thread = std::thread::Builder::new().name("belady-hand".into()).stack_size(STACK);
        thread.spawn(move || be_a_hand(&idle, work)).is_ok()
    }
}

fn be_a_hand(idle: &Mutex<Vec<Sender<Work>>>, first: Work) {
    first();
    let (sender, receiver) = mpsc::channel::<Work>();
    loop {
        lock(idle).push(sender.clone());
        match receiver.recv_timeout(IDLE) {
            Ok(work) => work(),
            Err(_) => return,
        }
    }
}

/// Makes a call of a tier for a peer; `None` if it takes longer than `patience`, or another one does.
pub fn call<T: Send + 'static>(
    run: &Arc<Run>,
    tier: TierId,
    patience: Duration,
    work: impl FnOnce(&Run) -> T + Send + 'static,
) -> Option<T> {
    let peers = run.peers.as_ref()?;
    if peers.hands.is_late(tier) {
        return None;
    }
    let state = Arc::new(Mutex::new(State::InTime));
    let (outcome, came) = mpsc::channel();
    let begun = {
        let (run, state) = (run.clone(), state.clone());
        peers.hands.give(Box::new(move || {
            // Also if the call panics.
            let ends = Ends { run, tier, state };
            // Nobody waits for it any more if it is late.
            let _ = outcome.send(work(&ends.run));
        }))
    };
    if !begun {
        return None;
    }
    match came.recv_timeout(patience) {
        Ok(outcome) => return Some(outcome),
        Err(RecvTimeoutError::Disconnected) => return None,
        Err(RecvTimeoutError::Timeout) => {}
    }
    let mut now = lock(&state);
    if *now == State::Ended {
        return came.try_recv().ok();
    }
    *now = State::Late;
    if let Some(late) = peers.hands.late_calls(tier) {
        late.fetch_add(1, Ordering::AcqRel);
    }
    drop(now);
    let for_later = run.clone();
    let later = run.task(move |_| give_up(&for_later, tier, &state));
    run.lane.delay(run.retry.timeout.saturating_sub(patience), later);
    None
}

/// A call has not returned within the time that this node's own would have.
fn give_up(run: &Run, tier: TierId, state: &Mutex<State>) {
    let mut now = lock(state);
    if *now == State::Late {
        *now = State::GivenUp;
        run.metrics.timeout();
        run.cache.give_up(tier, run.retry.timeout);
    }
}

/// Tells that a call has returned, when this is dropped.
struct Ends {
    run: Arc<Run>,
    tier: TierId,
    state: Arc<Mutex<State>>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        let was = std::mem::replace(&mut *lock(&self.state), State::Ended);
        if matches!(was, State::Late | State::GivenUp)
            && let Some(late) =
                self.run.peers.as_ref().and_then(|peers| peers.hands.late_calls(self.tier))
        {
            late.fetch_sub(1, Ordering::AcqRel);
        }
        if was == State::GivenUp {
            self.run.cache.came_back(self.tier, self.run.retry.timeout);
        }
    }
}

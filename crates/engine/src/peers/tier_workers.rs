//! Threads that call tiers for other nodes, where a call may never return.
//!
//! The thread that serves a peer waits for a call no longer than the peer waits for its answer.
//! Then it answers that the sample is not here, and does so for all requests for that tier until
//! the call returns. A call that exceeds the time limit of this node's own reads suspends the tier
//! ([`crate::tiers`]). A stuck thread owns what it touches, and no thread waits for it. Comparisons
//! of files with the source are made in the same way.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use belady_base::sync::atomic::{AtomicU32, Ordering};
use belady_base::sync::{Arc, Mutex, lock};
use belady_peer::TierId;

use super::Peers;

/// A thread ends after it has been idle for this long.
const IDLE: Duration = Duration::from_secs(10);
/// Enough for calls of tiers.
const STACK: usize = 512 << 10;

type Call = Box<dyn FnOnce() + Send>;

/// The storage that a call goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    Source,
    Tier(TierId),
}

/// Threads that call tiers for other nodes.
#[derive(Debug)]
pub struct TierWorkers {
    /// Idle threads, the most recent at the end.
    idle: Arc<Mutex<Vec<Sender<Call>>>>,
    /// Calls that take longer than a peer waits: of the source, then by tier.
    late: Vec<AtomicU32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TierCallState {
    InTime,
    Late,
    GivenUp,
    Ended,
}

impl TierWorkers {
    pub fn new(tiers: usize) -> Self {
        let late = (0..=tiers).map(|_| AtomicU32::new(0)).collect();
        Self { idle: Arc::default(), late }
    }

    /// Returns whether a call for a peer has not returned in time.
    pub fn is_late(&self, storage: Storage) -> bool {
        self.late_calls(storage).is_some_and(|late| late.load(Ordering::Acquire) > 0)
    }

    fn late_calls(&self, storage: Storage) -> Option<&AtomicU32> {
        match storage {
            Storage::Source => self.late.first(),
            Storage::Tier(tier) => self.late.get(usize::from(tier)),
        }
    }

    /// Runs a call on an idle or a new thread; returns false if no thread can be started.
    fn spawn(&self, mut call: Call) -> bool {
        loop {
            let Some(worker) = lock(&self.idle).pop() else { break };
            match worker.send(call) {
                Ok(()) => return true,
                // It has just ended.
                Err(mpsc::SendError(back)) => call = back,
            }
        }
        let idle = self.idle.clone();
        let thread = std::thread::Builder::new().name("belady-tier".into()).stack_size(STACK);
        thread.spawn(move || work(&idle, call)).is_ok()
    }
}

fn work(idle: &Mutex<Vec<Sender<Call>>>, first: Call) {
    first();
    let (sender, receiver) = mpsc::channel::<Call>();
    loop {
        lock(idle).push(sender.clone());
        match receiver.recv_timeout(IDLE) {
            Ok(call) => call(),
            Err(_) => return,
        }
    }
}

impl Peers {
    /// Makes a call for a peer. Returns `None` if it takes longer than `patience`, or if an earlier
    /// call of the same storage has not returned.
    pub(super) fn call_storage<T: Send + 'static>(
        self: &Arc<Self>,
        storage: Storage,
        patience: Duration,
        call: impl FnOnce(&Arc<Peers>) -> T + Send + 'static,
    ) -> Option<T> {
        if self.tier_workers.is_late(storage) {
            return None;
        }
        let state = Arc::new(Mutex::new(TierCallState::InTime));
        let (outcome, returned) = mpsc::channel();
        let started = {
            let (peers, state) = (self.clone(), state.clone());
            self.tier_workers.spawn(Box::new(move || {
                // Dropped even if the call panics.
                let end = CallEnd { peers, storage, state };
                // A late outcome has no receiver.
                let _ = outcome.send(call(&end.peers));
            }))
        };
        if !started {
            return None;
        }
        match returned.recv_timeout(patience) {
            Ok(outcome) => return Some(outcome),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let mut now = lock(&state);
        if *now == TierCallState::Ended {
            return returned.try_recv().ok();
        }
        *now = TierCallState::Late;
        if let Some(late) = self.tier_workers.late_calls(storage) {
            late.fetch_add(1, Ordering::AcqRel);
        }
        drop(now);
        let peers = self.clone();
        let give_up = self.job.task(move |_| peers.give_up_call(storage, &state));
        self.job.lane.delay(self.job.retry.timeout.saturating_sub(patience), give_up);
        None
    }

    /// Suspends a tier whose call has exceeded the time limit of this node's own reads.
    fn give_up_call(&self, storage: Storage, state: &Mutex<TierCallState>) {
        let mut now = lock(state);
        if *now == TierCallState::Late {
            *now = TierCallState::GivenUp;
            self.job.metrics.timeout();
            if let Storage::Tier(tier) = storage {
                self.job.tiers.suspend(tier, self.job.retry.timeout);
            }
        }
    }
}

/// Records the end of a call when it is dropped.
struct CallEnd {
    peers: Arc<Peers>,
    storage: Storage,
    state: Arc<Mutex<TierCallState>>,
}

impl Drop for CallEnd {
    fn drop(&mut self) {
        let was = std::mem::replace(&mut *lock(&self.state), TierCallState::Ended);
        if matches!(was, TierCallState::Late | TierCallState::GivenUp)
            && let Some(late) = self.peers.tier_workers.late_calls(self.storage)
        {
            late.fetch_sub(1, Ordering::AcqRel);
        }
        if was == TierCallState::GivenUp
            && let Storage::Tier(tier) = self.storage
        {
            let job = &self.peers.job;
            job.tiers.call_returned(tier, job.retry.timeout);
        }
    }
}

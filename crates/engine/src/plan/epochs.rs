//! The orders and plans of the epochs, prepared on a thread ahead of the planner.
//!
//! The first order is ready before the first plan, so that the first batch need not wait for the
//! plan. From then on an epoch is prepared while the one before it is staged, so there is no gap
//! between them. Orders that cannot be asked for ahead come one epoch later, when their predecessor
//! begins to be staged.
//!
//! An order may come from a user's code, which may block, fail, or return no more epochs. A failure
//! is reported when the planner reaches its epoch. User code that does not return does not delay a
//! stop.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use belady_base::sync::{Arc, Condvar, Mutex, lock};
use belady_control::Job;
use belady_control::policy::{self, PolicyKind, PolicyPlan, Unsupported};
use belady_control::sampler::EpochOrder;

use crate::EngineError;

/// How often a thread that waits checks whether to stop.
const TICK: Duration = Duration::from_millis(100);

#[derive(Default)]
struct EpochsState {
    orders: Vec<(u32, Arc<EpochOrder>)>,
    plan: Option<Arc<dyn PolicyPlan>>,
    /// The number of epochs that the plan knows.
    begun: u32,
    /// The epoch being staged.
    staging: u32,
    /// How many epochs there are, once that is known.
    end: Option<u32>,
    /// The first failure and its epoch.
    failed: Option<(u32, EngineError)>,
    /// A user's code may be running.
    asking: bool,
    stopping: bool,
}

struct EpochsShared {
    job: Arc<Job>,
    kind: PolicyKind,
    state: Mutex<EpochsState>,
    changed: Condvar,
}

/// The epochs of a job.
pub struct Epochs {
    shared: Arc<EpochsShared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Epochs {
    pub fn new(job: &Arc<Job>, kind: &PolicyKind) -> std::io::Result<Self> {
        let shared = Arc::new(EpochsShared {
            job: job.clone(),
            kind: *kind,
            state: Mutex::new(EpochsState { end: job.epochs, ..EpochsState::default() }),
            changed: Condvar::new(),
        });
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new().name("belady-plan".into()).spawn(move || shared.run())?
        };
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the order of an epoch; `None` past the last one or when stopped.
    pub fn order(
        &self,
        epoch: u32,
        stopping: impl Fn() -> bool,
    ) -> Result<Option<Arc<EpochOrder>>, EngineError> {
        let mut state = lock(&self.shared.state);
        state.staging = state.staging.max(epoch);
        self.shared.changed.notify_all();
        loop {
            if let Some((_, order)) = state.orders.iter().find(|(other, _)| *other == epoch) {
                return Ok(Some(order.clone()));
            }
            if stopping() || state.end.is_some_and(|end| epoch >= end) {
                return Ok(None);
            }
            if let Some((_, error)) = state.failed.take_if(|(due, _)| *due <= epoch) {
                return Err(error);
            }
            let waited = self.shared.changed.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the plan once it knows the epoch; `None` if that takes longer than `patience`.
    pub fn plan(
        &self,
        epoch: u32,
        patience: Duration,
        stopping: impl Fn() -> bool,
    ) -> Result<Option<Arc<dyn PolicyPlan>>, EngineError> {
        let deadline = Instant::now().checked_add(patience);
        let mut state = lock(&self.shared.state);
        loop {
            if state.begun > epoch {
                return Ok(state.plan.clone());
            }
            if let Some((_, error)) = state.failed.take_if(|(due, _)| *due <= epoch) {
                return Err(error);
            }
            let left = deadline.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() || stopping() {
                return Ok(None);
            }
            let waited = self.shared.changed.wait_timeout(state, left.min(TICK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns whether the number of epochs is not known.
    pub fn are_endless(&self) -> bool {
        lock(&self.shared.state).end.is_none()
    }

    /// Returns whether this epoch is known to be the last one.
    pub fn is_last(&self, epoch: u32) -> bool {
        let state = lock(&self.shared.state);
        let failed = state.failed.as_ref().map(|(due, _)| *due);
        state.end == Some(epoch + 1) || failed == Some(epoch + 1)
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        let asking = {
            let mut state = lock(&self.shared.state);
            state.stopping = true;
            state.asking
        };
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && !asking
        {
            // It only computes, so it ends; its panic was reported.
            let _ = thread.join();
        }
    }
}

/// Wakes the planner when the thread ends, and reports a panic.
struct ThreadEnd<'a>(&'a EpochsShared);

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = "planning panicked, which is a defect of belady; please report it";
            self.0.fail(0, Unsupported(why.to_owned()));
        }
        self.0.changed.notify_all();
    }
}

impl EpochsShared {
    fn run(&self) {
        let _end = ThreadEnd(self);
        let mut order = self.ask(0);
        self.publish(0, order.as_ref());
        let plan = match policy::plan(&self.kind, &self.job) {
            Ok(plan) => plan,
            Err(error) => return self.fail(0, error),
        };
        lock(&self.state).plan = Some(plan.clone());
        for epoch in 0.. {
            let Some(this) = order.take() else { return };
            if !self.wait_until_wanted(epoch) {
                return;
            }
            order = self.ask(epoch + 1);
            plan.begin_epoch(epoch, &this, order.as_ref());
            self.publish(epoch + 1, order.as_ref());
            lock(&self.state).begun = epoch + 1;
            self.changed.notify_all();
        }
    }

    /// Asks for the order of an epoch; returns `None` if there is none, or on a failure.
    fn ask(&self, epoch: u32) -> Option<Arc<EpochOrder>> {
        {
            let mut state = lock(&self.state);
            if state.stopping || state.end.is_some_and(|end| epoch >= end) {
                return None;
            }
            state.asking = true;
        }
        let asked = self.job.stream.ask(epoch);
        lock(&self.state).asking = false;
        match asked {
            Ok(Some(order)) => return Some(Arc::new(order)),
            Ok(None) => lock(&self.state).end = Some(epoch),
            Err(error) => self.fail(epoch, error),
        }
        self.changed.notify_all();
        None
    }

    /// Records a failure; that of the earliest epoch counts.
    fn fail(&self, epoch: u32, error: impl Into<EngineError>) {
        let failed = &mut lock(&self.state).failed;
        if failed.as_ref().is_none_or(|(due, _)| epoch < *due) {
            *failed = Some((epoch, error.into()));
        }
        self.changed.notify_all();
    }

    fn publish(&self, epoch: u32, order: Option<&Arc<EpochOrder>>) {
        let mut state = lock(&self.state);
        let staging = state.staging;
        state.orders.retain(|(other, _)| *other >= staging);
        state.orders.extend(order.map(|order| (epoch, order.clone())));
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until an epoch is needed, since plans keep few epochs; returns false to stop.
    fn wait_until_wanted(&self, epoch: u32) -> bool {
        // An epoch begins with the order of the one after it.
        let ahead = u32::from(self.job.stream.ahead());
        let mut state = lock(&self.state);
        while !state.stopping && epoch > state.staging + ahead {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.stopping
    }
}

impl std::fmt::Debug for Epochs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epochs").field("policy", &self.shared.kind).finish_non_exhaustive()
    }
}

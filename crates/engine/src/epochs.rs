//! Orders and plans of the epochs, made ready on a thread of their own, ahead of the
//! planner.
//!
//! The first order is there first, so that the first batch need not wait for the plan; the
//! plan follows. From then on an epoch is made ready while the one before it is staged, so
//! there is no gap between them.

use std::sync::PoisonError;
use std::time::Duration;

use belady_control::Job;
use belady_control::policy::{self, Plan, PolicyKind, Unsupported};
use belady_control::sampler::EpochOrder;
use belady_data::sync::{Arc, Condvar, Mutex, lock};

/// Epochs made ready beyond the one being staged.
const AHEAD: u32 = 1;

#[derive(Default)]
struct State {
    orders: Vec<(u32, Arc<EpochOrder>)>,
    plan: Option<Arc<dyn Plan>>,
    /// Epochs that the plan was told of.
    begun: u32,
    /// The epoch being staged.
    staging: u32,
    failed: Option<Unsupported>,
    stopping: bool,
}

struct Shared {
    job: Arc<Job>,
    kind: PolicyKind,
    state: Mutex<State>,
    changed: Condvar,
}

/// The epochs of a job.
pub struct Epochs {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Epochs {
    pub fn new(job: &Arc<Job>, kind: &PolicyKind) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            job: job.clone(),
            kind: *kind,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new().name("belady-plan".into()).spawn(move || shared.run())?
        };
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The order of an epoch; `None` past the last one or when stopped.
    pub fn order(&self, epoch: u32) -> Result<Option<Arc<EpochOrder>>, Unsupported> {
        let mut state = lock(&self.shared.state);
        state.staging = state.staging.max(epoch);
        self.shared.changed.notify_all();
        loop {
            if let Some((_, order)) = state.orders.iter().find(|(other, _)| *other == epoch) {
                return Ok(Some(order.clone()));
            }
            let past_the_last = self.shared.job.epochs.is_some_and(|epochs| epoch >= epochs);
            if state.stopping || past_the_last {
                return Ok(None);
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The plan, once it knows the epoch; waits for it at most so long.
    pub fn plan(
        &self,
        epoch: u32,
        patience: Duration,
    ) -> Result<Option<Arc<dyn Plan>>, Unsupported> {
        let ready =
            |state: &mut State| state.begun <= epoch && state.failed.is_none() && !state.stopping;
        let state = lock(&self.shared.state);
        let (state, _) = self
            .shared
            .changed
            .wait_timeout_while(state, patience, ready)
            .unwrap_or_else(PoisonError::into_inner);
        match &state.failed {
            Some(error) => Err(error.clone()),
            None => Ok(state.plan.clone().filter(|_| state.begun > epoch)),
        }
    }

    pub fn is_last(&self, epoch: u32) -> bool {
        self.shared.job.epochs.is_some_and(|epochs| epoch + 1 == epochs)
    }

    pub fn stop(&self) {
        lock(&self.shared.state).stopping = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // It only computes, so it ends; a panic of it was reported already.
            let _ = thread.join();
        }
    }
}

/// Lets nobody wait for a thread that has gone, whatever it died of.
struct Guard<'a>(&'a Shared);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = "planning failed with a panic, which is a defect of belady";
            lock(&self.0.state).failed = Some(Unsupported(why.to_owned()));
        }
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        let _guard = Guard(self);
        let mut order = Some(Arc::new(self.job.stream.epoch(0)));
        self.publish(0, order.as_ref());
        let plan = match policy::plan(&self.kind, &self.job) {
            Ok(plan) => plan,
            Err(error) => {
                lock(&self.state).failed = Some(error);
                self.changed.notify_all();
                return;
            }
        };
        lock(&self.state).plan = Some(plan.clone());
        for epoch in 0.. {
            let Some(this) = order.take() else { return };
            if !self.wait_until_wanted(epoch) {
                return;
            }
            let more = self.job.epochs.is_none_or(|epochs| epoch + 1 < epochs);
            order = more.then(|| Arc::new(self.job.stream.epoch(epoch + 1)));
            plan.begin_epoch(epoch, &this, order.as_ref());
            self.publish(epoch + 1, order.as_ref());
            lock(&self.state).begun = epoch + 1;
            self.changed.notify_all();
        }
    }

    fn publish(&self, epoch: u32, order: Option<&Arc<EpochOrder>>) {
        let mut state = lock(&self.state);
        let staging = state.staging;
        state.orders.retain(|(other, _)| *other >= staging);
        state.orders.extend(order.map(|order| (epoch, order.clone())));
        drop(state);
        self.changed.notify_all();
    }

    /// Whether to go on: no further ahead than needed, since plans keep few epochs.
    fn wait_until_wanted(&self, epoch: u32) -> bool {
        let mut state = lock(&self.state);
        while !state.stopping && epoch > state.staging + AHEAD {
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

//! Drives a job's policy: sends it events, one at a time, and hands its actions to the caller.
//!
//! The planner and the prefetchers send events. A trace records them in the order of the lock.

use std::time::Instant;

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::model::Seconds;
use belady_control::policy::{Actions, Event, NodeId, Policy, PolicyPlan};

use crate::trace::Recorder;

/// A job's policy behind a lock.
pub struct PolicyDriver {
    node: NodeId,
    state: Mutex<DriverState>,
    started: Instant,
}

struct DriverState {
    /// `None` until the first plan is ready.
    policy: Option<Box<dyn Policy>>,
    actions: Actions,
    /// The number of epochs that have begun.
    begun: u32,
    recorder: Option<Recorder>,
}

impl PolicyDriver {
    pub fn new(node: NodeId, recorder: Option<Recorder>) -> Self {
        let state = DriverState { policy: None, actions: Actions::default(), begun: 0, recorder };
        Self { node, state: Mutex::new(state), started: Instant::now() }
    }

    fn now(&self) -> Seconds {
        Seconds(self.started.elapsed().as_secs_f64())
    }

    /// Begins an epoch of which the plan knows.
    pub fn begin(&self, plan: &Arc<dyn PolicyPlan>, epoch: u32) {
        let mut state = lock(&self.state);
        if state.policy.is_none() {
            state.policy = Some(plan.clone().node(self.node));
        }
        let now = self.now();
        // Epochs that were staged before the plan was ready have begun too.
        for epoch in state.begun..=epoch {
            if let Some(recorder) = &mut state.recorder {
                recorder.begin(now, epoch);
            }
        }
        state.begun = epoch + 1;
    }

    /// Closes the trace.
    pub fn finish(&self) {
        let recorder = lock(&self.state).recorder.take();
        if let Some(recorder) = recorder {
            recorder.finish();
        }
    }

    /// Sends an event to the policy and passes its actions to `apply`. Returns `None`, and sends
    /// nothing, before the plan is ready.
    pub fn send<T>(&self, event: Event<'_>, apply: impl FnOnce(&Actions) -> T) -> Option<T> {
        let state = &mut *lock(&self.state);
        let policy = state.policy.as_mut()?;
        let now = self.now();
        state.actions.clear();
        policy.on(now, event, &mut state.actions);
        if let Some(recorder) = &mut state.recorder {
            recorder.record(now, &event, &state.actions);
        }
        Some(apply(&state.actions))
    }
}

impl std::fmt::Debug for PolicyDriver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyDriver").finish_non_exhaustive()
    }
}

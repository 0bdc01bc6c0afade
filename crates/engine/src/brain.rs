//! A job's policy and those who talk to it: the planner, and whoever has fetched something
//! in the background. They take turns; the order in which they do is what a trace records.

use std::time::Instant;

use belady_control::model::Seconds;
use belady_control::policy::{Actions, Event, NodeId, Plan, Policy};
use belady_data::sync::{Arc, Mutex, lock};

use crate::trace::Recorder;

pub struct Brain {
    node: NodeId,
    state: Mutex<State>,
    started: Instant,
}

struct State {
    /// `None` until the plan is there.
    policy: Option<Box<dyn Policy>>,
    actions: Actions,
    /// Epochs that were begun.
    begun: u32,
    recorder: Option<Recorder>,
}

impl Brain {
    pub fn new(node: NodeId, recorder: Option<Recorder>) -> Self {
        let state = State { policy: None, actions: Actions::default(), begun: 0, recorder };
        Self { node, state: Mutex::new(state), started: Instant::now() }
    }

    fn now(&self) -> Seconds {
        Seconds(self.started.elapsed().as_secs_f64())
    }

    /// An epoch that the plan knows is staged from now on.
    pub fn begin(&self, plan: &Arc<dyn Plan>, epoch: u32) {
        let mut state = lock(&self.state);
        if state.policy.is_none() {
            state.policy = Some(plan.clone().node(self.node));
        }
        let now = self.now();
        // An epoch that was staged before there was a plan has been begun all the same.
        for epoch in state.begun..=epoch {
            if let Some(recorder) = &mut state.recorder {
                recorder.begin(now, epoch);
            }
        }
        state.begun = epoch + 1;
    }

    /// Ends the trace.
    pub fn finish(&self) {
        let recorder = lock(&self.state).recorder.take();
        if let Some(recorder) = recorder {
            recorder.finish();
        }
    }

    /// Tells the policy and hands its answer on; nothing happens before there is a plan.
    pub fn tell<T>(&self, event: Event<'_>, hear: impl FnOnce(&Actions) -> T) -> Option<T> {
        let state = &mut *lock(&self.state);
        let policy = state.policy.as_mut()?;
        let now = self.now();
        state.actions.clear();
        policy.on(now, event, &mut state.actions);
        if let Some(recorder) = &mut state.recorder {
            recorder.record(now, &event, &state.actions);
        }
        Some(hear(&state.actions))
    }
}

impl std::fmt::Debug for Brain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Brain").finish_non_exhaustive()
    }
}

//! What the threads of an engine are assigned to, and the model fitted to what they do.

use belady_base::sync::{Mutex, lock};
use belady_control::model::online::FittedModel;
use serde::{Deserialize, Serialize};

/// The threads of an engine by duty, as they are assigned. Of several jobs, as the job that changed
/// its assignment last has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedThreads {
    /// Threads that load.
    pub loading: u64,
    /// Threads that transform.
    pub transforming: u64,
    /// By local rank: how many may load for it at once.
    pub loading_by_rank: Vec<u64>,
    /// By local rank: how many may transform for it at once.
    pub transforming_by_rank: Vec<u64>,
}

/// The threads of an engine at one moment, also in a difference, apart from the changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadsSnapshot {
    /// What they are assigned to.
    pub assigned: AssignedThreads,
    /// How often the assignment has changed.
    pub changes: u64,
    /// The model fitted to the last iterations; empty without transforms.
    pub model: FittedModel,
}

/// The shared figures behind [`ThreadsSnapshot`].
#[derive(Debug, Default)]
pub struct ThreadMetrics(Mutex<ThreadsSnapshot>);

impl ThreadMetrics {
    /// Records an assignment; counts it unless the threads are what has changed.
    pub fn assigned(&self, assigned: AssignedThreads, counts: bool) {
        let mut seen = lock(&self.0);
        seen.changes += u64::from(counts && seen.assigned != assigned);
        seen.assigned = assigned;
    }

    /// Records a fitted model.
    pub fn fitted(&self, model: &FittedModel) {
        lock(&self.0).model.clone_from(model);
    }

    /// Returns the figures.
    pub fn snapshot(&self) -> ThreadsSnapshot {
        lock(&self.0).clone()
    }
}

impl ThreadsSnapshot {
    /// Returns these figures with the changes since an earlier snapshot.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let changes = self.changes.saturating_sub(earlier.changes);
        Self { changes, ..self.clone() }
    }
}

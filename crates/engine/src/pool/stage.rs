//! Transform stages that the threads of a pool work for.
//!
//! A stage belongs to a rank of a lane and brings threads, which the lane may also use otherwise.
//! A thread that transforms works for the lane with the fewest such threads, and there for the rank
//! that is about to become a straggler: the one whose oldest unfinished batch is of the earliest
//! step and has most samples left.

use std::cmp::Reverse;
use std::time::Duration;

use belady_base::sync::{Arc, lock};
use belady_control::sampler::Step;

use super::PoolShared;

/// How late a rank's next batch is; the greatest is the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lateness {
    /// The step of the oldest batch that is not done.
    pub step: Reverse<Step>,
    /// Samples of it that are not transformed.
    pub left: usize,
}

/// The work of a transform stage.
pub trait TransformWork: Send + Sync {
    /// Returns how late the stage is; `None` if it has no samples for another thread.
    fn lateness(&self) -> Option<Lateness>;

    /// Returns the number of ranks of the node.
    fn ranks(&self) -> usize;

    /// Transforms samples until none are left to claim, or `leave` says that the thread is needed
    /// for another duty. The thread had been idle for some time before.
    fn run(&self, idled: Duration, leave: &dyn Fn() -> bool);
}

/// A stage in the queues.
pub struct StageEntry {
    pub id: u64,
    pub lane: u64,
    pub rank: usize,
    /// The threads that it brought.
    pub threads: u32,
    /// The threads that work for it now.
    pub running: u32,
    pub work: Arc<dyn TransformWork>,
}

/// A stage that threads work for while this exists.
pub struct StageSlot {
    pub(super) pool: Arc<PoolShared>,
    pub(super) id: u64,
}

impl StageSlot {
    /// Wakes threads that transform: there are samples to claim.
    pub fn wake(&self) {
        // Under the lock, or a thread that has just found nothing would sleep on.
        let queues = lock(&self.pool.queues);
        self.pool.wake_transforming(&queues);
    }
}

impl Drop for StageSlot {
    /// Waits for threads that work for the stage, and takes back those that it brought.
    fn drop(&mut self) {
        let mut queues = lock(&self.pool.queues);
        queues.closing += 1;
        while queues.stage(self.id).is_some_and(|stage| stage.running > 0) {
            queues =
                self.pool.ended.wait(queues).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        queues.closing -= 1;
        let gone = queues.stages.extract_if(.., |stage| stage.id == self.id).next();
        self.pool.redivide(&mut queues);
        drop(queues);
        drop(gone);
    }
}

impl std::fmt::Debug for StageSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StageSlot").field("id", &self.id).finish_non_exhaustive()
    }
}

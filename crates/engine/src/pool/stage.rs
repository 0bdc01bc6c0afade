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

use super::duty::TransformShare;
use super::{PoolShared, queues::Queues};

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

impl Queues {
    pub fn stage(&self, id: u64) -> Option<&StageEntry> {
        self.stages.iter().find(|stage| stage.id == id)
    }

    /// Takes the stage that a thread is to work for, and counts the thread.
    pub fn take_stage(&mut self) -> Option<(u64, usize, Arc<dyn TransformWork>)> {
        let running = |lane: u64| -> u32 {
            self.stages.iter().filter(|stage| stage.lane == lane).map(|stage| stage.running).sum()
        };
        let may_run = |stage: &StageEntry| {
            let share = self
                .lane(stage.lane)
                .map_or(TransformShare::Pooled, |lane| lane.threads.transforming);
            match share {
                TransformShare::Pooled => true,
                TransformShare::PerRank => stage.running < stage.threads,
                TransformShare::Threads(threads) => running(stage.lane) < threads.max(1),
            }
        };
        let late = self.stages.iter().enumerate().filter(|(_, stage)| may_run(stage));
        let late = late.filter_map(|(at, stage)| {
            Some((Reverse(running(stage.lane)), stage.work.lateness()?, Reverse(stage.rank), at))
        });
        let (.., at) = late.max()?;
        let stage = &mut self.stages[at];
        stage.running += 1;
        Some((stage.id, stage.rank, stage.work.clone()))
    }

    /// Counts a thread that has stopped working for a stage.
    pub fn leave_stage(&mut self, id: u64) {
        if let Some(stage) = self.stages.iter_mut().find(|stage| stage.id == id) {
            stage.running -= 1;
        }
    }
}

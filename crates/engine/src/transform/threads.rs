//! The work of a transform stage: a thread of its own pulls batches, and those of the engine that
//! transform work for it.

use std::time::Duration;

use belady_base::sync::{Arc, Mutex, lock};
use belady_transform::Scratch;

use super::batch::{BatchTransform, Recipe};
use super::memory::BlockPool;
use super::queue::{DefectGuard, QueueEnd, TransformQueue};
use crate::EngineError;
use crate::deliver::{Delivery, Loader};
use crate::job::ThreadMeter;
use crate::metrics::Metrics;
use crate::pool::{Lateness, StageSlot, TransformWork};

/// How often a puller that waits for a batch checks whether the stage is closed.
const TICK: Duration = Duration::from_millis(20);

/// Takes batches from the loader while there is space for them. Stays until the queue is closed,
/// since the job ends with it.
pub fn pull(
    mut loader: Loader,
    queue: &TransformQueue,
    slot: &StageSlot,
    recipe: &Arc<Recipe>,
    pool: &Arc<BlockPool>,
) {
    let _guard = DefectGuard(queue);
    while queue.wait_for_space() {
        let problem = match loader.next_batch_timeout(TICK) {
            Ok(Delivery::TimedOut) => continue,
            Ok(Delivery::Ended) => {
                queue.end(QueueEnd::Complete);
                return queue.wait_until_closed();
            }
            Ok(Delivery::Batch(raw)) => match BatchTransform::new(recipe, raw, pool) {
                Ok(work) => {
                    queue.add(work);
                    slot.wake();
                    continue;
                }
                Err(problem) => problem,
            },
            Err(problem) => problem,
        };
        let goes_on = matches!(problem, EngineError::BadSample { .. });
        queue.add_failure(problem);
        if !goes_on {
            queue.end(QueueEnd::Broken);
            return queue.wait_until_closed();
        }
    }
}

/// A stage, as the threads that transform see it.
#[derive(Debug)]
pub struct StageWork {
    pub queue: Arc<TransformQueue>,
    pub meter: Arc<ThreadMeter>,
    pub metrics: Arc<Metrics>,
    /// Of the node.
    pub ranks: usize,
    /// Those that no thread uses now: at most as many as have transformed at once.
    pub scratches: Mutex<Vec<Scratch>>,
}

impl TransformWork for StageWork {
    fn lateness(&self) -> Option<Lateness> {
        self.queue.lateness()
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    /// Transforms samples of one batch.
    fn run(&self, idled: Duration, leave: &dyn Fn() -> bool) {
        let _guard = DefectGuard(&self.queue);
        self.metrics.transform_idle(idled);
        let Some(work) = self.queue.next_work() else { return };
        let mut scratch = lock(&self.scratches).pop().unwrap_or_default();
        let stop = || self.queue.is_closing() || leave();
        if work.run(&mut scratch, &self.metrics, &self.meter, stop) {
            self.queue.signal_done();
        }
        lock(&self.scratches).push(scratch);
    }
}

//! The threads of a transform stage.

use std::time::Duration;

use belady_base::sync::Arc;
use belady_transform::Scratch;

use super::batch::{BatchTransform, Recipe};
use super::memory::BlockPool;
use super::queue::{DefectGuard, QueueEnd, TransformQueue};
use crate::EngineError;
use crate::deliver::{Delivery, Loader};
use crate::metrics::Metrics;

/// How often a puller that waits for a batch checks whether the stage is closed.
const TICK: Duration = Duration::from_millis(20);

/// Takes batches from the loader while there is space for them. Stays until the queue is closed,
/// since the job ends with it.
pub fn pull(
    mut loader: Loader,
    queue: &TransformQueue,
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

/// Transforms samples until no more come.
pub fn transform(queue: &TransformQueue, metrics: &Metrics) {
    let _guard = DefectGuard(queue);
    let mut scratch = Scratch::default();
    while let Some(work) = queue.next_work(metrics) {
        if work.run(&mut scratch, metrics, || queue.is_closing()) {
            queue.signal_done();
        }
    }
}

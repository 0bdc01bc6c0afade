//! What the threads of the stage do.

use std::time::Duration;

use belady_data::sync::Arc;
use belady_transform::Scratch;

use super::line::{End, Guard, Line};
use super::pool::Pool;
use super::work::{Recipe, Work};
use crate::EngineError;
use crate::loader::{Loader, Next};
use crate::metrics::Metrics;

/// How often a puller that waits for a batch looks whether it is still needed.
const TICK: Duration = Duration::from_millis(20);

/// Takes batches from the loader as there is room for them. The job lives as long as this runs,
/// so it stays until the line is closed.
pub fn pull(mut loader: Loader, line: &Line, recipe: &Arc<Recipe>, pool: &Arc<Pool>) {
    let _guard = Guard(line);
    while line.wait_for_room() {
        let problem = match loader.next_batch_timeout(TICK) {
            Ok(Next::TimedOut) => continue,
            Ok(Next::Ended) => {
                line.end(End::Complete);
                return line.wait_until_closed();
            }
            Ok(Next::Batch(raw)) => match Work::new(recipe, raw, pool) {
                Ok(work) => {
                    line.add(work);
                    continue;
                }
                Err(problem) => problem,
            },
            Err(problem) => problem,
        };
        let goes_on = matches!(problem, EngineError::BadSample { .. });
        line.add_failure(problem);
        if !goes_on {
            line.end(End::Broken);
            return line.wait_until_closed();
        }
    }
}

/// Transforms samples as long as there are any.
pub fn transform(line: &Line, metrics: &Metrics) {
    let _guard = Guard(line);
    let mut scratch = Scratch::default();
    while let Some(work) = line.next_work(metrics) {
        if work.run(&mut scratch, metrics, || line.is_closing()) {
            line.tell_done();
        }
    }
}

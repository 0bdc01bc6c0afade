//! Compares files with their listing before copies of them are taken from caches.
//!
//! A copy in a tier may be of an earlier run, or another process may have put it there, and its
//! file may have changed since. A file is compared once in a round ([`Source::compare`]), on
//! threads of the pool and under the watchdog, since the storage may hang. A background pass goes
//! over an epoch in its order, mostly ahead of the batches. A file that it has not reached when a
//! batch is filled is compared then.
//!
//! [`Source::compare`]: belady_data::source::Source::compare

use belady_base::sync::Arc;
use belady_control::policy::RankId;
use belady_control::sampler::EpochOrder;

use super::{BatchFill, source_reads, tier};
use crate::job::JobContext;
use crate::pool::{Hung, Task, Watched, Worker};

/// Items that one task compares at most: each is a call on the storage that may take a millisecond.
const IN_A_TASK: usize = 32;
/// Tasks of the background pass that are under way at once.
const AHEAD: u32 = 4;

/// Adds tasks that compare the files of items, and then read the items from their tiers.
pub fn tasks(fill: &BatchFill, items: &[u32], tasks: &mut Vec<Task>) {
    if items.is_empty() {
        return;
    }
    let job = &fill.batch.job;
    let each = items.len().div_ceil(job.lane.threads() as usize).min(IN_A_TASK);
    for items in items.chunks(each) {
        let (fill, items) = (fill.clone(), items.to_vec());
        tasks.push(job.task(move |worker| compare_and_fill(worker, &fill, &items)));
    }
}

fn compare_and_fill(worker: &Worker, fill: &BatchFill, items: &[u32]) {
    let (batch, job) = (&fill.batch, &fill.batch.job);
    if job.is_stopping() {
        return;
    }
    let on_timeout = {
        let (fill, items) = (fill.clone(), items.to_vec());
        // They are tried again at the source, which compares as well.
        move |hung: Hung| source_reads::timed_out(&fill, &items, 1, hung)
    };
    let compare = || -> Vec<_> {
        items.iter().map(|&index| job.source.compare(batch.item(index).sample)).collect()
    };
    let Watched::InTime(outcomes) = worker.watch(on_timeout, compare) else { return };
    let mut unchanged = vec![];
    for (&index, outcome) in items.iter().zip(outcomes) {
        match outcome {
            Ok(()) => unchanged.push(index),
            Err(error) => source_reads::failed(fill, index, 1, error),
        }
    }
    tier::fill(Some(worker), fill, &unchanged);
}

/// Starts the background pass over an epoch.
pub fn compare_ahead(job: &Arc<JobContext>, order: &Arc<EpochOrder>, rank: RankId) {
    if job.tiers.are_empty() {
        return;
    }
    let passes = (0..AHEAD).map(|first| pass(job, order, rank, first));
    job.lane.submit_background(passes.collect::<Vec<_>>());
}

/// Compares one batch; the batch after the next few follows it.
fn pass(job: &Arc<JobContext>, order: &Arc<EpochOrder>, rank: RankId, iteration: u32) -> Task {
    let (for_task, order) = (job.clone(), order.clone());
    job.task(move |worker| {
        let job = &for_task;
        if job.is_stopping() || iteration >= order.iterations() {
            return;
        }
        let compare = || {
            for sample in order.batch(rank, iteration) {
                let is_due = !job.source.is_compared(sample) && job.tiers.find(sample).is_some();
                if is_due && job.source.compare(sample).is_err() {
                    // The thread that fills it gets the same error, and reports it.
                    return;
                }
            }
        };
        // If it hangs, the batches are filled without the pass.
        if let Watched::InTime(()) = worker.watch(|_| (), compare) {
            job.lane.submit_background([pass(job, &order, rank, iteration + AHEAD)]);
        }
    })
}

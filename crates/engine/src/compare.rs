//! Comparing files with their listing before copies of them are taken from caches.
//!
//! What a tier holds may be of an earlier run, or another process may have put it there: its file
//! may have changed since. A file is compared once in a round ([`Source::compare`]), on threads that
//! load and under watch, since the storage may hang. A pass goes over an epoch in its order, as
//! background work, and is mostly ahead. What it has not come to when a batch is loaded is compared
//! there and then.
//!
//! [`Source::compare`]: belady_data::source::Source::compare

use belady_control::policy::RankId;
use belady_control::sampler::EpochOrder;
use belady_data::sync::Arc;

use crate::load;
use crate::parcel::Parcel;
use crate::pool::{Hung, Task, Watched, Worker};
use crate::run::Run;

/// Items that one task compares at most: each is a call on the storage that may take a millisecond.
const IN_A_TASK: usize = 32;
/// Tasks of the pass that are under way at once.
const AHEAD: u32 = 4;

/// Tasks that compare the files of items, and then load them from their tiers.
pub fn tasks(parcel: &Arc<Parcel>, items: &[u32], tasks: &mut Vec<Task>) {
    if items.is_empty() {
        return;
    }
    let run = &parcel.run;
    let each = items.len().div_ceil(run.lane.threads() as usize).min(IN_A_TASK);
    for items in items.chunks(each) {
        let (parcel, items) = (parcel.clone(), items.to_vec());
        tasks.push(run.task(move |worker| compare_and_load(worker, &parcel, &items)));
    }
}

fn compare_and_load(worker: &Worker, parcel: &Arc<Parcel>, items: &[u32]) {
    let run = &parcel.run;
    if run.is_stopping() {
        return;
    }
    let on_timeout = {
        let (parcel, items) = (parcel.clone(), items.to_vec());
        // They are tried again at the source, which compares as well.
        move |hung: Hung| load::timed_out(&parcel, &items, 1, hung)
    };
    let compare = || -> Vec<_> {
        let sample = |&index: &u32| parcel.items[index as usize].sample;
        items.iter().map(|index| run.source.compare(sample(index))).collect()
    };
    let Watched::InTime(outcomes) = worker.watch(on_timeout, compare) else { return };
    let mut right = vec![];
    for (&index, outcome) in items.iter().zip(outcomes) {
        match outcome {
            Ok(()) => right.push(index),
            Err(error) => load::failed(parcel, index, 1, error),
        }
    }
    load::load_from_tiers(Some(worker), parcel, &right);
}

/// Goes over an epoch ahead of the loading threads.
pub fn ahead(run: &Arc<Run>, order: &Arc<EpochOrder>, rank: RankId) {
    if run.cache.status().iter().all(|tier| tier.samples == 0) {
        return;
    }
    let passes = (0..AHEAD).map(|first| pass(run, order, rank, first));
    run.lane.submit_background(passes.collect::<Vec<_>>());
}

/// One batch of the pass; the batch after the next few follows it.
fn pass(run: &Arc<Run>, order: &Arc<EpochOrder>, rank: RankId, iteration: u32) -> Task {
    let (for_task, order) = (run.clone(), order.clone());
    run.task(move |worker| {
        let run = &for_task;
        if run.is_stopping() || iteration >= order.iterations() {
            return;
        }
        let compare = || {
            for sample in order.batch(rank, iteration) {
                let asks = !run.source.is_compared(sample) && run.cache.find(sample).is_some();
                if asks && run.source.compare(sample).is_err() {
                    // The thread that loads it finds the same, and reports it.
                    return;
                }
            }
        };
        // If it hangs, the loading threads do without the pass.
        if let Watched::InTime(()) = worker.watch(|_| (), compare) {
            run.lane.submit_background([pass(run, &order, rank, iteration + AHEAD)]);
        }
    })
}

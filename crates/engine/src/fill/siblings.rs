//! Fills slots from other jobs of the engine on the same dataset, before the source is read.
//!
//! A sample is copied from a tier in memory of another job, also of one that has ended, or taken
//! from another job's read that is in flight or among the last ones. Otherwise this job leads a read
//! that others may use.

use belady_base::SampleId;
use belady_base::sync::Arc;
use belady_data::tier::{Get, Tier};

use super::{BatchFill, source_reads};
use crate::job::{JobContext, LeadingBatch, LeadingItem, SharedReads, SharedRole, Waiter};
use crate::metrics::Served;
use crate::pool::{Hung, Watched, Worker};

/// Fills what other jobs hold or read. Returns the requests that remain; `None` if a comparison
/// hangs, and another thread goes on.
pub fn fill(
    worker: &Worker,
    fill: &BatchFill,
    requests: &Arc<[Vec<u32>]>,
) -> Option<Arc<[Vec<u32>]>> {
    let job = &fill.batch.job;
    let Some(reads) = &job.dataset.reads else { return Some(requests.clone()) };
    let others = job.dataset.others(job);
    let sharing = SiblingReads { fill, reads, others, retained: job.tiers.retained() };
    let failed = sharing.compare(worker, requests)?;
    let mut rest = vec![];
    for request in &**requests {
        let mut items = request.clone();
        items.retain(|index| !failed.contains(index) && !sharing.takes(*index));
        if !items.is_empty() {
            rest.push(items);
        }
    }
    Some(rest.into())
}

/// What one task takes from other jobs.
struct SiblingReads<'a> {
    fill: &'a BatchFill,
    reads: &'a SharedReads,
    others: Vec<Arc<JobContext>>,
    /// The tiers of jobs that have ended.
    retained: Vec<Arc<dyn Tier>>,
}

impl SiblingReads<'_> {
    /// Compares the files of samples that other jobs have, since a copy counts only if its file has
    /// not changed. Returns items that cannot be compared, which are tried again or have failed;
    /// `None` if a comparison hangs.
    fn compare(&self, worker: &Worker, requests: &Arc<[Vec<u32>]>) -> Option<Vec<u32>> {
        let (batch, job) = (&self.fill.batch, &self.fill.batch.job);
        let is_due = |&index: &u32| {
            let sample = batch.item(index).sample;
            !job.source.is_compared(sample)
                && (self.reads.is_open(sample) || self.is_in_memory(sample))
        };
        let due: Vec<u32> = requests.iter().flatten().copied().filter(is_due).collect();
        if due.is_empty() {
            return Some(due);
        }
        let on_timeout = {
            let (fill, requests) = (self.fill.clone(), requests.clone());
            move |hung: Hung| source_reads::timed_out(&fill, &requests.concat(), 1, hung)
        };
        let compare = || -> Vec<_> {
            due.iter().map(|&index| job.source.compare(batch.item(index).sample)).collect()
        };
        let Watched::InTime(outcomes) = worker.watch(on_timeout, compare) else { return None };
        let mut failed = vec![];
        for (&index, outcome) in due.iter().zip(outcomes) {
            if let Err(error) = outcome {
                source_reads::failed(self.fill, index, 1, error);
                failed.push(index);
            }
        }
        Some(failed)
    }

    /// Returns the job, this one included, that holds a sample in memory.
    fn holder(&self, sample: SampleId) -> Option<&Arc<JobContext>> {
        let mut jobs = std::iter::once(&self.fill.batch.job).chain(&self.others);
        jobs.find(|job| job.tiers.find_in_memory(sample).is_some())
    }

    fn is_in_memory(&self, sample: SampleId) -> bool {
        self.holder(sample).is_some()
            || self.reads.recent.has(sample)
            || self.retained.iter().any(|tier| tier.holds(sample))
    }

    /// Returns whether an item is filled, or will be by another job's read.
    fn takes(&self, index: u32) -> bool {
        let (batch, job) = (&self.fill.batch, &self.fill.batch.job);
        let item = batch.item(index);
        if item.slot_is_lost() || item.leads_shared() {
            return false;
        }
        let is_compared = job.source.is_compared(item.sample);
        let leader = || -> LeadingItem {
            let batch: Arc<dyn LeadingBatch> = batch.clone();
            (Arc::downgrade(&batch), index)
        };
        let waiter =
            || -> Box<dyn Waiter> { Box::new(SharedReadWaiter { fill: self.fill.clone(), index }) };
        // SAFETY: one thread at a time fills an item, and this one does.
        let slot = unsafe { batch.slot(index) };
        let version = match self.reads.enter(job, item.sample, slot, is_compared, leader, waiter) {
            SharedRole::Wait => return true,
            SharedRole::Alone => return false,
            SharedRole::Copied(version) => version,
            SharedRole::Lead => {
                item.set_leads_shared(true);
                // Looked up after leading: a read that ended meanwhile has left the sample in a
                // tier.
                match self.copy_from_memory(index).filter(|_| is_compared) {
                    Some(version) => version,
                    None => return false,
                }
            }
        };
        if !self.fill.accepts(index, version) {
            return false;
        }
        self.fill.shared_arrived(index, version);
        true
    }

    /// Copies an item from a tier in memory, and returns its version.
    fn copy_from_memory(&self, index: u32) -> Option<i64> {
        let (batch, job) = (&self.fill.batch, &self.fill.batch.job);
        let sample = batch.item(index).sample;
        // SAFETY: one thread at a time fills an item, and this one does.
        let slot = unsafe { batch.slot(index) };
        if let Some(holder) = self.holder(sample) {
            let id = holder.tiers.find_in_memory(sample)?;
            let version = holder.tiers.current_version(id, sample)?;
            return (holder.tiers.get(id)?.get(sample, slot) == Get::Hit).then_some(version);
        }
        if let Some(version) = self.reads.recent.copy(sample, slot) {
            return Some(version);
        }
        // Retained tiers have copies of the listed versions.
        let listed = Some(job.source.version(sample)).filter(|version| !version.noticed)?;
        let hit = self.retained.iter().any(|tier| tier.get(sample, slot) == Get::Hit);
        hit.then_some(listed.changed)
    }
}

/// An item that waits for another job's read.
struct SharedReadWaiter {
    fill: BatchFill,
    index: u32,
}

impl Waiter for SharedReadWaiter {
    fn arrived(self: Box<Self>, bytes: &[u8], version: i64) {
        if !self.fill.accepts(self.index, version) {
            return self.failed();
        }
        // SAFETY: the item waits, so no other thread fills it, and no read has its slot.
        unsafe { self.fill.batch.slot(self.index) }.copy_from_slice(bytes);
        self.fill.shared_arrived(self.index, version);
    }

    fn failed(self: Box<Self>) {
        source_reads::submit_alone(&self.fill, self.index);
    }
}

impl BatchFill {
    /// Counts an item whose slot holds what another job has read.
    fn shared_arrived(&self, index: u32, version: i64) {
        let batch = &self.batch;
        batch.item(index).set_version(version);
        batch.job.metrics.loaded(Served::Shared, 1, batch.size(index));
        batch.arrived(index);
        batch.filled(1);
    }
}

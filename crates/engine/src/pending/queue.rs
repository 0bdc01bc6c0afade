//! The pending batches of a job, in the order in which they retire.

use std::collections::VecDeque;

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::model::online::RankPending;

use super::PendingBatch;

/// Batches that have been planned and have not retired, oldest first.
#[derive(Debug, Default)]
pub struct PendingQueue(Mutex<VecDeque<Arc<PendingBatch>>>);

impl PendingQueue {
    /// Appends the batches of a step, one for each rank of this node.
    pub fn push(&self, batches: &[Arc<PendingBatch>]) {
        lock(&self.0).extend(batches.iter().cloned());
    }

    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Returns the oldest batch.
    pub fn first(&self) -> Option<Arc<PendingBatch>> {
        lock(&self.0).front().cloned()
    }

    /// Returns the sequence number of the oldest batch.
    pub fn first_sequence(&self) -> Option<u64> {
        lock(&self.0).front().map(|first| first.sequence)
    }

    /// Removes the oldest batch if all batches of its step are filled and it `may_retire`. Calls
    /// `retire` under the queue's lock, so that this happens to one batch after the other.
    pub fn pop_filled(
        &self,
        may_retire: impl FnOnce(&PendingBatch) -> bool,
        retire: impl FnOnce(&PendingBatch),
    ) -> Option<Arc<PendingBatch>> {
        let mut queue = lock(&self.0);
        let first = queue.front()?;
        let mut step = queue.iter().take_while(|batch| batch.sequence == first.sequence);
        if !step.all(|batch| batch.is_filled()) || !may_retire(first) {
            return None;
        }
        let batch = queue.pop_front()?;
        retire(&batch);
        Some(batch)
    }

    /// Returns the number of the last step up to which all are filled, when `batch` has been
    /// filled; `None` if its step or an earlier one is not.
    pub fn filled_through(&self, batch: &PendingBatch) -> Option<u64> {
        let queue = lock(&self.0);
        let through = match queue.iter().find(|other| !other.is_filled()) {
            Some(first) => first.sequence - 1,
            // Another thread may have retired it meanwhile.
            None => queue.back().map_or(batch.sequence, |last| last.sequence),
        };
        Some(through).filter(|&through| through >= batch.sequence)
    }

    /// Returns how many steps have not retired, and of what each rank's batches of them consist.
    pub fn pending_loads(&self, ranks: usize) -> (u32, Vec<RankPending>) {
        let queue = lock(&self.0);
        let mut loads = vec![RankPending::default(); ranks];
        for batch in &*queue {
            batch.add_loads(&mut loads[batch.rank]);
        }
        let (first, last) = (queue.front(), queue.back());
        let steps = first.zip(last).map_or(0, |(first, last)| last.sequence - first.sequence + 1);
        (steps as u32, loads)
    }

    /// Drops all batches.
    pub fn clear(&self) {
        let batches = std::mem::take(&mut *lock(&self.0));
        drop(batches);
    }

    #[cfg(test)]
    pub fn pop(&self) -> Option<Arc<PendingBatch>> {
        lock(&self.0).pop_front()
    }
}

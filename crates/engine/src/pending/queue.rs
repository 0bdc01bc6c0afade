//! The pending batches of a job, in the order in which they retire.

use std::collections::VecDeque;

use belady_base::sync::{Arc, Mutex, lock};

use super::PendingBatch;

/// Batches that have been planned and have not retired, oldest first.
#[derive(Debug, Default)]
pub struct PendingQueue(Mutex<VecDeque<Arc<PendingBatch>>>);

impl PendingQueue {
    pub fn push(&self, batch: Arc<PendingBatch>) {
        lock(&self.0).push_back(batch);
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

    /// Removes the oldest batch if it is filled and `may_retire`. Calls `retire` under the queue's
    /// lock, so that this happens to one batch after the other.
    pub fn pop_filled(
        &self,
        may_retire: impl FnOnce(&PendingBatch) -> bool,
        retire: impl FnOnce(&PendingBatch),
    ) -> Option<Arc<PendingBatch>> {
        let mut queue = lock(&self.0);
        let first = queue.front()?;
        if !first.is_filled() || !may_retire(first) {
            return None;
        }
        let batch = queue.pop_front()?;
        retire(&batch);
        Some(batch)
    }

    /// Returns the number of the last step up to which all are filled, when `batch` has been
    /// filled; `None` if an earlier step is not.
    pub fn filled_through(&self, batch: &PendingBatch) -> Option<u64> {
        let queue = lock(&self.0);
        let filled = queue.iter().take_while(|batch| batch.is_filled());
        let through = filled.last().map(|batch| batch.sequence);
        // If another thread has retired it meanwhile, all before it are filled too.
        let is_retired = queue.front().is_none_or(|first| first.sequence > batch.sequence);
        through.max(is_retired.then_some(batch.sequence))
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

//! Samples that an epoch uses again soon, where it draws with replacement.
//!
//! A sample that an epoch leaves for the next one is in place when all nodes are done with the
//! epoch ([`belady_peer::protocol::epoch_progress`]). A sample that a step keeps for a later step
//! of the same epoch is in place when the first of them has retired on all nodes, a few messages
//! after it has retired here. The later batch is filled ahead of time, perhaps before that. Then
//! the sample is looked up again instead of being read from the source once more.

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::EpochOrder;

use super::Peers;
use crate::pending::{BatchItem, PendingBatch};

/// A step has retired on other nodes, and its pushes have come, before this many more steps retire
/// here.
const JUST_RETIRED: u32 = 2;
/// Lookups after all earlier steps have retired here: for about 30 ms.
const LOOKUPS: u32 = 5;
/// The longest pause between lookups is the fourth, 8 ms, since steps may be short.
const LONGEST: u32 = 4;

/// The orders of the epochs that are staged: by number, the latest last.
#[derive(Debug, Default)]
pub struct StagedOrders(Mutex<Vec<(u32, Arc<EpochOrder>)>>);

impl StagedOrders {
    /// An epoch begins to be staged; the one before it may not be over.
    pub fn begin(&self, epoch: u32, order: &Arc<EpochOrder>) {
        let mut orders = lock(&self.0);
        orders.retain(|&(other, _)| other + 1 == epoch);
        orders.push((epoch, order.clone()));
    }

    /// Returns whether an epoch may use a sample more than once.
    pub fn may_repeat(&self, epoch: u32) -> bool {
        self.of(epoch).is_some_and(|order| order.may_repeat())
    }

    fn of(&self, epoch: u32) -> Option<Arc<EpochOrder>> {
        lock(&self.0).iter().find(|(other, _)| *other == epoch).map(|(_, order)| order.clone())
    }
}

impl Peers {
    /// Returns whether an earlier step of the batch's epoch may still bring a sample that is not
    /// where it should be; if so, the number of the pause before the next lookup.
    pub(super) fn may_repeat(
        &self,
        batch: &PendingBatch,
        item: &BatchItem,
        lookups: u32,
    ) -> Option<u32> {
        if !self.in_step {
            return None;
        }
        let step = batch.block.step();
        let order = self.orders.of(step.epoch)?;
        let first = self.queue.first_sequence().unwrap_or(batch.sequence);
        let pending = batch.sequence.saturating_sub(first) as u32;
        let used_within = |steps: u32| {
            order.repeats_in(item.sample, step.iteration.saturating_sub(steps)..step.iteration)
        };
        if used_within(pending) {
            return Some(lookups.min(LONGEST));
        }
        if !used_within(pending.saturating_add(JUST_RETIRED)) {
            return None;
        }
        let lookup = item.count_late_lookup();
        (lookup <= LOOKUPS).then_some(lookup.min(LONGEST))
    }
}

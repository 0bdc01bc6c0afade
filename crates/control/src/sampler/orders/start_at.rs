//! Resuming in the middle of a run.
//!
//! A position is an epoch and a number of batches delivered in it. Batches are counted for all
//! ranks together: batch t of every rank is its part of global batch t. So a position is valid for
//! any number of ranks whose batches together have the same length.
//!
//! That holds for torch's `DistributedSampler` and [`RankShare`](super::RankShare) because they
//! stride: global batch t has entries t·B to (t + 1)·B of the order for any number of ranks. Only
//! the epoch's end depends on that number. The order is padded to a multiple of it with samples
//! from its start, or truncated to one, so the last batch may repeat or leave out other samples;
//! where incomplete batches or tails are dropped, it may not exist. The schemes `contiguous` and
//! `imbalanced` never pad. The orders of one generator (`whole`, `imbalanced`, [`LoaderOrders`]) do
//! not depend on ranks either. But torch draws other orders for one rank than for several, so a run
//! that continues with one rank instead of several needs a [`RankOrders`] on both sides.
//!
//! [`LoaderOrders`]: super::LoaderOrders
//! [`RankOrders`]: super::RankOrders

use std::sync::Arc;

use super::{Batching, EpochList, OrderError, OrderProvider, RankPlace};

/// Another order from a position on: epoch k is its epoch `epoch` + k, and epoch 0 lacks the first
/// `batch` batches.
#[derive(Clone, Debug)]
pub struct StartAt {
    /// The order from its beginning.
    pub orders: Arc<dyn OrderProvider>,
    /// The epoch to continue in.
    pub epoch: u32,
    /// Batches of that epoch that were delivered.
    pub batch: u32,
}

impl OrderProvider for StartAt {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        let at = self.epoch.saturating_add(epoch);
        let list = self.orders.epoch(at)?;
        if epoch > 0 || self.batch == 0 {
            return Ok(list);
        }
        list.map(|list| without(list, self.batch, self.orders.number(at))).transpose()
    }

    fn place(&self) -> Option<RankPlace> {
        self.orders.place()
    }

    fn all_ranks(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, OrderError> {
        let at = self.epoch.saturating_add(epoch);
        let lists = self.orders.all_ranks(at)?;
        if epoch > 0 || self.batch == 0 {
            return Ok(lists);
        }
        let number = self.orders.number(at);
        let rest = |list| without(list, self.batch, number);
        lists.map(|lists| lists.into_iter().map(rest).collect()).transpose()
    }

    fn ahead(&self) -> bool {
        self.orders.ahead()
    }

    fn largest_batch(&self) -> Option<u32> {
        self.orders.largest_batch()
    }

    fn number(&self, epoch: u32) -> u32 {
        self.orders.number(self.epoch.saturating_add(epoch))
    }
}

/// Removes the first batches of a list. One more than the list has is allowed: another number of
/// ranks may have had one batch more.
fn without(mut list: EpochList, batch: u32, epoch: u32) -> Result<EpochList, OrderError> {
    let (batches, gone) = (list.len(), batch as usize);
    if gone > batches + 1 {
        return Err(OrderError::PastEnd { epoch, batches, batch });
    }
    let gone = gone.min(batches);
    let entries = match &mut list.batches {
        Batching::Every { batch, .. } => gone * *batch as usize,
        Batching::Ends(ends) => {
            let first = gone.checked_sub(1).map_or(0, |last| ends[last]);
            ends.drain(..gone);
            for end in ends.iter_mut() {
                // `EpochList::check` refuses ends that go backwards.
                *end = end.saturating_sub(first);
            }
            first as usize
        }
    };
    list.samples.drain(..entries.min(list.samples.len()));
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::super::Lists;
    use super::*;
    use proptest::prelude::*;

    fn lists() -> impl Strategy<Value = EpochList> {
        let ragged = prop::collection::vec(prop::collection::vec(0u32..9, 0..4), 0..7);
        let even = (prop::collection::vec(0u32..9, 0..30), 1u32..6, any::<bool>());
        prop_oneof![
            ragged.prop_map(EpochList::of_batches),
            even.prop_map(|(samples, batch, drop_last)| EpochList {
                samples,
                batches: Batching::Every { batch, drop_last }
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_resumed_order_is_the_rest_of_the_order(
            epochs in prop::collection::vec(lists(), 1..5), at in 0u32..5, gone in 0u32..8,
        ) {
            let at = at % epochs.len() as u32;
            let orders = Arc::new(Lists(epochs.clone()));
            let start = StartAt { orders, epoch: at, batch: gone };
            let first = &epochs[at as usize];
            match start.epoch(0) {
                Ok(Some(list)) => {
                    list.check(0, 9).unwrap();
                    let all = first.batches();
                    prop_assert_eq!(list.batches(), &all[(gone as usize).min(all.len())..]);
                }
                Err(OrderError::PastEnd { .. }) => {
                    prop_assert!(gone as usize > first.len() + 1);
                }
                other => panic!("{other:?}"),
            }
            for k in 1..5 {
                let naive = epochs.get((at + k) as usize).cloned();
                prop_assert_eq!(start.epoch(k).unwrap(), naive);
            }
            prop_assert_eq!(start.number(2), at + 2);
        }
    }
}

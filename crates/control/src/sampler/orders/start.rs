//! Going on in the middle of a run.
//!
//! A position is an epoch and a number of batches delivered in it. Batches are counted
//! for all ranks together: batch t of every rank is its part of global batch t. So a
//! position is good for any number of ranks, as long as their batches together have the
//! same length.
//!
//! That holds for torch's `DistributedSampler` and [`RankShare`](super::RankShare) because
//! they deal with a stride: global batch t has entries t·B to (t + 1)·B of the order,
//! whoever reads which. Only the epoch's end depends on the number of ranks: the order is
//! padded to a multiple of it with samples from its start, or cut to one. So other samples
//! may be repeated or left out in the last batch; and where incomplete batches are dropped,
//! or the tail is cut, whether there is a last batch at all. The schemes `contiguous` and
//! `imbalanced` never pad. The orders of one generator (`whole`, `imbalanced`,
//! [`LoaderOrders`]) do not depend on ranks either; but torch itself draws other orders in a world of one than in a
//! larger one, so a run that goes on across that border needs a [`RankOrders`] on both sides.
//!
//! [`LoaderOrders`]: super::LoaderOrders
//! [`RankOrders`]: super::RankOrders

use std::sync::Arc;

use super::{Cut, EpochList, OrderError, Orders, RankPlace};

/// An order from a position on: its epoch k is epoch `epoch` + k, and the first lacks its
/// first `batch` batches.
#[derive(Clone, Debug)]
pub struct StartAt {
    pub orders: Arc<dyn Orders>,
    pub epoch: u32,
    pub batch: u32,
}

impl Orders for StartAt {
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

    fn everybody(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, OrderError> {
        let at = self.epoch.saturating_add(epoch);
        let lists = self.orders.everybody(at)?;
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

/// The list without its first batches. One more than there are is as good as all: another
/// number of ranks may have had one batch more.
fn without(mut list: EpochList, batch: u32, epoch: u32) -> Result<EpochList, OrderError> {
    let (batches, gone) = (list.len(), batch as usize);
    if gone > batches + 1 {
        return Err(OrderError::PastEnd { epoch, batches, batch });
    }
    let gone = gone.min(batches);
    let entries = match &mut list.batches {
        Cut::Every { batch, .. } => gone * *batch as usize,
        Cut::Ends(ends) => {
            let first = gone.checked_sub(1).map_or(0, |last| ends[last]);
            ends.drain(..gone);
            for end in ends.iter_mut() {
                // Ends that go backwards are found when the list is checked.
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
                batches: Cut::Every { batch, drop_last }
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_start_is_the_rest(
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

//! Epochs that end early, for programs that count "steps per epoch".

use std::sync::Arc;

use super::{Batching, EpochList, OrderError, OrderProvider, RankPlace};

/// The first batches of every epoch of another order.
#[derive(Clone, Debug)]
pub struct FirstBatches {
    /// The whole epochs.
    pub orders: Arc<dyn OrderProvider>,
    /// Batches of each epoch.
    pub batches: u32,
}

impl OrderProvider for FirstBatches {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        Ok(self.orders.epoch(epoch)?.map(|list| first(list, self.batches)))
    }

    fn place(&self) -> Option<RankPlace> {
        self.orders.place()
    }

    fn all_ranks(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, OrderError> {
        let lists = self.orders.all_ranks(epoch)?;
        let cut = |list| first(list, self.batches);
        Ok(lists.map(|lists| lists.into_iter().map(cut).collect()))
    }

    fn ahead(&self) -> bool {
        self.orders.ahead()
    }

    fn largest_batch(&self) -> Option<u32> {
        self.orders.largest_batch()
    }

    fn number(&self, epoch: u32) -> u32 {
        self.orders.number(epoch)
    }
}

fn first(mut list: EpochList, batches: u32) -> EpochList {
    match &mut list.batches {
        Batching::Every { batch, .. } => {
            let entries = batches as usize * *batch as usize;
            list.samples.truncate(entries);
        }
        Batching::Ends(ends) => {
            ends.truncate(batches as usize);
            // `EpochList::check` refuses ends that go backwards.
            let entries = ends.iter().max().map_or(0, |&end| end as usize);
            list.samples.truncate(entries);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::super::Lists;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_left_is_the_first_batches(
            ragged in prop::collection::vec(prop::collection::vec(0u32..9, 0..4), 0..7),
            even in prop::collection::vec(0u32..9, 0..30),
            batch in 1u32..6,
            drop_last: bool,
            batches in 0u32..8,
        ) {
            let even = EpochList { samples: even, batches: Batching::Every { batch, drop_last } };
            let epochs = vec![EpochList::of_batches(ragged), even];
            let orders = Arc::new(Lists(epochs.clone()));
            let cut = FirstBatches { orders, batches };
            for (epoch, whole) in (0..).zip(epochs) {
                let list = cut.epoch(epoch).unwrap().unwrap();
                list.check(epoch, 9).unwrap();
                let naive = whole.batches().into_iter().take(batches as usize).collect::<Vec<_>>();
                prop_assert_eq!(list.batches(), naive);
            }
            prop_assert_eq!(cut.epoch(2).unwrap(), None);
        }
    }
}

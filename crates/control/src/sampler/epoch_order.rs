//! One epoch's order, split into the batches of its ranks.

use std::ops::Range;

use super::SampleId;
use super::orders::{Batching, EpochList, OrderError};
use super::scheme::{BatchLayout, BatchSlot, LocalBatch, Scheme};

/// One epoch's order and its split into local batches.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    order: Vec<SampleId>,
    batches: Batches,
    samples: u32,
}

#[derive(Clone, Debug)]
enum Batches {
    Dealt(BatchLayout),
    /// By where each batch ends in the order: first by iteration, then by rank.
    Ragged {
        ranks: u32,
        ends: Vec<u32>,
    },
}

impl EpochOrder {
    /// An order that has been made as long as the deal needs it.
    pub(super) fn dealt(order: Vec<SampleId>, layout: BatchLayout, samples: u32) -> Self {
        Self { order, batches: Batches::Dealt(layout), samples }
    }

    /// Returns one rank's list as an order.
    ///
    /// # Errors
    /// If the list cannot be read; the error names `epoch`.
    pub(super) fn of_list(list: EpochList, epoch: u32, samples: u32) -> Result<Self, OrderError> {
        list.check(epoch, samples)?;
        let EpochList { samples: mut order, batches } = list;
        let (batches, entries) = match batches {
            Batching::Every { batch, drop_last } => {
                let length = order.len() as u64;
                let layout = BatchLayout::new(Scheme::Uniform, 1, batch, length, false, drop_last);
                (Batches::Dealt(layout), layout.entries() as usize)
            }
            Batching::Ends(ends) => {
                let entries = ends.last().map_or(0, |&end| end as usize);
                (Batches::Ragged { ranks: 1, ends }, entries)
            }
        };
        order.truncate(entries);
        Ok(Self { order, batches, samples })
    }

    /// Returns the lists of all ranks as one order. A rank that has fewer batches than another gets
    /// empty ones at the end.
    ///
    /// # Errors
    /// If a list cannot be read; the error names `epoch`.
    pub(super) fn of_lists(
        lists: &[EpochList],
        epoch: u32,
        samples: u32,
    ) -> Result<Self, OrderError> {
        for list in lists {
            list.check(epoch, samples)?;
        }
        let by_rank: Vec<Vec<&[SampleId]>> = lists.iter().map(EpochList::batches).collect();
        let iterations = by_rank.iter().map(Vec::len).max().unwrap_or(0);
        let mut order = Vec::with_capacity(lists.iter().map(|list| list.samples.len()).sum());
        let mut ends = Vec::with_capacity(iterations * lists.len());
        for iteration in 0..iterations {
            for batches in &by_rank {
                order.extend_from_slice(batches.get(iteration).copied().unwrap_or_default());
                ends.push(order.len() as u32);
            }
        }
        Ok(Self { order, batches: Batches::Ragged { ranks: lists.len() as u32, ends }, samples })
    }

    /// Returns the iterations of this epoch.
    pub fn iterations(&self) -> u32 {
        match &self.batches {
            Batches::Dealt(layout) => layout.iterations(),
            Batches::Ragged { ranks, ends } => ends.len() as u32 / ranks,
        }
    }

    /// Returns whether a sample may be used more than once, other than by padding.
    pub fn may_repeat(&self) -> bool {
        matches!(self.batches, Batches::Ragged { .. })
    }

    /// Returns whether some rank uses a sample in these iterations; always false for an order that
    /// does not [repeat](Self::may_repeat) samples.
    ///
    /// # Panics
    /// If there is no such iteration.
    pub fn repeats_in(&self, sample: SampleId, iterations: Range<u32>) -> bool {
        let Batches::Ragged { ranks, ends } = &self.batches else { return false };
        let begin = |iteration: u32| match iteration * ranks {
            0 => 0,
            batches => ends[batches as usize - 1] as usize,
        };
        self.order[begin(iterations.start)..begin(iterations.end)].contains(&sample)
    }

    /// Returns the samples of one rank in one iteration, in the order it consumes them.
    ///
    /// # Panics
    /// If there is no such rank or iteration.
    #[inline]
    pub fn batch(&self, rank: u32, iteration: u32) -> LocalBatch<'_> {
        match &self.batches {
            Batches::Dealt(layout) => layout.batch(&self.order, rank, iteration),
            Batches::Ragged { ranks, ends } => {
                assert!(rank < *ranks, "rank {rank} of {ranks}");
                let at = (iteration * ranks + rank) as usize;
                let start = at.checked_sub(1).map_or(0, |before| ends[before]);
                LocalBatch::all(&self.order[start as usize..ends[at] as usize])
            }
        }
    }

    /// Returns the part of the global order that is consumed: padded or truncated by the sampler,
    /// without a batch that the loader drops.
    pub fn samples(&self) -> &[SampleId] {
        &self.order
    }

    /// Returns the first position of each sample in [`Self::samples`]; `u32::MAX` for samples that
    /// this epoch does not use.
    pub fn positions(&self) -> Vec<u32> {
        let mut positions = vec![u32::MAX; self.samples as usize];
        // From the back, so that the first of several positions stays.
        for (position, &sample) in self.order.iter().enumerate().rev() {
            positions[sample as usize] = position as u32;
        }
        positions
    }

    /// Returns the rank and iteration that consume the entry at `position` of [`Self::samples`].
    #[inline]
    pub fn slot(&self, position: u32) -> Option<BatchSlot> {
        match &self.batches {
            Batches::Dealt(layout) => layout.slot(u64::from(position)),
            Batches::Ragged { ranks, ends } => {
                let at = ends.partition_point(|&end| end <= position);
                let slot = BatchSlot { iteration: at as u32 / ranks, rank: at as u32 % ranks };
                (at < ends.len()).then_some(slot)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_position_of_each_sample_is_known() {
        let list = EpochList::of_batches([[3, 1], [3, 0], [1, 1]]);
        let order = EpochOrder::of_list(list, 0, 5).unwrap();
        assert_eq!(order.positions(), [3, 1, u32::MAX, 0, u32::MAX]);
    }

    proptest! {
        #[test]
        fn a_ragged_order_is_its_batches(
            batches in prop::collection::vec(prop::collection::vec(0u32..9, 0..5), 0..9),
        ) {
            let order = EpochOrder::of_list(EpochList::of_batches(&batches), 0, 9).unwrap();
            let ours: Vec<Vec<u32>> =
                (0..order.iterations()).map(|at| order.batch(0, at).collect()).collect();
            prop_assert_eq!(&ours, &batches);
            let whose: Vec<u32> =
                (0u32..).zip(&batches).flat_map(|(at, batch)| vec![at; batch.len()]).collect();
            for (position, &iteration) in whose.iter().enumerate() {
                let slot = BatchSlot { iteration, rank: 0 };
                prop_assert_eq!(order.slot(position as u32), Some(slot));
            }
            prop_assert_eq!(order.slot(whose.len() as u32), None);
        }

        #[test]
        fn the_lists_of_all_ranks_are_their_batches(
            ranks in prop::collection::vec(
                prop::collection::vec(prop::collection::vec(0u32..9, 0..4), 0..6), 1..4),
        ) {
            let lists: Vec<EpochList> = ranks.iter().map(EpochList::of_batches).collect();
            let order = EpochOrder::of_lists(&lists, 0, 9).unwrap();
            let longest = ranks.iter().map(Vec::len).max().unwrap();
            prop_assert_eq!(order.iterations() as usize, longest);
            let mut position = 0;
            for iteration in 0..longest {
                for (rank, batches) in ranks.iter().enumerate() {
                    let batch: Vec<u32> = order.batch(rank as u32, iteration as u32).collect();
                    prop_assert_eq!(&batch, &batches.get(iteration).cloned().unwrap_or_default());
                    for _ in batch {
                        let slot = BatchSlot { iteration: iteration as u32, rank: rank as u32 };
                        prop_assert_eq!(order.slot(position), Some(slot));
                        position += 1;
                    }
                }
            }
            prop_assert_eq!(order.slot(position), None);
        }

        #[test]
        fn an_even_list_is_its_batches(length in 0u32..40, batch in 1u32..9, drop_last: bool) {
            let samples: Vec<u32> = (0..length).rev().collect();
            let list = EpochList { samples, batches: Batching::Every { batch, drop_last } };
            let order = EpochOrder::of_list(list.clone(), 0, 40).unwrap();
            let ours: Vec<Vec<u32>> =
                (0..order.iterations()).map(|at| order.batch(0, at).collect()).collect();
            prop_assert_eq!(&ours, &list.batches());
            prop_assert_eq!(ours.concat(), order.samples());
        }
    }
}

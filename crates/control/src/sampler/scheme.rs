//! How an epoch's order is split over ranks.
//!
//! Under every scheme the samples of iteration t are the t-th stretch of B entries of the order;
//! schemes differ only in which entries of the stretch a rank takes. So both directions are
//! arithmetic: the entries of (rank, iteration), and the (rank, iteration) of an entry.

use super::SampleId;
use super::torch::distributed_len;

/// How a global batch becomes the ranks' local batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheme {
    /// Equal parts, strided by rank as `DistributedSampler` does. The order is
    /// padded (or truncated) so that all ranks get the same number.
    Uniform,
    /// Equal contiguous parts of each batch, of an order that is padded (or truncated) as under
    /// [`Scheme::Uniform`]. The ranks' parts laid end to end are in the order's order, with the
    /// padding last.
    Parts,
    /// Equal contiguous parts of each batch, the last rank takes the rest (HDMLP's uniform).
    Contiguous,
    /// Every rank gets the whole batch.
    Whole,
    /// The first half of the ranks gets contiguous parts four times as large as the
    /// others'. HDMLP (section 4.1.3) prints 2·⌈B/N⌉ and ½·⌈B/N⌉, which together exceed the
    /// batch by a quarter; this scheme keeps their proportion and gives each sample once.
    /// Of an odd number of ranks, the smaller half is the favoured one.
    Imbalanced,
}

impl Scheme {
    /// Returns whether all ranks get equally many samples. The order is padded or truncated for it.
    pub fn is_even(self) -> bool {
        matches!(self, Self::Uniform | Self::Parts)
    }
}

/// Where an entry of an epoch's order is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchSlot {
    /// Within the epoch.
    pub iteration: u32,
    /// 0 under [`Scheme::Whole`], where all ranks consume it.
    pub rank: u32,
}

/// The arithmetic of one scheme on orders of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLayout {
    scheme: Scheme,
    ranks: u32,
    batch: u32,
    /// Entries consumed in an epoch: padded, truncated, without a dropped batch.
    entries: u64,
    iterations: u32,
}

impl BatchLayout {
    /// For orders of `length` entries. All numbers must be at least one, and the batch a multiple
    /// of the ranks where the scheme is even.
    pub(super) fn new(
        scheme: Scheme,
        ranks: u32,
        batch: u32,
        length: u64,
        sampler_drop_last: bool,
        drop_last: bool,
    ) -> Self {
        let dealt = match scheme {
            _ if scheme.is_even() => {
                distributed_len(length, ranks, sampler_drop_last) * u64::from(ranks)
            }
            _ => length,
        };
        let wide = u64::from(batch);
        // Under an even scheme ranks have equally many samples, so their last incomplete local
        // batches together are the last incomplete global one.
        let iterations = if drop_last { dealt / wide } else { dealt.div_ceil(wide) };
        let entries = dealt.min(iterations * wide);
        Self { scheme, ranks, batch, entries, iterations: iterations as u32 }
    }

    /// Returns the iterations of an epoch.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Returns how many entries of the order an epoch consumes.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Start and length of an iteration's global batch.
    #[inline]
    fn stretch(&self, iteration: u32) -> (u64, u64) {
        let start = u64::from(iteration) * u64::from(self.batch);
        (start, (self.entries.saturating_sub(start)).min(u64::from(self.batch)))
    }

    /// The first entry of a rank's part of a batch of `length`, for contiguous schemes.
    #[inline]
    fn part(&self, rank: u32, length: u64) -> u64 {
        if rank == self.ranks {
            return length;
        }
        match self.scheme {
            Scheme::Parts | Scheme::Contiguous => {
                u64::from(rank) * (length / u64::from(self.ranks))
            }
            Scheme::Imbalanced => length * self.weight(rank) / self.weight(self.ranks),
            Scheme::Uniform | Scheme::Whole => 0,
        }
    }

    /// Weight of all ranks before `rank`.
    #[inline]
    fn weight(&self, rank: u32) -> u64 {
        u64::from(rank) + 3 * u64::from(rank.min(self.ranks / 2))
    }

    /// Start, distance and number of the entries of one rank in one iteration.
    #[inline]
    fn entries_of(&self, rank: u32, iteration: u32) -> (u64, u64, u64) {
        let (start, length) = self.stretch(iteration);
        match self.scheme {
            Scheme::Uniform => {
                let ranks = u64::from(self.ranks);
                (start + u64::from(rank), ranks, length / ranks)
            }
            Scheme::Whole => (start, 1, length),
            Scheme::Parts | Scheme::Contiguous | Scheme::Imbalanced => {
                let from = self.part(rank, length);
                (start + from, 1, self.part(rank + 1, length) - from)
            }
        }
    }

    /// Returns how many samples a rank consumes in an iteration.
    pub fn batch_len(&self, rank: u32, iteration: u32) -> u32 {
        self.entries_of(rank, iteration).2 as u32
    }

    /// Returns the samples of one rank in one iteration of an order made for this layout.
    #[inline]
    pub fn batch<'a>(&self, order: &'a [SampleId], rank: u32, iteration: u32) -> LocalBatch<'a> {
        assert!(rank < self.ranks && iteration < self.iterations);
        let (start, step, left) = self.entries_of(rank, iteration);
        let entries = if left == 0 {
            &[]
        } else {
            &order[start as usize..=(start + (left - 1) * step) as usize]
        };
        LocalBatch { entries, step: step as usize, at: 0 }
    }

    /// Returns the rank and iteration that consume the entry at `position` of the order; `None`
    /// for entries that are dropped.
    #[inline]
    pub fn slot(&self, position: u64) -> Option<BatchSlot> {
        if position >= self.entries {
            return None;
        }
        let wide = u64::from(self.batch);
        let iteration = (position / wide) as u32;
        let within = position % wide;
        let length = self.stretch(iteration).1;
        let ranks = u64::from(self.ranks);
        let rank = match self.scheme {
            Scheme::Uniform => (within % ranks) as u32,
            Scheme::Whole => 0,
            Scheme::Parts | Scheme::Contiguous => within
                .checked_div(length / ranks)
                .map_or(self.ranks - 1, |rank| (rank as u32).min(self.ranks - 1)),
            Scheme::Imbalanced => {
                // The last rank whose part starts at or before the entry.
                let total = self.weight(self.ranks);
                let weight = ((within + 1) * total - 1) / length;
                let favoured = u64::from(self.ranks / 2);
                let rank = if weight < 4 * favoured { weight / 4 } else { weight - 3 * favoured };
                rank as u32
            }
        };
        Some(BatchSlot { iteration, rank })
    }
}

/// One rank's samples of one iteration, in the order it consumes them.
#[derive(Clone, Debug)]
pub struct LocalBatch<'a> {
    /// From the first to the last, with entries of other ranks between them where strided.
    entries: &'a [SampleId],
    step: usize,
    at: usize,
}

impl<'a> LocalBatch<'a> {
    /// All of `entries`.
    pub(super) fn all(entries: &'a [SampleId]) -> Self {
        Self { entries, step: 1, at: 0 }
    }
}

impl Iterator for LocalBatch<'_> {
    type Item = SampleId;

    #[inline]
    fn next(&mut self) -> Option<SampleId> {
        let sample = *self.entries.get(self.at)?;
        self.at += self.step;
        Some(sample)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.entries.len().saturating_sub(self.at).div_ceil(self.step);
        (left, Some(left))
    }
}

impl ExactSizeIterator for LocalBatch<'_> {}
impl std::iter::FusedIterator for LocalBatch<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SCHEMES: [Scheme; 5] =
        [Scheme::Uniform, Scheme::Parts, Scheme::Contiguous, Scheme::Whole, Scheme::Imbalanced];

    fn lengths(scheme: Scheme, ranks: u32, batch: u32) -> Vec<u32> {
        let layout = BatchLayout::new(scheme, ranks, batch, u64::from(batch), false, false);
        (0..ranks).map(|rank| layout.batch_len(rank, 0)).collect()
    }

    #[test]
    fn contiguous_gives_the_rest_to_the_last_rank() {
        assert_eq!(lengths(Scheme::Contiguous, 4, 103), [25, 25, 25, 28]);
        assert_eq!(lengths(Scheme::Contiguous, 4, 3), [0, 0, 0, 3]);
    }

    #[test]
    fn imbalanced_gives_four_to_one_and_each_sample_once() {
        assert_eq!(lengths(Scheme::Imbalanced, 4, 100), [40, 40, 10, 10]);
        assert_eq!(lengths(Scheme::Imbalanced, 2, 5), [4, 1]);
        assert_eq!(lengths(Scheme::Imbalanced, 3, 60), [40, 10, 10]);
        assert_eq!(lengths(Scheme::Imbalanced, 1, 7), [7]);
    }

    #[test]
    fn whole_gives_every_rank_the_batch() {
        assert_eq!(lengths(Scheme::Whole, 3, 8), [8, 8, 8]);
    }

    #[test]
    fn uniform_strides() {
        let order: Vec<u32> = (0..12).collect();
        let layout = BatchLayout::new(Scheme::Uniform, 2, 4, 12, false, false);
        let batch: Vec<u32> = layout.batch(&order, 1, 2).collect();
        assert_eq!(batch, [9, 11]);
    }

    #[test]
    fn parts_laid_end_to_end_are_the_batch_with_its_padding_last() {
        let order: Vec<u32> = (0..10).chain(0..2).collect();
        let layout = BatchLayout::new(Scheme::Parts, 3, 6, 10, false, false);
        for iteration in 0..2 {
            let parts = (0..3).flat_map(|rank| layout.batch(&order, rank, iteration));
            let start = 6 * iteration as usize;
            assert_eq!(parts.collect::<Vec<_>>(), order[start..start + 6]);
        }
    }

    proptest! {
        #[test]
        fn slots_and_batches_agree(
            scheme in prop::sample::select(&SCHEMES[..]),
            ranks in 1_u32..9,
            local in 1_u32..9,
            extra in 0_u32..8,
            length in 1_u64..400,
            sampler_drop_last: bool,
            drop_last: bool,
        ) {
            let batch = ranks * local + if scheme.is_even() { 0 } else { extra };
            let layout =
                BatchLayout::new(scheme, ranks, batch, length, sampler_drop_last, drop_last);
            let order: Vec<u32> = (0..layout.entries() as u32).collect();
            let mut dealt = vec![0; order.len()];
            for iteration in 0..layout.iterations() {
                for rank in 0..ranks {
                    let entries = layout.batch(&order, rank, iteration);
                    prop_assert_eq!(entries.len(), entries.clone().count());
                    prop_assert_eq!(entries.len() as u32, layout.batch_len(rank, iteration));
                    for position in entries {
                        dealt[position as usize] += 1;
                        let slot = layout.slot(u64::from(position)).unwrap();
                        prop_assert_eq!(slot.iteration, iteration);
                        let expected = if scheme == Scheme::Whole { 0 } else { rank };
                        prop_assert_eq!(slot.rank, expected);
                    }
                }
            }
            let times = if scheme == Scheme::Whole { ranks } else { 1 };
            prop_assert!(dealt.iter().all(|&count| count == times));
            prop_assert_eq!(layout.slot(layout.entries()), None);
        }
    }
}

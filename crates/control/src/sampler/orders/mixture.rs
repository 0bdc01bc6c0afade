//! Several datasets mixed into one order.

use super::super::permutation::Permutation;
use super::super::weighted_draw::{CumulativeWeights, epoch_random, whole_weights};
use super::super::{SampleId, SamplerError};
use super::{EpochList, OrderError, OrderProvider, RankPlace, RankShare};

/// One of several datasets laid end to end: its sample ids follow those of the dataset before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixturePart {
    /// Samples of this dataset.
    pub samples: u32,
    /// In proportion to the others'.
    pub weight: f64,
}

/// A fixed number of samples an epoch, each from a dataset drawn by weight. Within an epoch a
/// dataset gives all of its samples in random order before it repeats one. The order is a function
/// of (seed, epoch), the same for every rank.
#[derive(Clone, Debug)]
pub struct MixtureOrders {
    parts: Vec<LaidPart>,
    weights: CumulativeWeights,
    /// Samples of all ranks in an epoch.
    length: u32,
    seed: u64,
    share: RankShare,
}

#[derive(Clone, Copy, Debug)]
struct LaidPart {
    first: SampleId,
    samples: u32,
}

impl MixtureOrders {
    /// Draws `length` samples an epoch for all ranks together.
    ///
    /// # Errors
    /// If there is nothing to draw from, or the share is invalid.
    pub fn new(
        parts: &[MixturePart],
        length: u32,
        seed: u64,
        share: RankShare,
    ) -> Result<Self, SamplerError> {
        let share = share.check()?;
        let weights: Vec<f64> = parts.iter().map(|part| part.weight).collect();
        let weights = CumulativeWeights::new(&whole_weights(&weights)?);
        let mut first = 0u32;
        let mut laid = vec![];
        for (at, part) in parts.iter().enumerate() {
            if part.samples == 0 && part.weight > 0.0 {
                return Err(SamplerError::EmptyPart { at });
            }
            laid.push(LaidPart { first, samples: part.samples });
            first = first.checked_add(part.samples).ok_or(SamplerError::HugeMixture)?;
        }
        Ok(Self { parts: laid, weights, length, seed, share })
    }

    /// Returns the samples of all ranks, in order.
    fn global(&self, epoch: u32) -> Vec<SampleId> {
        let mut random = epoch_random(self.seed, epoch);
        let mut turns: Vec<PartProgress> = vec![PartProgress::default(); self.parts.len()];
        let draw = |_| {
            let at = self.weights.draw(&mut random);
            let part = self.parts[at as usize];
            part.first + turns[at as usize].next(part.samples, self.seed, epoch, at)
        };
        (0..self.length).map(draw).collect()
    }
}

/// How far an epoch has gone through one dataset.
#[derive(Clone, Debug, Default)]
struct PartProgress {
    order: Option<Permutation>,
    taken: u32,
    rounds: u32,
}

impl PartProgress {
    fn next(&mut self, samples: u32, seed: u64, epoch: u32, part: u32) -> u32 {
        if self.taken == samples {
            (self.order, self.taken) = (None, 0);
            self.rounds += 1;
        }
        let order = self.order.get_or_insert_with(|| {
            // A dataset that is twice in a mixture has two orders.
            let seed = seed ^ u64::from(part).rotate_left(32);
            let round = u64::from(epoch) << 32 | u64::from(self.rounds);
            Permutation::new(u64::from(samples), seed, round)
        });
        let sample = order.forward(u64::from(self.taken)) as u32;
        self.taken += 1;
        sample
    }
}

impl OrderProvider for MixtureOrders {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        Ok(Some(self.share.of(self.global(epoch))))
    }

    fn place(&self) -> Option<RankPlace> {
        Some(self.share.place())
    }

    fn all_ranks(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, OrderError> {
        Ok(Some(self.share.all_ranks(&self.global(epoch))))
    }

    fn ahead(&self) -> bool {
        true
    }

    fn largest_batch(&self) -> Option<u32> {
        Some(self.share.largest_batch(self.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(samples: u32, weight: f64) -> MixturePart {
        MixturePart { samples, weight }
    }

    #[test]
    fn datasets_come_as_often_as_they_weigh() {
        let parts = [part(10, 1.0), part(1000, 3.0), part(0, 0.0), part(50, 0.0)];
        let orders = MixtureOrders::new(&parts, 40_000, 1, RankShare::whole(10, false)).unwrap();
        let list = orders.epoch(2).unwrap().unwrap();
        let first = list.samples.iter().filter(|&&sample| sample < 10).count();
        assert!(first.abs_diff(10_000) < 450, "{first}: a standard deviation is 87");
        assert!(list.samples.iter().all(|&sample| sample < 1010));
    }

    #[test]
    fn rounds_epochs_and_equal_datasets_have_different_orders() {
        for seed in [0, 7, u64::MAX] {
            let share = RankShare::whole(10, false);
            let alone = MixtureOrders::new(&[part(20, 1.0)], 60, seed, share).unwrap();
            let [first, second] = [0, 1].map(|epoch| alone.epoch(epoch).unwrap().unwrap().samples);
            let mut orders: Vec<&[u32]> = first.chunks(20).chain(second.chunks(20)).collect();
            orders.sort_unstable();
            orders.dedup();
            assert_eq!(orders.len(), 6, "seed {seed}");
            let twice = [part(20, 1.0), part(20, 1.0)];
            let twice = MixtureOrders::new(&twice, 1000, seed, share).unwrap();
            let list = twice.epoch(0).unwrap().unwrap().samples;
            let of = |at: u32| list.iter().filter(move |&&it| it / 20 == at).map(|it| it % 20);
            assert!(!of(0).take(20).eq(of(1).take(20)), "seed {seed}");
        }
    }

    #[test]
    fn invalid_mixtures_are_refused() {
        let new = |parts: &[MixturePart]| {
            MixtureOrders::new(parts, 9, 0, RankShare::whole(1, false)).unwrap_err()
        };
        assert_eq!(new(&[]), SamplerError::NoWeight);
        assert_eq!(new(&[part(1, 1.0), part(0, 1.0)]), SamplerError::EmptyPart { at: 1 });
        assert_eq!(new(&[part(u32::MAX, 1.0), part(1, 1.0)]), SamplerError::HugeMixture);
    }

    proptest! {
        /// Each dataset's part of an epoch is whole rounds of it and a beginning.
        #[test]
        fn a_dataset_gives_all_samples_before_it_repeats_one(
            sizes in prop::collection::vec(1u32..20, 1..5), length in 0u32..200, seed: u64,
            ranks in 1u32..4,
        ) {
            let parts: Vec<_> = sizes.iter().map(|&size| part(size, f64::from(size))).collect();
            let list = |rank, ranks| {
                let share = RankShare { rank, ranks, ..RankShare::whole(3, false) };
                let orders = MixtureOrders::new(&parts, length, seed, share).unwrap();
                orders.epoch(4).unwrap().unwrap().samples
            };
            let whole = list(0, 1);
            prop_assert_eq!(whole.len() as u32, length);
            let mut first = 0;
            for &size in &sizes {
                let own: Vec<u32> = whole
                    .iter()
                    .filter(|&&sample| (first..first + size).contains(&sample))
                    .copied()
                    .collect();
                for round in own.chunks(size as usize) {
                    let mut sorted = round.to_vec();
                    sorted.sort_unstable();
                    sorted.dedup();
                    prop_assert_eq!(sorted.len(), round.len());
                }
                first += size;
            }
            for rank in 0..ranks {
                let own = list(rank, ranks);
                for (at, &sample) in own.iter().enumerate() {
                    let place = (at as u32 * ranks + rank) % length;
                    prop_assert_eq!(sample, whole[place as usize]);
                }
            }
        }
    }
}

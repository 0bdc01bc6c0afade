//! Samples drawn by weight.

use super::super::weighted_draw::{CumulativeWeights, Urn, epoch_random, whole_weights};
use super::super::{SampleId, SamplerError};
use super::{EpochList, OrderError, OrderProvider, RankPlace, RankShare};

/// Whether a sample that was drawn can be drawn again in the same epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// It can.
    With,
    /// It cannot.
    Without,
}

/// A fixed number of samples an epoch, each drawn with a probability in proportion to its weight.
/// The draws are a function of (seed, epoch), the same for every rank.
///
/// The distribution is that of torch's `WeightedRandomSampler`, but not the draws: those come from
/// `torch.multinomial`, whose arithmetic depends on version and machine.
#[derive(Clone, Debug)]
pub struct WeightedOrders {
    draw: WeightedDraw,
    /// Samples of all ranks in an epoch.
    length: u32,
    seed: u64,
    share: RankShare,
}

#[derive(Clone, Debug)]
enum WeightedDraw {
    With(CumulativeWeights),
    Without(Urn),
}

impl WeightedOrders {
    /// Draws `length` samples an epoch for all ranks together; `weights` has one entry a sample.
    ///
    /// # Errors
    /// If a weight is invalid, too few samples can be drawn, or the share is invalid.
    pub fn new(
        weights: &[f64],
        length: u32,
        replacement: Replacement,
        seed: u64,
        share: RankShare,
    ) -> Result<Self, SamplerError> {
        let share = share.check()?;
        let weights = whole_weights(weights)?;
        let drawable = weights.iter().filter(|&&weight| weight > 0).count();
        let draw = match replacement {
            Replacement::With => WeightedDraw::With(CumulativeWeights::new(&weights)),
            Replacement::Without if length as usize > drawable => {
                return Err(SamplerError::TooFewToDraw { length, drawable });
            }
            Replacement::Without => WeightedDraw::Without(Urn::new(weights)),
        };
        Ok(Self { draw, length, seed, share })
    }

    /// Returns the samples of all ranks, in order.
    fn global(&self, epoch: u32) -> Vec<SampleId> {
        let mut random = epoch_random(self.seed, epoch);
        match &self.draw {
            WeightedDraw::With(weights) => {
                (0..self.length).map(|_| weights.draw(&mut random)).collect()
            }
            WeightedDraw::Without(urn) => {
                let mut urn = urn.clone();
                (0..self.length).filter_map(|_| urn.draw(&mut random)).collect()
            }
        }
    }
}

impl OrderProvider for WeightedOrders {
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

    fn orders(length: u32, replacement: Replacement) -> WeightedOrders {
        let weights: Vec<f64> = (0..100).map(f64::from).collect();
        WeightedOrders::new(&weights, length, replacement, 7, RankShare::whole(10, false)).unwrap()
    }

    #[test]
    fn samples_are_drawn_in_proportion_to_their_weights() {
        let list = orders(500_000, Replacement::With).epoch(3).unwrap().unwrap();
        let mut counts = [0u32; 100];
        for sample in list.samples {
            counts[sample as usize] += 1;
        }
        for (sample, &count) in counts.iter().enumerate() {
            let expected = 500_000.0 * sample as f64 / 4950.0;
            // Five standard deviations of a count.
            let most = 5.0 * expected.sqrt();
            assert!((f64::from(count) - expected).abs() <= most, "{sample}: {count}, {expected}");
        }
    }

    #[test]
    fn without_replacement_heavy_ones_come_early_and_none_twice() {
        let orders = orders(99, Replacement::Without);
        let (mut heavy, mut light) = (0, 0);
        for epoch in 0..300 {
            let mut samples = orders.epoch(epoch).unwrap().unwrap().samples;
            heavy += samples[..30].iter().filter(|&&sample| sample >= 80).count();
            light += samples[..30].iter().filter(|&&sample| sample < 20).count();
            samples.sort_unstable();
            assert!(samples.into_iter().eq(1..100), "all that weigh anything, once each");
        }
        // Of the first draw a fifth of the samples has 36 % of the weight, another 4 %.
        assert!(heavy > 5 * light, "{heavy} {light}");
    }

    #[test]
    fn the_first_draw_without_replacement_is_by_weight() {
        let orders = orders(1, Replacement::Without);
        let drawn = |epoch| orders.epoch(epoch).unwrap().unwrap().samples[0];
        let heavy = (0..20_000).filter(|&epoch| drawn(epoch) >= 50).count();
        // 50 + ... + 99 of 4,950; a standard deviation is 61.
        assert!((heavy as f64 - 20_000.0 * 3725.0 / 4950.0).abs() < 300.0, "{heavy}");
    }

    #[test]
    fn ranks_split_one_list_and_epochs_differ() {
        let whole = orders(101, Replacement::With).epoch(5).unwrap().unwrap().samples;
        let mut dealt = vec![vec![]; 3];
        for rank in 0..3 {
            let share = RankShare { rank, ranks: 3, ..RankShare::whole(4, false) };
            let weights: Vec<f64> = (0..100).map(f64::from).collect();
            let orders = WeightedOrders::new(&weights, 101, Replacement::With, 7, share).unwrap();
            dealt[rank as usize] = orders.epoch(5).unwrap().unwrap().samples;
            assert_ne!(orders.epoch(5).unwrap(), orders.epoch(6).unwrap());
        }
        let together: Vec<u32> = (0..102).map(|at| dealt[at % 3][at / 3]).collect();
        assert_eq!(together[..101], whole);
        assert_eq!(together[101], whole[0], "padded from the start");
    }

    #[test]
    fn impossible_draws_are_refused() {
        let new = |length, share| {
            WeightedOrders::new(&[1.0, 0.0, 2.0], length, Replacement::Without, 0, share)
        };
        let error = new(3, RankShare::whole(1, false)).unwrap_err().to_string();
        assert!(error.contains('3') && error.contains('2'), "{error}");
        let share = RankShare { rank: 2, ranks: 2, ..RankShare::whole(1, false) };
        let error = new(1, share).unwrap_err();
        assert_eq!(error, SamplerError::NoSuchRank { rank: 2, ranks: 2 });
        assert_eq!(new(1, RankShare::whole(0, false)).unwrap_err(), SamplerError::ZeroBatch);
    }
}

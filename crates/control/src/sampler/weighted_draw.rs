//! Draws by weight that are the same on every machine.
//!
//! Weights become whole numbers, so that sums, draws and searches are exact. With floating point,
//! rounding could decide which of two samples a rank draws.

use belady_base::splitmix::{MULTIPLIER_A, SplitMix64, scramble};

use super::SamplerError;

/// Returns the generator of one epoch. Its key is not the seed itself, which keys permutations.
pub fn epoch_random(seed: u64, epoch: u32) -> SplitMix64 {
    SplitMix64::new(scramble(scramble(!seed) ^ u64::from(epoch).wrapping_mul(MULTIPLIER_A)))
}

/// The total of whole weights, up to rounding: large, so that they are exact to 62 bits.
const TOTAL: f64 = (1_u64 << 62) as f64;

/// Returns the weights as whole numbers in the same proportion. No positive weight becomes zero.
pub fn whole_weights(weights: &[f64]) -> Result<Vec<u64>, SamplerError> {
    let is_weight = |weight: f64| weight.is_finite() && weight >= 0.0;
    if let Some(at) = weights.iter().position(|&weight| !is_weight(weight)) {
        return Err(SamplerError::BadWeight { at, weight: weights[at].to_string() });
    }
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return Err(SamplerError::NoWeight);
    }
    let total: f64 = weights.iter().map(|weight| weight / largest).sum();
    let whole = |&weight: &f64| {
        if weight == 0.0 { 0 } else { ((weight / largest / total * TOTAL) as u64).max(1) }
    };
    Ok(weights.iter().map(whole).collect())
}

/// Cumulative weights, for many draws with replacement.
#[derive(Clone, Debug)]
pub struct CumulativeWeights(Vec<u64>);

impl CumulativeWeights {
    pub fn new(weights: &[u64]) -> Self {
        let mut sum = 0;
        let add = |&weight: &u64| {
            sum += weight;
            sum
        };
        Self(weights.iter().map(add).collect())
    }

    pub fn draw(&self, random: &mut SplitMix64) -> u32 {
        let drawn = random.below(self.0.last().copied().unwrap_or(0));
        self.0.partition_point(|&sum| sum <= drawn) as u32
    }
}

/// An urn, for draws without replacement: a Fenwick tree, whose entry i holds the weights of the
/// (i + 1) & -(i + 1) elements up to i.
#[derive(Clone, Debug)]
pub struct Urn {
    sums: Vec<u64>,
    weights: Vec<u64>,
    left: u64,
}

impl Urn {
    pub fn new(weights: Vec<u64>) -> Self {
        let mut sums = weights.clone();
        for at in 1..=sums.len() {
            let above = at + (at & at.wrapping_neg());
            if above <= sums.len() {
                sums[above - 1] += sums[at - 1];
            }
        }
        let left = weights.iter().sum();
        Self { sums, weights, left }
    }

    /// Draws and removes one element; `None` when the urn is empty.
    pub fn draw(&mut self, random: &mut SplitMix64) -> Option<u32> {
        if self.left == 0 {
            return None;
        }
        let mut drawn = random.below(self.left);
        let mut before = 0;
        let mut step = (self.sums.len() + 1).next_power_of_two() / 2;
        while step > 0 {
            if let Some(&sum) = self.sums.get(before + step - 1)
                && sum <= drawn
            {
                drawn -= sum;
                before += step;
            }
            step /= 2;
        }
        let weight = std::mem::take(&mut self.weights[before]);
        self.left -= weight;
        let mut at = before + 1;
        while at <= self.sums.len() {
            self.sums[at - 1] -= weight;
            at += at & at.wrapping_neg();
        }
        Some(before as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_the_same_on_every_machine_and_spread_over_the_range() {
        let mut random = epoch_random(7, 3);
        assert_eq!(
            [(); 6].map(|()| random.below(1_000_000)),
            [967_204, 27_190, 24_532, 152_662, 121_367, 244_954]
        );
        let mut tenths = [0u32; 10];
        for _ in 0..10_000 {
            tenths[random.below(1000) as usize / 100] += 1;
        }
        assert!(tenths.iter().all(|&count| count.abs_diff(1000) < 150), "{tenths:?}");
        assert_eq!((random.below(1), random.below(0)), (0, 0));
    }

    /// The element at which the sum of weights passes `drawn`.
    fn naive(weights: &[u64], mut drawn: u64) -> u32 {
        for (at, &weight) in weights.iter().enumerate() {
            if drawn < weight {
                return at as u32;
            }
            drawn -= weight;
        }
        panic!("beyond all weights")
    }

    fn weights() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![Just(0), 0u64..5, 0u64..1 << 50], 1..70)
            .prop_filter("no weight", |weights| weights.iter().any(|&weight| weight > 0))
    }

    proptest! {
        #[test]
        fn both_draw_what_a_linear_search_draws(weights in weights(), seed: u64) {
            let total: u64 = weights.iter().sum();
            let cumulative = CumulativeWeights::new(&weights);
            let (mut random, mut same) = (epoch_random(seed, 0), epoch_random(seed, 0));
            for _ in 0..50 {
                prop_assert_eq!(cumulative.draw(&mut random), naive(&weights, same.below(total)));
            }
            let mut left = weights.clone();
            let mut urn = Urn::new(weights);
            while let Some(drawn) = urn.draw(&mut random) {
                let total = left.iter().sum();
                prop_assert_eq!(drawn, naive(&left, same.below(total)));
                left[drawn as usize] = 0;
            }
            prop_assert_eq!(left.iter().sum::<u64>(), 0);
        }

        #[test]
        fn whole_weights_keep_proportions(
            weights in prop::collection::vec(
                prop_oneof![Just(0.0), 1e-3..1e3f64, Just(1e300)], 1..40),
        ) {
            let total: f64 = weights.iter().map(|weight| weight / 1e300).sum();
            let Ok(whole) = whole_weights(&weights) else {
                prop_assert_eq!(total, 0.0);
                return Ok(());
            };
            let sum: u64 = whole.iter().sum();
            for (&weight, &whole) in weights.iter().zip(&whole) {
                prop_assert_eq!(weight > 0.0, whole > 0);
                let off = whole as f64 / sum as f64 - weight / 1e300 / total;
                prop_assert!(off.abs() < 1e-12, "{off}");
            }
        }
    }

    #[test]
    fn an_invalid_weight_is_named() {
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            let error = whole_weights(&[1.0, bad]).unwrap_err().to_string();
            assert!(error.contains("entry 1"), "{error}");
        }
        assert_eq!(whole_weights(&[0.0, 0.0]), Err(SamplerError::NoWeight));
        assert_eq!(whole_weights(&[]), Err(SamplerError::NoWeight));
    }
}

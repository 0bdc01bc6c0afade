//! Random draws.
//!
//! Every draw is a function of the seed, the epoch, the sample, the step and a counter. So a sample
//! is cropped in the same way on any rank and thread, and a resumed run continues exactly.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The sample and the epoch that random draws depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    /// The loader's seed.
    pub seed: u64,
    /// The epoch.
    pub epoch: u32,
    /// The sample's id.
    pub sample: u32,
}

/// The seeded random generator of one step.
#[derive(Clone, Debug)]
pub struct StepRng {
    seed: u64,
    key: [u8; 12],
    drawn: u32,
}

/// Separates the draws of positions: an odd number without a pattern in its bits. Python's `Draws`
/// uses the same one.
const POSITION_FACTOR: u64 = 0xD1B5_4A32_D192_ED03;

impl Draw {
    /// Returns the draw at a position of an epoch that can contain the sample more than once, which
    /// differs each time.
    #[must_use]
    pub fn at_place(self, iteration: u32, position: u32) -> Self {
        let place = (u64::from(iteration) << 32 | u64::from(position)).wrapping_add(1);
        Self { seed: self.seed.wrapping_add(place.wrapping_mul(POSITION_FACTOR)), ..self }
    }

    /// Returns the random generator of the step at this position in the chain.
    pub fn rng(self, step: usize) -> StepRng {
        let mut key = [0; 12];
        key[..4].copy_from_slice(&self.epoch.to_le_bytes());
        key[4..8].copy_from_slice(&self.sample.to_le_bytes());
        key[8..].copy_from_slice(&(step as u32).to_le_bytes());
        StepRng { seed: self.seed, key, drawn: 0 }
    }
}

impl StepRng {
    fn bits(&mut self) -> u64 {
        let mut input = [0; 16];
        input[..12].copy_from_slice(&self.key);
        input[12..].copy_from_slice(&self.drawn.to_le_bytes());
        self.drawn += 1;
        xxh3_64_with_seed(&input, self.seed)
    }

    /// Returns a number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number in `[low, high)`; `low` if they are equal.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns one of `0..count`; 0 if `count` is 0.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.bits()) * count as u128) >> 64) as usize
    }

    /// Returns true with this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

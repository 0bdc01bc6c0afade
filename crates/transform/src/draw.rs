//! What is drawn at random.
//!
//! Every draw is a function of the seed, the epoch, the sample, the step and a counter. So a
//! sample is cropped in the same way whoever does it, and a run that is resumed goes on as it would
//! have.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Which sample is transformed, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    pub seed: u64,
    pub epoch: u32,
    pub sample: u32,
}

/// The draws of one step.
#[derive(Clone, Debug)]
pub struct Dice {
    seed: u64,
    key: [u8; 12],
    drawn: u32,
}

/// What parts the draws of places: an odd number without a pattern in its bits. Python's `Draws` has it too.
const OF_PLACES: u64 = 0xD1B5_4A32_D192_ED03;

impl Draw {
    /// The draw at a place of an epoch that can have the sample more than once: another one each time.
    #[must_use]
    pub fn at_place(self, iteration: u32, position: u32) -> Self {
        let place = (u64::from(iteration) << 32 | u64::from(position)).wrapping_add(1);
        Self { seed: self.seed.wrapping_add(place.wrapping_mul(OF_PLACES)), ..self }
    }

    /// The dice of the step at this place in the chain.
    pub fn dice(self, step: usize) -> Dice {
        let mut key = [0; 12];
        key[..4].copy_from_slice(&self.epoch.to_le_bytes());
        key[4..8].copy_from_slice(&self.sample.to_le_bytes());
        key[8..].copy_from_slice(&(step as u32).to_le_bytes());
        Dice { seed: self.seed, key, drawn: 0 }
    }
}

impl Dice {
    fn bits(&mut self) -> u64 {
        let mut input = [0; 16];
        input[..12].copy_from_slice(&self.key);
        input[12..].copy_from_slice(&self.drawn.to_le_bytes());
        self.drawn += 1;
        xxh3_64_with_seed(&input, self.seed)
    }

    /// In `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// In `[low, high)`; `low` if they are equal.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// One of `0..count`; 0 if there is none.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.bits()) * count as u128) >> 64) as usize
    }

    /// Whether something of this probability happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}

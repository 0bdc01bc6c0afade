//! `SplitMix64`, the seeded random generator for everything that need not match torch.
//!
//! It passes the usual test batteries, can start at any state at no cost, and returns the same
//! numbers on every machine. (S. Vigna's version of G. Steele, D. Lea and C. Flood, *Fast
//! Splittable Pseudorandom Number Generators*, OOPSLA 2014.)

/// 2^64 divided by the golden ratio: the distance between two states.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// The first multiplier of [`scramble`] (variant 13 of D. Stafford).
pub const MULTIPLIER_A: u64 = 0xbf58_476d_1ce4_e5b9;
/// The second multiplier of [`scramble`].
pub const MULTIPLIER_B: u64 = 0x94d0_49bb_1331_11eb;

/// Mixes the bits of a number; a bijection.
#[inline]
pub fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(MULTIPLIER_A);
    x = (x ^ (x >> 27)).wrapping_mul(MULTIPLIER_B);
    x ^ (x >> 31)
}

/// A generator of 64-bit numbers.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Starts at any state.
    pub const fn new(state: u64) -> Self {
        Self(state)
    }

    /// Returns the next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        scramble(self.0)
    }

    /// Returns a number below `end`, or 0 if that is 0. Each is equally likely, to one part in
    /// 2^64 / `end`.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number in [0, 1), on the 53 bits that an `f64` has.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference_implementation() {
        let mut generator = SplitMix64::new(1_234_567);
        let first = [(); 3].map(|()| generator.draw());
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut generator = SplitMix64::new(7);
        for end in [1, 2, 10, 1 << 40] {
            assert!((0..100).all(|_| generator.below(end) < end));
        }
        assert_eq!(generator.below(0), 0);
        assert!((0..1000).map(|_| generator.unit()).all(|unit| (0.0..1.0).contains(&unit)));
    }
}

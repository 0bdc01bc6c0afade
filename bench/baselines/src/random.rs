//! A small generator (SplitMix64), so that the same options make the same bytes everywhere.

use belady_base::splitmix::SplitMix64;

#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// Below `limit`, which is not zero. The bias is below 2^-32 for what we count.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    /// In (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    pub fn normal(&mut self, mean: f64, stddev: f64) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        mean + stddev * radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// Fast noise that does not compress.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation_that_depends_on_the_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..1_000).collect();
            Random::new(seed).shuffle(&mut items);
            items
        };
        let mut sorted = shuffled(1);
        assert_ne!(shuffled(1), shuffled(2));
        assert_eq!(shuffled(1), shuffled(1));
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1_000).collect::<Vec<_>>());
    }

    #[test]
    fn normal_draws_have_their_mean_and_deviation() {
        let mut random = Random::new(7);
        let draws: Vec<f64> = (0..100_000).map(|_| random.normal(10.0, 2.0)).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|draw| (draw - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 10.0).abs() < 0.05 && (variance.sqrt() - 2.0).abs() < 0.05);
    }
}

//! A shuffle that needs no memory.
//!
//! A [`Permutation`] maps position to sample and back by arithmetic on a key, so
//! "what is read at position p of epoch e" and "where in epoch e is sample k read"
//! cost some nanoseconds at a billion samples, on any node, without a table.
//!
//! It is a Feistel network over a rectangle: x is split into a row and a column of
//! `rows × 2^bits ≥ n`, and each round shifts the row by a keyed hash of the
//! column, or the column by a keyed hash of the row. Every round can be undone, so
//! the whole is a permutation of the rectangle. Of its cells, fewer than `2^bits`
//! lie beyond n; a value that lands there is mapped again until it lies inside. The result is
//! still a permutation of 0..n, and repeats are rare, as the rectangle is nearly a square.

use belady_base::splitmix::{MULTIPLIER_A, MULTIPLIER_B, SplitMix64, scramble};

/// A permutation of `0..n` chosen by (seed, epoch).
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    rows: u64,
    bits: u32,
    /// The two keys of each pair of rounds; the first `pairs` are used.
    keys: [(u64, u64); MOST_PAIRS],
    pairs: usize,
}

/// The largest n: rows and columns fit the 24 upper bits that rounds take of a hash.
pub const LARGEST: u64 = 1 << 40;

const MOST_PAIRS: usize = 20;

impl Permutation {
    /// Returns the permutation that (seed, epoch) chooses.
    ///
    /// # Panics
    /// If n is 0 or above [`LARGEST`].
    pub fn new(n: u64, seed: u64, epoch: u64) -> Self {
        assert!(
            (1..=LARGEST).contains(&n),
            "a permutation of {n} entries; from 1 to 2^40 are possible"
        );
        // A column of its own wherever there are three samples: shifts of a
        // single column are rotations, and three samples have six orders.
        let bits = if n < 3 { 0 } else { (n.ilog2() / 2).max(1) };
        let rows = n.div_ceil(1 << bits);
        // Each pair of rounds divides what is left of the bias by the number of
        // columns (measured: chi-square statistics fall by its square), so small
        // rectangles need more of them. One part in 2^20 is below what the
        // uniformity tests below can see.
        let pairs = 20_u32.div_ceil(bits.max(1)).max(3) as usize;
        let state = scramble(scramble(seed) ^ epoch.wrapping_mul(MULTIPLIER_A));
        let mut random = SplitMix64::new(state);
        let keys = std::array::from_fn(|_| (random.draw(), random.draw()));
        Self { n, rows, bits, keys, pairs }
    }

    /// Returns n.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// Returns false: a permutation has at least one entry.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the sample at a position.
    ///
    /// # Panics
    /// If the position is not below n.
    #[inline]
    pub fn forward(&self, position: u64) -> u64 {
        assert!(position < self.n);
        let mut x = position;
        loop {
            x = self.encrypt(x);
            if x < self.n {
                return x;
            }
        }
    }

    /// Returns the position of a sample.
    ///
    /// # Panics
    /// If the sample is not below n.
    #[inline]
    pub fn inverse(&self, sample: u64) -> u64 {
        assert!(sample < self.n);
        let mut x = sample;
        loop {
            x = self.decrypt(x);
            if x < self.n {
                return x;
            }
        }
    }

    #[inline]
    fn encrypt(&self, x: u64) -> u64 {
        let mask = (1 << self.bits) - 1;
        let (mut row, mut column) = (x >> self.bits, x & mask);
        for &(row_key, column_key) in &self.keys[..self.pairs] {
            row += below(self.rows, hash(column, row_key));
            row = row.min(row.wrapping_sub(self.rows));
            column = column.wrapping_add(hash(row, column_key) >> 40) & mask;
        }
        row << self.bits | column
    }

    #[inline]
    fn decrypt(&self, x: u64) -> u64 {
        let mask = (1 << self.bits) - 1;
        let (mut row, mut column) = (x >> self.bits, x & mask);
        for &(row_key, column_key) in self.keys[..self.pairs].iter().rev() {
            column = column.wrapping_sub(hash(row, column_key) >> 40) & mask;
            row = row.wrapping_sub(below(self.rows, hash(column, row_key)));
            row = row.min(row.wrapping_add(self.rows));
        }
        row << self.bits | column
    }
}

/// Hashes a value with a key. The upper bits depend on every bit of both; the lower ones do not.
#[inline]
fn hash(value: u64, key: u64) -> u64 {
    let x = (value ^ key).wrapping_mul(MULTIPLIER_A);
    (x ^ (x >> 32)).wrapping_mul(MULTIPLIER_B)
}

/// Scales a 64-bit hash to `0..bound` by its upper bits.
#[inline]
fn below(bound: u64, hash: u64) -> u64 {
    ((u128::from(bound) * u128::from(hash)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(n: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(n, seed, epoch);
        (0..n).map(|position| permutation.forward(position)).collect()
    }

    #[test]
    fn a_permutation_has_the_requested_length() {
        let permutation = Permutation::new(1_000, 1, 2);
        assert_eq!((permutation.len(), permutation.is_empty()), (1_000, false));
    }

    fn assert_true_permutation(n: u64, seed: u64) {
        let permutation = Permutation::new(n, seed, 1);
        let mut seen = vec![false; n as usize];
        for position in 0..n {
            let sample = permutation.forward(position);
            assert!(!std::mem::replace(&mut seen[sample as usize], true), "{sample} twice of {n}");
            assert_eq!(permutation.inverse(sample), position, "n = {n}");
        }
    }

    #[test]
    fn is_a_true_permutation_for_every_small_n() {
        (1..=2000).for_each(|n| assert_true_permutation(n, n));
    }

    #[test]
    fn is_a_true_permutation_next_to_every_power_of_two() {
        for bits in 11..=20 {
            for n in [(1 << bits) - 1, 1 << bits, (1 << bits) + 1] {
                assert_true_permutation(n, 42);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn is_a_true_permutation_of_any_n(n in 1_u64..300_000, seed: u64) {
            assert_true_permutation(n, seed);
        }
    }

    proptest! {
        #[test]
        fn inverse_undoes_forward_at_any_size(n in 1..=LARGEST, seed: u64, epoch: u64, at: u64) {
            let permutation = Permutation::new(n, seed, epoch);
            let position = at % n;
            let sample = permutation.forward(position);
            prop_assert!(sample < n);
            prop_assert_eq!(permutation.inverse(sample), position);
            prop_assert_eq!(permutation.forward(permutation.inverse(position)), position);
        }
    }

    /// How many standard deviations chi-square lies above its mean, for equally
    /// likely cells. Keys are fixed, so a test passes always or never; six leaves
    /// chance out of it.
    fn surprise(cells: &[u32]) -> f64 {
        let total: f64 = cells.iter().map(|&count| f64::from(count)).sum();
        let expected = total / cells.len() as f64;
        assert!(expected >= 5.0, "too few draws to judge");
        let chi: f64 =
            cells.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
        let freedom = (cells.len() - 1) as f64;
        (chi - freedom) / (2.0 * freedom).sqrt()
    }

    /// The number of a permutation among all n!.
    fn rank(order: &[u64]) -> usize {
        (0..order.len()).fold(0, |rank, i| {
            let smaller = order[i + 1..].iter().filter(|&&later| later < order[i]).count();
            rank * (order.len() - i) + smaller
        })
    }

    #[test]
    fn all_orders_of_few_samples_are_equally_likely() {
        for n in 2..=6_u64 {
            let mut cells = vec![0; (1..=n as usize).product()];
            for epoch in 0..200_000 {
                cells[rank(&order(n, 7, epoch))] += 1;
            }
            let surprise = surprise(&cells);
            assert!(surprise < 6.0, "n = {n}: {surprise}");
        }
    }

    #[test]
    fn every_sample_is_equally_likely_at_every_position() {
        for n in [10, 17, 64, 100, 255, 1000] {
            for position in [0, 1, n / 2, n - 1] {
                let (mut by_epoch, mut by_seed) = (vec![0; n as usize], vec![0; n as usize]);
                for key in 0..50_000 {
                    by_epoch[Permutation::new(n, 5, key).forward(position) as usize] += 1;
                    by_seed[Permutation::new(n, key, 5).forward(position) as usize] += 1;
                }
                for cells in [by_epoch, by_seed] {
                    let surprise = surprise(&cells);
                    assert!(surprise < 6.0, "n = {n}, position {position}: {surprise}");
                }
            }
        }
    }

    #[test]
    fn every_pair_of_neighbours_is_equally_likely() {
        for n in [8, 10, 16, 33, 64] {
            // Neighbours in a row, and in a column, of the rectangle.
            let below = 1 << (n as u64).ilog2().div_euclid(2);
            for (here, there) in [(0, 1), (0, below), (1, below + 2), (0, n as u64 - 1)] {
                let mut cells = vec![0; n * (n - 1)];
                for epoch in 0..200_000 {
                    let permutation = Permutation::new(n as u64, 11, epoch);
                    let (a, b) = (permutation.forward(here), permutation.forward(there));
                    let b = b - u64::from(b > a);
                    cells[a as usize * (n - 1) + b as usize] += 1;
                }
                let surprise = surprise(&cells);
                assert!(surprise < 6.0, "n = {n}, positions {here}, {there}: {surprise}");
            }
        }
    }

    #[test]
    fn one_large_order_looks_shuffled() {
        let n = 1_281_167_u64;
        let order = order(n, 42, 0);
        // Steps from one entry to the next, and pairs of entries, in equal cells.
        let mut steps = vec![0; 1024];
        let mut pairs = vec![0; 64 * 64];
        for pair in order.windows(2) {
            steps[((pair[1] + n - pair[0]) % n * 1024 / n) as usize] += 1;
            pairs[(pair[0] * 64 / n * 64 + pair[1] * 64 / n) as usize] += 1;
        }
        assert!(surprise(&steps) < 6.0, "steps: {}", surprise(&steps));
        assert!(surprise(&pairs) < 6.0, "pairs: {}", surprise(&pairs));
        // A shuffle rises in half of its steps, with variance n/12.
        let rises = order.windows(2).filter(|pair| pair[0] < pair[1]).count() as f64;
        assert!((rises - n as f64 / 2.0).abs() < 6.0 * (n as f64 / 12.0).sqrt(), "{rises} rises");
    }

    #[test]
    fn epochs_are_independent_of_each_other() {
        let n = 200_000_u64;
        let (first, second) = (Permutation::new(n, 42, 0), Permutation::new(n, 42, 1));
        let mut cells = vec![0; 64 * 64];
        for sample in 0..n {
            let cell = first.inverse(sample) * 64 / n * 64 + second.inverse(sample) * 64 / n;
            cells[cell as usize] += 1;
        }
        assert!(surprise(&cells) < 6.0, "{}", surprise(&cells));
        assert_ne!(order(100, 1, 0), order(100, 0, 1), "seed and epoch are not one number");
    }

    #[test]
    fn a_rank_reads_a_sample_as_often_as_the_binomial_law_says() {
        const EPOCHS: u64 = 32;
        let (n, ranks) = (100_000, 4_u64);
        let mut reads = vec![0_u32; n as usize];
        for epoch in 0..EPOCHS {
            let permutation = Permutation::new(n, 3, epoch);
            for (sample, reads) in (0..n).zip(&mut reads) {
                *reads += u32::from(permutation.inverse(sample).is_multiple_of(ranks));
            }
        }
        let mean = EPOCHS as f64 / ranks as f64;
        let variance = mean * (1.0 - 1.0 / ranks as f64);
        let found: f64 =
            reads.iter().map(|&reads| (f64::from(reads) - mean).powi(2)).sum::<f64>() / n as f64;
        // The variance of a sample variance is about 2σ⁴/n.
        let tolerance = 6.0 * variance * (2.0 / n as f64).sqrt();
        assert!((found - variance).abs() < tolerance, "{found} instead of {variance}");
    }
}

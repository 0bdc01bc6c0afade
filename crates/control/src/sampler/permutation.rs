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
//! lie beyond n; who lands there walks on until inside, which keeps it a
//! permutation of 0..n and is rare, as the rectangle is nearly a square.

/// A permutation of `0..n` chosen by (seed, epoch).
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    rows: u64,
    bits: u32,
    /// One key for each pair of rounds; the first `pairs` are used.
    keys: [(u64, u64); MOST_PAIRS],
    pairs: usize,
}

/// The largest n: row and column still fit 21 bits, far from where hashes thin out.
pub const LARGEST: u64 = 1 << 40;

const MOST_PAIRS: usize = 16;

impl Permutation {
    /// # Panics
    /// If n is 0 or above [`LARGEST`].
    pub fn new(n: u64, seed: u64, epoch: u64) -> Self {
        assert!((1..=LARGEST).contains(&n), "a permutation of {n}");
        // A column of its own wherever there are three samples: shifts of a
        // single column are rotations, and three samples have six orders.
        let bits = if n < 3 { 0 } else { (n.ilog2() / 2).max(1) };
        let rows = n.div_ceil(1 << bits);
        // Rounds shift whole rows and columns, and small rectangles have few: they
        // need more rounds until all orders are equally likely. Measured by the
        // uniformity tests below.
        let pairs = match n {
            ..0x400 => MOST_PAIRS,
            ..0x1_0000 => 6,
            _ => 4,
        };
        let mut state = scramble(scramble(seed) ^ epoch.wrapping_mul(ODD_A));
        let mut next = || {
            state = state.wrapping_add(GOLDEN);
            scramble(state)
        };
        let keys = std::array::from_fn(|_| (next(), next()));
        Self { n, rows, bits, keys, pairs }
    }

    pub fn len(&self) -> u64 {
        self.n
    }

    /// Never true; here because `len` is.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The sample at a position.
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

    /// The position of a sample.
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

/// 2^64 divided by the golden ratio: the step of `SplitMix64`.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// The multipliers of `SplitMix64`'s finaliser (variant 13 of D. Stafford).
const ODD_A: u64 = 0xbf58_476d_1ce4_e5b9;
const ODD_B: u64 = 0x94d0_49bb_1331_11eb;

/// `SplitMix64`'s finaliser.
fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(ODD_A);
    x = (x ^ (x >> 27)).wrapping_mul(ODD_B);
    x ^ (x >> 31)
}

/// Its upper bits depend on every bit of value and key; the lower ones do not.
#[inline]
fn hash(value: u64, key: u64) -> u64 {
    let x = (value ^ key).wrapping_mul(ODD_A);
    (x ^ (x >> 32)).wrapping_mul(ODD_B)
}

/// Scales a 64-bit hash to `0..bound` by its upper bits.
#[inline]
fn below(bound: u64, hash: u64) -> u64 {
    ((u128::from(bound) * u128::from(hash)) >> 64) as u64
}

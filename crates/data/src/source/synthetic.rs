//! A source that generates its bytes: for tests, soaks and benchmarks, at memory speed.
//!
//! A sample's bytes follow from the seed, its number and their position, so a receiver can verify
//! them ([`Synthetic::verify`]): a byte of another sample, another position or another seed does
//! not pass.

use belady_base::SampleId;
use belady_base::sync::atomic::{AtomicU64, Ordering};
use belady_control::model::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Catalog, Operations, ReadError, Source, Want};

/// The largest size of a sample.
pub const LARGEST: Bytes = Bytes(4 << 20);

/// A source of generated samples.
#[derive(Debug)]
pub struct Synthetic {
    catalog: Catalog,
    seed: u64,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Synthetic {
    /// Creates a source of samples with these sizes.
    pub fn of_sizes(sizes: impl IntoIterator<Item = u64>, seed: u64) -> Self {
        let catalog = Catalog::of_seed(sizes, seed);
        Self { catalog, seed, reads: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Creates a source with sizes of every order of magnitude from 0 to 4 MiB and about this mean.
    pub fn of_mean(samples: u32, mean: Bytes, seed: u64) -> Self {
        let spread = SizeSpread::of_mean(mean);
        let draw = |sample: u32| unit(xxh3_64_with_seed(&sample.to_le_bytes(), seed));
        Self::of_sizes((0..samples).map(|sample| spread.size(draw(sample))), seed)
    }

    /// Whether these are exactly the bytes of the sample.
    pub fn verify(&self, sample: SampleId, bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut made = self.words(sample);
        // Whole words without branches: a difference anywhere leaves a bit.
        let differing = words
            .iter()
            .fold(0, |differing, word| differing | (u64::from_le_bytes(*word) ^ made.next_word()));
        bytes.len() as u64 == self.catalog.size(sample)
            && differing == 0
            && made.next_word().to_le_bytes().starts_with(rest)
    }

    fn fill(&self, sample: SampleId, into: &mut [u8]) {
        let mut made = self.words(sample);
        let (words, rest) = into.as_chunks_mut::<8>();
        for word in words {
            *word = made.next_word().to_le_bytes();
        }
        rest.copy_from_slice(&made.next_word().to_le_bytes()[..rest.len()]);
    }

    fn words(&self, sample: SampleId) -> Words {
        Words(xxh3_64_with_seed(&sample.to_le_bytes(), !self.seed))
    }
}

impl Source for Synthetic {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        for want in wants {
            debug_assert_eq!(want.into.len() as u64, self.catalog.size(want.sample));
            self.fill(want.sample, want.into);
            self.bytes.fetch_add(want.into.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn operations(&self) -> Operations {
        Operations {
            read: self.reads.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            ..Operations::default()
        }
    }
}

/// A sample's bytes, eight at a time. One addition for each word, so that memory is the limit.
struct Words(u64);

impl Words {
    fn next_word(&mut self) -> u64 {
        // 2^64 divided by the golden ratio: steps that spread evenly over all words.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0
    }
}

/// Maps a number to [0, 1).
fn unit(draw: u64) -> f64 {
    (draw >> 11) as f64 / 2f64.powi(53)
}

/// The distribution of sizes: the logarithm of size + 1 lies between 0 and `top`, with a density
/// proportional to e^(tilt·x). Without tilt sizes are log-uniform.
#[derive(Clone, Copy, Debug)]
struct SizeSpread {
    top: f64,
    tilt: f64,
}

impl SizeSpread {
    fn of_mean(mean: Bytes) -> Self {
        let mut spread = Self { top: (LARGEST.as_f64() + 2.0).ln(), tilt: 0.0 };
        // At these tilts the mean is below 1 and above 99 % of the largest.
        let (mut low, mut high) = (-20.0, 200.0);
        for _ in 0..100 {
            spread.tilt = f64::midpoint(low, high);
            if spread.mean() < mean.as_f64() { low = spread.tilt } else { high = spread.tilt }
        }
        spread
    }

    /// Returns the integral of e^(rate·x) from 0 to `top`, divided by its value at `top`.
    fn integral(self, rate: f64) -> f64 {
        if rate.abs() < 1e-9 { self.top } else { -(-rate * self.top).exp_m1() / rate }
    }

    fn mean(self) -> f64 {
        // Rounding down takes half a byte on average.
        self.top.exp() * self.integral(self.tilt + 1.0) / self.integral(self.tilt) - 1.5
    }

    fn size(self, draw: f64) -> u64 {
        let Self { top, tilt } = self;
        let log = if tilt.abs() < 1e-9 {
            draw * top
        } else {
            // The inverse of the distribution, written from the top so that nothing overflows.
            top + (draw + (1.0 - draw) * (-tilt * top).exp()).ln() / tilt
        };
        (log.clamp(0.0, top).exp() as u64).saturating_sub(1).min(LARGEST.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_requested_mean() {
        for mean in [100, 5_000, 110_000, 275_000, 2_000_000] {
            let spread = SizeSpread::of_mean(Bytes(mean));
            // Even steps, since with random draws rare large sizes decide the mean.
            let sizes = (0..1_000_000).map(|step| spread.size((f64::from(step) + 0.5) / 1e6));
            let share = sizes.sum::<u64>() as f64 / 1e6 / mean as f64;
            assert!((0.98..1.02).contains(&share), "{share} of {mean}");
        }
    }

    #[test]
    fn another_seed_is_another_dataset() {
        let fingerprint = |seed| Synthetic::of_sizes([5, 6], seed).catalog.fingerprint();
        assert_eq!(fingerprint(1), fingerprint(1));
        assert_ne!(fingerprint(1), fingerprint(2));
        let bytes = Synthetic::of_sizes([5, 6], 1).catalog.as_bytes().to_vec();
        assert_eq!(Catalog::from_bytes(bytes).expect("sound").fingerprint(), fingerprint(1));
    }

    #[test]
    fn sizes_are_of_every_magnitude() {
        let source = Synthetic::of_mean(100_000, Bytes(100_000), 1);
        let sizes: Vec<u64> = (0..100_000).map(|sample| source.catalog.size(sample)).collect();
        assert!(sizes.contains(&0));
        assert!(sizes.iter().all(|&size| size <= LARGEST.0));
        for magnitude in 0..22 {
            let range = 1 << magnitude..2 << magnitude;
            assert!(sizes.iter().any(|size| range.contains(size)), "none in {range:?}");
        }
    }

    #[test]
    fn any_mean_gives_sizes_within_the_limit() {
        for mean in [0, 1, 4 << 20, u64::MAX] {
            let spread = SizeSpread::of_mean(Bytes(mean));
            for draw in [0.0, 0.25, 0.5, 0.75, 1.0 - f64::EPSILON] {
                assert!(spread.size(draw) <= LARGEST.0);
            }
        }
    }
}

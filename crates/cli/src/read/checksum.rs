//! `--checksum`: a hash of all delivered samples.
//!
//! It is equal for runs that deliver the same samples with the same bytes in the same order.

use belady_control::sampler::SampleId;
use belady_peer::digest;

/// The hash of all samples so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u64);

impl Checksum {
    /// Adds a sample.
    pub fn add(&mut self, sample: SampleId, bytes: &[u8]) {
        let mut block = [0; 20];
        block[..8].copy_from_slice(&self.0.to_le_bytes());
        block[8..12].copy_from_slice(&sample.to_le_bytes());
        block[12..].copy_from_slice(&digest(bytes).to_le_bytes());
        self.0 = digest(&block);
    }

    /// Returns the checksum of several ranks: of one rank, its own.
    pub fn of_ranks(ranks: impl ExactSizeIterator<Item = Self>) -> Self {
        if ranks.len() == 1 {
            return ranks.last().unwrap_or_default();
        }
        let sums: Vec<u8> = ranks.flat_map(|rank| rank.0.to_le_bytes()).collect();
        Self(digest(&sums))
    }

    /// Returns 16 hexadecimal digits. Many JSON parsers do not read 64-bit numbers exactly.
    pub fn text(self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(samples: &[(SampleId, &[u8])]) -> String {
        let mut sum = Checksum::default();
        for (sample, bytes) in samples {
            sum.add(*sample, bytes);
        }
        sum.text()
    }

    #[test]
    fn another_sample_order_or_byte_changes_the_checksum() {
        let whole = of(&[(1, b"one"), (2, b"two")]);
        assert_eq!(whole, of(&[(1, b"one"), (2, b"two")]));
        let others =
            [of(&[(2, b"two"), (1, b"one")]), of(&[(1, b"one"), (2, b"twp")]), of(&[(1, b"one")])];
        assert!(others.iter().all(|other| *other != whole && other.len() == 16), "{others:?}");
    }
}

//! What came, as one number: runs that had the same samples in the same order with the same bytes have
//! the same one.

use belady_control::sampler::SampleId;
use belady_peer::digest;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u64);

impl Checksum {
    pub fn add(&mut self, sample: SampleId, bytes: &[u8]) {
        let mut block = [0; 20];
        block[..8].copy_from_slice(&self.0.to_le_bytes());
        block[8..12].copy_from_slice(&sample.to_le_bytes());
        block[12..].copy_from_slice(&digest(bytes).to_le_bytes());
        self.0 = digest(&block);
    }

    /// 16 hexadecimal digits: in JSON, a number of 64 bits is read as less by many.
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
    fn another_sample_order_or_byte_is_another_number() {
        let whole = of(&[(1, b"one"), (2, b"two")]);
        assert_eq!(whole, of(&[(1, b"one"), (2, b"two")]));
        let others =
            [of(&[(2, b"two"), (1, b"one")]), of(&[(1, b"one"), (2, b"twp")]), of(&[(1, b"one")])];
        assert!(others.iter().all(|other| *other != whole && other.len() == 16), "{others:?}");
    }
}

//! A set of samples, one bit each.

use crate::sampler::SampleId;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// An empty set of samples below `samples`.
    pub fn new(samples: u32) -> Self {
        Self(vec![0; (samples as usize).div_ceil(64)])
    }

    #[inline]
    pub fn contains(&self, sample: SampleId) -> bool {
        self.0.get(sample as usize / 64).is_some_and(|word| word >> (sample % 64) & 1 == 1)
    }

    /// Whether it was new.
    #[inline]
    pub fn insert(&mut self, sample: SampleId) -> bool {
        let word = &mut self.0[sample as usize / 64];
        let bit = 1 << (sample % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether it was there.
    #[inline]
    pub fn remove(&mut self, sample: SampleId) -> bool {
        let word = &mut self.0[sample as usize / 64];
        let bit = 1 << (sample % 64);
        let there = *word & bit != 0;
        *word &= !bit;
        there
    }

    /// Made with [`Default`] and never given room.
    pub fn is_unallocated(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_what_was_put_in() {
        let mut bits = Bits::new(130);
        assert!(bits.insert(129) && !bits.insert(129));
        assert!(bits.contains(129) && !bits.contains(128) && !bits.contains(5000));
        assert!(bits.remove(129) && !bits.remove(129));
        assert_eq!(bits, Bits::new(130));
    }
}

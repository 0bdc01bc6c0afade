//! A set of samples, one bit each.

use crate::sampler::SampleId;

/// A set of samples. Membership costs one load and one shift.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// Returns an empty set of samples below `samples`.
    pub fn new(samples: u32) -> Self {
        Self(vec![0; (samples as usize).div_ceil(64)])
    }

    /// Returns the set as words of 64 samples, the lowest bit first.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// Returns the set of samples below `samples` that [`Self::words`] gave. Missing words are
    /// empty; bits beyond `samples` are ignored.
    pub fn from_words(samples: u32, words: &[u64]) -> Self {
        let mut bits = Self::new(samples);
        for (mine, theirs) in bits.0.iter_mut().zip(words) {
            *mine = *theirs;
        }
        if let Some(last) = bits.0.last_mut()
            && !samples.is_multiple_of(64)
        {
            *last &= (1 << (samples % 64)) - 1;
        }
        bits
    }

    /// Returns whether the sample is in the set.
    #[inline]
    pub fn contains(&self, sample: SampleId) -> bool {
        self.0.get(sample as usize / 64).is_some_and(|word| word >> (sample % 64) & 1 == 1)
    }

    /// Adds a sample; returns whether it was new.
    #[inline]
    pub fn insert(&mut self, sample: SampleId) -> bool {
        let word = &mut self.0[sample as usize / 64];
        let bit = 1 << (sample % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Removes a sample; returns whether it was in the set.
    #[inline]
    pub fn remove(&mut self, sample: SampleId) -> bool {
        let word = &mut self.0[sample as usize / 64];
        let bit = 1 << (sample % 64);
        let there = *word & bit != 0;
        *word &= !bit;
        there
    }

    /// Returns whether the set was made with [`Default`] and has no memory yet.
    pub fn is_unallocated(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds all samples below `samples`.
    pub fn fill(&mut self, samples: u32) {
        for sample in 0..samples {
            self.insert(sample);
        }
    }

    /// Returns the number of samples in the set.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the samples in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = SampleId> {
        (0..).zip(&self.0).flat_map(|(at, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(at * 64 + bit)
            })
        })
    }

    /// Returns an index that counts how many samples of the set come before a given one.
    pub fn ranks(&self) -> BitRanks<'_> {
        let mut count = 0;
        let before = self.0.iter().map(|word| {
            let before = count;
            count += word.count_ones();
            before
        });
        BitRanks { before: before.collect(), bits: self }
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.0.fill(0);
    }
}

/// An index over a set: how many of its samples come before a given one.
#[derive(Debug)]
pub struct BitRanks<'a> {
    /// By word of the set.
    before: Vec<u32>,
    bits: &'a Bits,
}

impl BitRanks<'_> {
    /// Returns the number of samples of the set below `sample`.
    #[inline]
    pub fn of(&self, sample: SampleId) -> u32 {
        let word = sample as usize / 64;
        let below = self.bits.0[word] & ((1 << (sample % 64)) - 1);
        self.before[word] + below.count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sample_is_in_the_set_from_insert_to_remove() {
        let mut bits = Bits::new(130);
        assert!(bits.insert(129) && !bits.insert(129));
        assert!(bits.contains(129) && !bits.contains(128) && !bits.contains(5000));
        assert!(bits.remove(129) && !bits.remove(129));
        assert_eq!(bits, Bits::new(130));
    }

    proptest! {
        #[test]
        fn lists_and_ranks_agree_with_a_plain_list(
            flags in proptest::collection::vec(any::<bool>(), 1..300),
        ) {
            let mut bits = Bits::new(flags.len() as u32);
            let set = |sample: &u32| flags[*sample as usize];
            let plain: Vec<u32> = (0..flags.len() as u32).filter(set).collect();
            for &sample in &plain {
                bits.insert(sample);
            }
            prop_assert_eq!(bits.iter().collect::<Vec<_>>(), plain.clone());
            prop_assert_eq!(bits.count(), plain.len());
            let ranks = bits.ranks();
            for sample in 0..flags.len() as u32 {
                let before = plain.iter().filter(|&&other| other < sample).count();
                prop_assert_eq!(ranks.of(sample), before as u32);
            }
            bits.fill(flags.len() as u32);
            prop_assert_eq!(bits.count(), flags.len());
        }
    }
}

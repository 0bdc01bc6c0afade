//! What the tiers' prefetchers fetch of an epoch.

use crate::bits::Bits;
use crate::sampler::SampleId;

/// Samples that prefetchers fetch in one epoch.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// By spot, in the order of use.
    lists: Vec<Vec<SampleId>>,
    fetched: Bits,
}

impl ReadAhead {
    pub fn new(lists: Vec<Vec<SampleId>>, fetched: Bits) -> Self {
        Self { lists, fetched }
    }

    pub fn is_empty(&self) -> bool {
        self.fetched.is_unallocated()
    }

    /// What the prefetcher of a spot fetches, in order.
    pub fn list(&self, spot: usize) -> &[SampleId] {
        self.lists.get(spot).map_or(&[], Vec::as_slice)
    }

    /// Whether a prefetcher fetches the sample into its spot.
    #[inline]
    pub fn contains(&self, sample: SampleId) -> bool {
        self.fetched.contains(sample)
    }
}

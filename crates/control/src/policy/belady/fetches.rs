//! What the tiers' prefetchers fetch of an epoch.

use super::{NOWHERE, Spot};
use crate::packed::Packed;
use crate::sampler::SampleId;

/// A sample that a prefetcher fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFetch {
    pub sample: SampleId,
    /// The iteration that uses it.
    pub iteration: u32,
    /// Whether it goes again after that.
    pub relayed: bool,
}

/// Samples that prefetchers fetch in one epoch.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// By spot, in the order of use.
    lists: Vec<Vec<PlannedFetch>>,
    /// Where each of them is fetched to.
    spots: Packed,
    /// By iteration, before it and after the last, and by node: space for relayed samples beside
    /// the relay's own.
    free: Vec<Vec<u64>>,
}

impl ReadAhead {
    pub fn new(lists: Vec<Vec<PlannedFetch>>, samples: u32, free: Vec<Vec<u64>>) -> Self {
        if lists.iter().all(Vec::is_empty) {
            return Self::default();
        }
        let mut spots = Packed::new(samples, lists.len() as Spot);
        for (spot, list) in lists.iter().enumerate() {
            for fetch in list {
                spots.set(fetch.sample, spot as Spot);
            }
        }
        Self { lists, spots, free }
    }

    pub fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    /// What the prefetcher of a spot fetches, in order.
    pub fn list(&self, spot: usize) -> &[PlannedFetch] {
        self.lists.get(spot).map_or(&[], Vec::as_slice)
    }

    /// Space of a node for what it fetches ahead beside the relay's own, from the beginning of
    /// iteration `next` until the fetched sample is used and goes, or counts as held. None where fetches
    /// have their space from the epoch's beginning on.
    pub fn free(&self, node: usize, next: Option<u32>, fetch: PlannedFetch) -> Option<u64> {
        if self.free.is_empty() {
            return None;
        }
        let end = fetch.iteration as usize;
        let during = next.and_then(|next| self.free.get(next as usize..=end)).unwrap_or(&[]);
        Some(during.iter().map(|free| free[node]).min().unwrap_or(0))
    }

    /// The spot that a prefetcher fetches the sample into, if one does.
    #[inline]
    pub fn spot(&self, sample: SampleId) -> Option<Spot> {
        Some(self.spots.get(sample)).filter(|&spot| spot != NOWHERE)
    }
}

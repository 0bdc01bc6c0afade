//! What the tiers' prefetchers fetch of an epoch.

use super::{NOWHERE, Spot};
use crate::packed::Packed;
use crate::sampler::SampleId;

/// Samples that prefetchers fetch in one epoch.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// By spot, in the order of use: what stays there.
    held: Vec<Vec<SampleId>>,
    /// By node, in the order of use: what it relays, and the iteration that uses it.
    relayed: Vec<Vec<(u32, SampleId)>>,
    /// Where each of them is fetched to.
    spots: Packed,
}

impl ReadAhead {
    /// `held` has a list for every spot, `relayed` for every node, whose first tier takes them.
    pub fn new(held: Vec<Vec<SampleId>>, relayed: Vec<Vec<(u32, SampleId)>>, samples: u32) -> Self {
        if held.iter().all(Vec::is_empty) && relayed.iter().all(Vec::is_empty) {
            return Self::default();
        }
        let tiers = held.len() / relayed.len();
        let mut spots = Packed::new(samples, held.len() as Spot);
        for (spot, list) in held.iter().enumerate() {
            for &sample in list {
                spots.set(sample, spot as Spot);
            }
        }
        for (node, list) in relayed.iter().enumerate() {
            for &(_, sample) in list {
                spots.set(sample, (node * tiers + 1) as Spot);
            }
        }
        Self { held, relayed, spots }
    }

    pub fn is_empty(&self) -> bool {
        self.spots.is_empty()
    }

    /// What the prefetcher of a spot fetches to stay there, in order.
    pub fn held(&self, spot: usize) -> &[SampleId] {
        self.held.get(spot).map_or(&[], Vec::as_slice)
    }

    /// What a node relays, in order, and the iterations that use it.
    pub fn relayed(&self, node: usize) -> &[(u32, SampleId)] {
        self.relayed.get(node).map_or(&[], Vec::as_slice)
    }

    /// The spot that a prefetcher fetches the sample into, if one does.
    #[inline]
    pub fn spot(&self, sample: SampleId) -> Option<Spot> {
        Some(self.spots.get(sample)).filter(|&spot| spot != NOWHERE)
    }
}

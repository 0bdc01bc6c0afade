//! Spare samples: held although the next epoch does not use them.
//!
//! An epoch that leaves samples out, or draws them by weight, leaves space that nothing of the
//! next epoch needs. What a later epoch uses waits there, and goes when the space is needed:
//! what is used last goes first.

use super::Spot;
use super::later::Wait;
use crate::sampler::SampleId;

/// The spare samples that were held when an epoch began, by spot.
#[derive(Debug, Default)]
pub struct Spares {
    /// Sorted: the longest wait is last.
    by_spot: Vec<Vec<(Wait, SampleId)>>,
    bytes: Vec<u64>,
    total: u64,
}

impl Spares {
    pub fn new(spots: usize) -> Self {
        Self { by_spot: vec![vec![]; spots], bytes: vec![0; spots], total: 0 }
    }

    pub fn add(&mut self, spot: Spot, wait: Wait, sample: SampleId, bytes: u64) {
        self.by_spot[usize::from(spot)].push((wait, sample));
        self.bytes[usize::from(spot)] += bytes;
        self.total += bytes;
    }

    pub fn sort(&mut self) {
        for spares in &mut self.by_spot {
            spares.sort_unstable();
        }
    }

    /// All bytes of spare samples.
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn bytes(&self, spot: usize) -> u64 {
        self.bytes[spot]
    }

    /// The spare sample at `spot` with the longest wait, if that is longer than `wait`; `size`
    /// gives the bytes of a sample.
    pub fn take(
        &mut self,
        spot: usize,
        wait: Wait,
        size: impl Fn(SampleId) -> u64,
    ) -> Option<SampleId> {
        let &(longest, sample) = self.by_spot[spot].last()?;
        if longest <= wait {
            return None;
        }
        self.by_spot[spot].pop();
        self.bytes[spot] -= size(sample);
        self.total -= size(sample);
        Some(sample)
    }
}

//! The plan of one epoch: where its samples are when they are read, and what stays.

use crate::policy::{NodeId, TierId};
use crate::sampler::SampleId;

/// The node and tier that hold a sample, packed; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder(u32);

impl Holder {
    pub fn new(node: NodeId, tier: TierId) -> Self {
        Self((node + 1) << 8 | u32::from(tier))
    }

    #[inline]
    pub fn get(self) -> Option<(NodeId, TierId)> {
        (self.0 != 0).then(|| ((self.0 >> 8) - 1, self.0 as TierId))
    }
}

/// One epoch: where its samples are when they are read, and what stays.
#[derive(Debug)]
pub struct EpochPlan {
    pub epoch: u32,
    pub(super) ranks: u32,
    /// `[iteration * ranks + rank]`: where a local batch starts in the lists below.
    pub(super) starts: Vec<u32>,
    pub(super) samples: Vec<SampleId>,
    pub(super) holders: Vec<Holder>,
    /// The tier in which the reader keeps it; 0 for none.
    pub(super) keeps: Vec<TierId>,
    /// `[iteration * nodes + node]`: where that step's evictions start.
    pub(super) eviction_starts: Vec<u32>,
    pub(super) evictions: Vec<(SampleId, TierId)>,
    pub(super) nodes: u32,
}

impl EpochPlan {
    fn range(&self, rank: u32, iteration: u32) -> std::ops::Range<usize> {
        let at = (iteration * self.ranks + rank) as usize;
        self.starts[at] as usize..self.starts[at + 1] as usize
    }

    pub fn samples(&self, rank: u32, iteration: u32) -> &[SampleId] {
        &self.samples[self.range(rank, iteration)]
    }

    pub fn holders(&self, rank: u32, iteration: u32) -> &[Holder] {
        &self.holders[self.range(rank, iteration)]
    }

    pub fn keeps(&self, rank: u32, iteration: u32) -> &[TierId] {
        &self.keeps[self.range(rank, iteration)]
    }

    /// What a node drops after an iteration.
    pub fn evictions(&self, node: NodeId, iteration: u32) -> &[(SampleId, TierId)] {
        let at = (iteration * self.nodes + node) as usize;
        &self.evictions[self.eviction_starts[at] as usize..self.eviction_starts[at + 1] as usize]
    }
}

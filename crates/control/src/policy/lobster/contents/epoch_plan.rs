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
    /// `[iteration * nodes + node]`: where the fetches after that step start.
    pub(super) fetch_starts: Vec<u32>,
    pub(super) fetches: Vec<(SampleId, TierId)>,
    pub(super) nodes: u32,
}

impl EpochPlan {
    pub(super) fn new(epoch: u32, nodes: u32, ranks: u32) -> Self {
        Self {
            epoch,
            ranks,
            starts: vec![0],
            samples: vec![],
            holders: vec![],
            keeps: vec![],
            eviction_starts: vec![0],
            evictions: vec![],
            fetch_starts: vec![0],
            fetches: vec![],
            nodes,
        }
    }

    /// Adds what an iteration changes; empties the lists of evictions and fetches.
    pub(super) fn end_iteration(
        &mut self,
        keeps: &[TierId],
        evictions: &mut Vec<(NodeId, SampleId, TierId)>,
        fetches: &mut Vec<(NodeId, SampleId, TierId)>,
    ) {
        self.keeps.extend(keeps);
        let by_node =
            |list: &mut Vec<(NodeId, SampleId, TierId)>, to: &mut Vec<_>, starts: &mut Vec<_>| {
                list.sort_by_key(|&(node, ..)| node);
                let mut list = list.drain(..).peekable();
                for node in 0..self.nodes {
                    while let Some((_, sample, tier)) = list.next_if(|&(of, ..)| of == node) {
                        to.push((sample, tier));
                    }
                    starts.push(to.len() as u32);
                }
            };
        by_node(evictions, &mut self.evictions, &mut self.eviction_starts);
        by_node(fetches, &mut self.fetches, &mut self.fetch_starts);
    }

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
    /// What a node's prefetchers fetch after an iteration, and into which tier.
    pub fn fetches(&self, node: NodeId, iteration: u32) -> &[(SampleId, TierId)] {
        let at = (iteration * self.nodes + node) as usize;
        &self.fetches[self.fetch_starts[at] as usize..self.fetch_starts[at + 1] as usize]
    }
}

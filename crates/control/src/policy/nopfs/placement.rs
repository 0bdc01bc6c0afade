//! Which node caches what: each node's most frequent samples, most frequent first.

use std::sync::Arc;

use rayon::prelude::*;

use super::NopfsOptions;
use crate::bits::Bits;
use crate::job::Job;
use crate::policy::{NodeId, TierId};
use crate::sampler::{EpochOrder, SampleId};

/// Counters of this many bytes are held at a time; more nodes take more passes.
const COUNTER_BYTES: usize = 256 << 20;

/// Which node caches what.
#[derive(Debug)]
pub struct NopfsPlacement {
    pub nodes: Vec<Arc<NodePlacement>>,
    /// By sample: `node * tiers + tier` of the holder that gets it first, 0 for none.
    pub holder: Vec<u16>,
    /// By sample: how many samples that holder fetches into the tier before it.
    pub offset: Vec<u32>,
}

/// What one node will cache.
#[derive(Debug, Default)]
pub struct NodePlacement {
    /// By tier: samples in fetch order.
    pub lists: Vec<Vec<SampleId>>,
    /// By tier.
    pub planned: Vec<Bits>,
    /// Reads left by sample; empty unless `cleanup_read`.
    pub reads: Vec<u16>,
}

impl NopfsPlacement {
    /// `see` counts the orders that are known, for some nodes.
    pub fn new(job: &Job, options: NopfsOptions, see: impl Fn(&mut [NodeAccesses])) -> Self {
        let tiers = job.system.tiers.len();
        let samples = job.sizes.len() as usize;
        let mut nodes = vec![];
        let at_once = (COUNTER_BYTES / (2 * samples)).clamp(1, job.system.nodes as usize) as u32;
        let mut first = 0;
        while first < job.system.nodes {
            let last = (first + at_once).min(job.system.nodes);
            let mut counts: Vec<NodeAccesses> =
                (first..last).map(|node| NodeAccesses::new(node, samples)).collect();
            see(&mut counts);
            let placed = counts.into_par_iter().map(|seen| Arc::new(seen.place(job, options)));
            nodes.extend(placed.collect::<Vec<_>>());
            first = last;
        }
        let mut holder = vec![0u16; samples];
        let mut offset = vec![0u32; samples];
        for (node, plan) in nodes.iter().enumerate() {
            for tier in 1..tiers {
                for (place, &sample) in plan.lists[tier].iter().enumerate() {
                    let at = sample as usize;
                    let old = (usize::from(holder[at]) % tiers, offset[at] as usize);
                    // Lowest tier, then the node that gets it first: spreads the requests.
                    if holder[at] == 0 || (tier, place) < old {
                        holder[at] = (node * tiers + tier) as u16;
                        offset[at] = place as u32;
                    }
                }
            }
        }
        Self { nodes, holder, offset }
    }
}

/// What one node reads: how often, and the order of first reads.
pub struct NodeAccesses {
    pub node: NodeId,
    pub counts: Vec<u16>,
    pub first_reads: Vec<SampleId>,
}

impl NodeAccesses {
    pub fn new(node: NodeId, samples: usize) -> Self {
        Self { node, counts: vec![0; samples], first_reads: vec![] }
    }

    pub fn see_epoch(&mut self, job: &Job, order: &EpochOrder) {
        let per_node = job.system.ranks_per_node;
        for iteration in 0..order.iterations() {
            for rank in self.node * per_node..(self.node + 1) * per_node {
                self.see(order.batch(rank, iteration));
            }
        }
    }

    pub fn see(&mut self, batch: impl Iterator<Item = SampleId>) {
        for sample in batch {
            let count = &mut self.counts[sample as usize];
            if *count == 0 {
                self.first_reads.push(sample);
            }
            *count = count.saturating_add(1);
        }
    }

    /// Puts the most frequent samples into the fastest tier; among equals, the first read first.
    pub fn place(self, job: &Job, options: NopfsOptions) -> NodePlacement {
        let tiers = &job.system.tiers;
        let by_frequency = self.by_frequency();
        let mut free: Vec<u64> = tiers.iter().map(|tier| tier.capacity_of(self.node).0).collect();
        let mut tier_of = vec![0 as TierId; self.counts.len()];
        for &sample in &by_frequency {
            let size = job.sizes.get(sample);
            if let Some(tier) = (1..tiers.len()).find(|&tier| free[tier] >= size) {
                free[tier] -= size;
                tier_of[sample as usize] = tier as TierId;
            }
        }
        let mut plan = NodePlacement {
            lists: vec![vec![]; tiers.len()],
            planned: vec![Bits::default(); tiers.len()],
            reads: if options.cleanup_read { self.counts } else { vec![] },
        };
        for &sample in if options.in_order { &self.first_reads } else { &by_frequency } {
            let tier = usize::from(tier_of[sample as usize]);
            if tier > 0 {
                if plan.planned[tier].is_unallocated() {
                    plan.planned[tier] = Bits::new(job.sizes.len());
                }
                plan.planned[tier].insert(sample);
                plan.lists[tier].push(sample);
            }
        }
        plan
    }

    /// Returns samples most frequent first: a counting sort that leaves equals in the order of
    /// first read.
    fn by_frequency(&self) -> Vec<SampleId> {
        let count = |sample: SampleId| usize::from(self.counts[sample as usize]);
        let most = self.first_reads.iter().map(|&sample| count(sample)).max().unwrap_or(0);
        let mut start = vec![0usize; most + 2];
        for &sample in &self.first_reads {
            start[most - count(sample) + 1] += 1;
        }
        for level in 1..start.len() {
            start[level] += start[level - 1];
        }
        let mut sorted = vec![0; self.first_reads.len()];
        for &sample in &self.first_reads {
            let at = &mut start[most - count(sample)];
            sorted[*at] = sample;
            *at += 1;
        }
        sorted
    }
}

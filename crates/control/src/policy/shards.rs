//! The dataset split into one contiguous shard a node, and how much of its shard each node holds.
//! Every node computes the same split, so the holder of a sample is arithmetic.

use super::{LoadFrom, NodeId, Preload, TierId};
use crate::job::Job;
use crate::sampler::SampleId;

/// The shards of all nodes. Memory grows with nodes, not with samples.
#[derive(Debug)]
pub struct Shards {
    /// The tiers that are filled, in the order they are filled.
    tiers: Vec<TierId>,
    /// The first sample of each node's shard, and one past the last of all.
    starts: Vec<SampleId>,
    /// `[node * tiers + at]`: one past the last sample in the `at`-th filled tier.
    ends: Vec<SampleId>,
    /// Samples that did not fit their own node, and the node that holds them.
    spilled: Vec<(SampleId, NodeId)>,
}

impl Shards {
    /// Shards of equal bytes. Each node fills `tiers`, one after the other, with the
    /// beginning of its shard.
    pub fn new(job: &Job, tiers: Vec<TierId>) -> Self {
        let tiers: Vec<TierId> =
            tiers.into_iter().filter(|&tier| (tier as usize) < job.system.tiers.len()).collect();
        let starts = starts(job);
        let mut ends = Vec::with_capacity(job.system.nodes as usize * tiers.len());
        for (node, shard) in (0..).zip(starts.windows(2)) {
            let mut at = shard[0];
            for &tier in &tiers {
                let mut free = job.system.tiers[tier as usize].capacity_of(node).0;
                while at < shard[1] && job.sizes.get(at) <= free {
                    free -= job.sizes.get(at);
                    at += 1;
                }
                ends.push(at);
            }
        }
        Self { tiers, starts, ends, spilled: vec![] }
    }

    /// The same, but samples that do not fit their node go to the first node with space: sizes
    /// differ, so a dataset that just fits all nodes together need not fit shard by shard.
    pub fn with_spill(job: &Job, tier: TierId) -> Self {
        let mut shards = Self::new(job, vec![tier]);
        if shards.tiers.is_empty() {
            return shards;
        }
        let capacity = |node| job.system.tiers[tier as usize].capacity_of(node).0;
        let mut free: Vec<u64> = (0..job.system.nodes)
            .map(|node| capacity(node) - shards.held(node).map(|k| job.sizes.get(k)).sum::<u64>())
            .collect();
        for node in 0..job.system.nodes {
            let (from, to) = (shards.held(node).end, shards.starts[node as usize + 1]);
            for sample in from..to {
                let bytes = job.sizes.get(sample);
                if let Some(other) = free.iter().position(|&space| space >= bytes) {
                    free[other] -= bytes;
                    shards.spilled.push((sample, other as NodeId));
                }
            }
        }
        shards
    }

    /// Returns the samples of its shard that a node holds, without spilled ones.
    pub fn held(&self, node: NodeId) -> std::ops::Range<SampleId> {
        let node = node as usize;
        let start = self.starts[node];
        let end = self.ends[node * self.tiers.len()..(node + 1) * self.tiers.len()].last();
        start..end.copied().unwrap_or(start)
    }

    /// Returns the node and tier that hold a sample.
    #[inline]
    pub fn holder(&self, sample: SampleId) -> Option<(NodeId, TierId)> {
        let node = self.starts.partition_point(|&start| start <= sample) - 1;
        let ends = &self.ends[node * self.tiers.len()..(node + 1) * self.tiers.len()];
        if let Some(at) = ends.iter().position(|&end| sample < end) {
            return Some((node as NodeId, self.tiers[at]));
        }
        let found = self.spilled.binary_search_by_key(&sample, |&(sample, _)| sample).ok()?;
        Some((self.spilled[found].1, self.tiers[0]))
    }

    /// Returns where `node` reads a sample: its own tier, its holder's, or the source.
    #[inline]
    pub fn place(&self, node: NodeId, sample: SampleId) -> LoadFrom {
        match self.holder(sample) {
            Some((holder, tier)) if holder == node => LoadFrom::Local(tier),
            Some((holder, tier)) => LoadFrom::Peer(holder, tier),
            None => LoadFrom::Source,
        }
    }

    /// Returns what fills the tiers before training.
    pub fn preload(&self) -> Preload {
        let nodes = self.starts.len() as NodeId - 1;
        let mut lists: Vec<Vec<(SampleId, TierId)>> = (0..nodes)
            .map(|node| {
                let width = self.tiers.len();
                let ends = &self.ends[node as usize * width..(node as usize + 1) * width];
                let mut list = Vec::with_capacity(self.held(node).len());
                let mut at = self.starts[node as usize];
                for (&end, &tier) in ends.iter().zip(&self.tiers) {
                    list.extend((at..end).map(|sample| (sample, tier)));
                    at = end;
                }
                list
            })
            .collect();
        for &(sample, node) in &self.spilled {
            lists[node as usize].push((sample, self.tiers[0]));
        }
        Preload { nodes: lists, free: false }
    }
}

fn starts(job: &Job) -> Vec<SampleId> {
    let (nodes, total) = (u128::from(job.system.nodes), u128::from(job.sizes.total().0));
    let mut starts = vec![0];
    let mut before = 0u128;
    for sample in 0..job.sizes.len() {
        while starts.len() < nodes as usize && before * nodes >= starts.len() as u128 * total {
            starts.push(sample);
        }
        before += u128::from(job.sizes.get(sample));
    }
    starts.resize(nodes as usize + 1, job.sizes.len());
    starts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sizes;
    use crate::policy::testing::job;

    #[test]
    fn each_node_holds_the_beginning_of_its_shard() {
        // Twelve samples of ten bytes on three nodes; tier 2 is filled first.
        let job = job(12, 3, 1, &[10, 20]);
        let shards = Shards::new(&job, vec![2, 1]);
        assert_eq!(shards.held(1), 4..7);
        assert_eq!(shards.holder(5), Some((1, 2)));
        assert_eq!(shards.holder(6), Some((1, 1)));
        assert_eq!(shards.holder(7), None);
        assert_eq!(shards.place(1, 5), LoadFrom::Local(2));
        assert_eq!(shards.place(0, 5), LoadFrom::Peer(1, 2));
        assert_eq!(shards.preload().nodes[2], [(8, 2), (9, 2), (10, 1)]);
    }

    #[test]
    fn without_a_cache_tier_no_node_holds_a_sample() {
        let shards = Shards::new(&job(12, 3, 1, &[]), vec![1]);
        assert!((0..12).all(|sample| shards.holder(sample).is_none()));
        assert!(shards.preload().nodes.iter().all(Vec::is_empty));
    }

    #[test]
    fn a_spilled_sample_finds_another_node() {
        let mut job = job(4, 2, 1, &[60]);
        job.sizes = Sizes::from_bytes(vec![30, 40, 10, 10]);
        let shards = Shards::with_spill(&job, 1);
        assert_eq!(shards.holder(1), Some((1, 1)));
        assert_eq!(shards.preload().nodes[1], [(2, 1), (3, 1), (1, 1)]);
    }

    #[test]
    fn spilled_samples_stay_within_free_space() {
        let mut job = job(7, 2, 1, &[50]);
        job.sizes = Sizes::from_bytes(vec![40, 12, 12, 12, 12, 5, 60]);
        // Node 0 holds sample 0 and has 10 bytes left; node 1 holds 5 and has 45 left, for three.
        let shards = Shards::with_spill(&job, 1);
        let holders = [1, 2, 3, 4, 6].map(|sample| shards.holder(sample));
        let spilled = Some((1, 1));
        assert_eq!(holders, [spilled, spilled, spilled, None, None]);
    }

    #[test]
    fn more_nodes_than_samples_leave_shards_empty() {
        let shards = Shards::new(&job(2, 5, 1, &[100]), vec![1]);
        let held: u32 = (0..5).map(|node| shards.held(node).len() as u32).sum();
        assert_eq!(held, 2);
    }
}

//! The machines a job runs on, in the terms of the model: N nodes, their
//! compute and preprocessing rates, network, shared source and storage tiers.

use super::curve::Curve;
use super::units::{Bytes, Rate};

/// How concurrent readers share the source's throughput t(γ).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// All readers together get t(γ): what a real link does.
    Aggregate,
    /// Each thread of each node gets t(γ)/γ, as the papers' tables assume; the
    /// threads of one node together exceed the node's share.
    PerThread,
}

/// What γ counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Readers {
    Nodes,
    Threads,
}

/// Whether a loading thread's preprocessing overlaps its own fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pipeline {
    /// Fetching and preprocessing are separate stages of p_0 threads each.
    Overlapped,
    /// A thread fetches, then preprocesses, then fetches again (read = fetch +
    /// write, seed 000 section 4).
    Serial,
}

/// The shared storage where the dataset rests.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// t(γ).
    pub throughput: Curve,
    /// b_fs: what one node can take from the source.
    pub link: Rate,
    pub sharing: Sharing,
    pub readers: Readers,
}

/// One storage class of a node. Tier 0 is the staging buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    pub name: String,
    /// d_j: what every node has, or the least of all where they differ.
    pub capacity: Bytes,
    /// By node, where they differ; empty where all have `capacity`.
    pub by_node: Vec<Bytes>,
    /// p_j, per node.
    pub threads: u32,
    /// r_j(p).
    pub read: Curve,
    /// w_j(p).
    pub write: Curve,
}

impl Tier {
    /// d_j of one node.
    #[inline]
    pub fn capacity_of(&self, node: u32) -> Bytes {
        self.by_node.get(node as usize).copied().unwrap_or(self.capacity)
    }

    /// r_j(p_j): what the device delivers in all.
    pub fn read_rate(&self) -> Rate {
        self.read.at(self.threads)
    }

    /// r_j(p_j)/p_j: what one of its threads delivers.
    pub fn read_rate_per_thread(&self) -> Rate {
        self.read_rate() / f64::from(self.threads)
    }

    pub fn write_rate(&self) -> Rate {
        self.write.at(self.threads)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct System {
    pub nodes: u32,
    pub ranks_per_node: u32,
    /// c, per rank.
    pub compute: Rate,
    /// β, per thread.
    pub preprocess: Rate,
    /// b_c, per node.
    pub network: Rate,
    pub source: Source,
    /// Tier 0 is the staging buffer, the others cache. Fastest first.
    pub tiers: Vec<Tier>,
    pub pipeline: Pipeline,
}

impl System {
    pub fn ranks(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    pub fn node_of(&self, rank: u32) -> u32 {
        rank / self.ranks_per_node
    }

    /// p_0, per node.
    pub fn staging_threads(&self) -> u32 {
        self.tiers[0].threads
    }

    /// D_n: the cache of one node, the staging buffer left out.
    pub fn cache_of(&self, node: u32) -> Bytes {
        self.tiers.iter().skip(1).map(|tier| tier.capacity_of(node)).sum()
    }

    /// What one tier holds on all nodes together.
    pub fn tier_total(&self, tier: usize) -> Bytes {
        let rooms = (0..self.nodes).map(|node| self.tiers[tier].capacity_of(node).0);
        Bytes(rooms.fold(0, u64::saturating_add))
    }

    /// Σ D_n, which is N·D where nodes are alike.
    pub fn cache_total(&self) -> Bytes {
        let tiers = (1..self.tiers.len()).map(|tier| self.tier_total(tier).0);
        Bytes(tiers.fold(0, u64::saturating_add))
    }

    /// D: what the cache of every node holds, or the least of all where they differ.
    pub fn cache_capacity(&self) -> Bytes {
        self.tiers.iter().skip(1).map(|tier| tier.capacity).sum()
    }
}

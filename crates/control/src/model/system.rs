//! The machines that a job runs on, in the model's terms: N nodes, their compute and preprocessing
//! rates, network, shared source and storage tiers.

use super::curve::Curve;
use super::preprocess::{PreprocessModel, PreprocessWork};
use belady_base::units::{Bytes, Rate, Seconds};

/// How long a rank computes on what it consumes: a part by the byte and a part by the sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComputeCost {
    /// c; infinite where bytes take no time.
    pub rate: Rate,
    /// Of each sample, whatever its size. Lobster's training time of a batch (section 4.3) is
    /// constant: this, times the batch.
    pub per_sample: Seconds,
}

impl ComputeCost {
    /// Returns the time for samples of that many bytes together.
    #[inline]
    pub fn time(&self, samples: u64, bytes: f64) -> Seconds {
        Seconds(bytes / self.rate.0 + samples as f64 * self.per_sample.0)
    }
}

impl From<Rate> for ComputeCost {
    fn from(rate: Rate) -> Self {
        Self { rate, per_sample: Seconds::ZERO }
    }
}

/// How concurrent readers share the source's throughput t(γ).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// All readers together get t(γ), as from a real link.
    Aggregate,
    /// Each thread of each node gets t(γ)/γ, as the papers' tables assume; the threads of one node
    /// together exceed the node's share.
    PerThread,
}

/// What γ counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Readers {
    /// Nodes that read.
    Nodes,
    /// Threads that read, over all nodes.
    Threads,
}

/// Whether a loading thread's preprocessing overlaps its own fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pipeline {
    /// Fetching and preprocessing are separate stages of p_0 threads each.
    Overlapped,
    /// A thread fetches, then preprocesses, then fetches again (read = fetch + write; NoPFS,
    /// section 4).
    Serial,
}

/// The shared storage that holds the dataset.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceModel {
    /// t(γ).
    pub throughput: Curve,
    /// b_fs: the most that one node reads from the source.
    pub link: Rate,
    /// How readers share t(γ).
    pub sharing: Sharing,
    /// What γ counts.
    pub readers: Readers,
}

/// One storage class of a node. Tier 0 is the staging buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct TierModel {
    /// As scenario files call it.
    pub name: String,
    /// d_j: every node's capacity, or the smallest where they differ.
    pub capacity: Bytes,
    /// Capacities by node, where they differ; empty where all have `capacity`.
    pub by_node: Vec<Bytes>,
    /// p_j, per node.
    pub threads: u32,
    /// r_j(p).
    pub read: Curve,
    /// w_j(p).
    pub write: Curve,
}

impl TierModel {
    /// Returns d_j of one node.
    #[inline]
    pub fn capacity_of(&self, node: u32) -> Bytes {
        self.by_node.get(node as usize).copied().unwrap_or(self.capacity)
    }

    /// Returns r_j(p_j), the device's rate for reads.
    pub fn read_rate(&self) -> Rate {
        self.read.at(self.threads)
    }

    /// Returns r_j(p_j)/p_j, the rate of one of its threads.
    pub fn read_rate_per_thread(&self) -> Rate {
        self.read_rate() / f64::from(self.threads)
    }

    /// Returns w_j(p_j), the device's rate for writes.
    pub fn write_rate(&self) -> Rate {
        self.write.at(self.threads)
    }
}

/// A cluster: alike nodes, except for the capacities of their tiers.
#[derive(Clone, Debug, PartialEq)]
pub struct System {
    /// N.
    pub nodes: u32,
    /// Ranks, one an accelerator.
    pub ranks_per_node: u32,
    /// Of a rank.
    pub compute: ComputeCost,
    /// Of a node's threads.
    pub preprocess: PreprocessModel,
    /// b_c, per node.
    pub network: Rate,
    /// Where the dataset comes from.
    pub source: SourceModel,
    /// Tier 0 is the staging buffer, the others cache. Fastest first.
    pub tiers: Vec<TierModel>,
    /// How a loading thread works.
    pub pipeline: Pipeline,
}

impl System {
    /// Returns the ranks of all nodes.
    pub fn ranks(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    /// Returns the node of a rank.
    pub fn node_of(&self, rank: u32) -> u32 {
        rank / self.ranks_per_node
    }

    /// Returns p_0, per node.
    pub fn staging_threads(&self) -> u32 {
        self.tiers[0].threads
    }

    /// Returns w_0(p_0)/p_0, the rate at which one thread stores samples in the staging buffer.
    fn store_rate(&self) -> Rate {
        self.tiers[0].write_rate() / f64::from(self.staging_threads())
    }

    /// Returns how long that many threads of a node, whole or not, preprocess samples and store
    /// them in the staging buffer.
    pub fn preparing_time(&self, work: &PreprocessWork, threads: f64) -> Seconds {
        self.preprocess.time(work, threads, self.store_rate())
    }

    /// Returns the fewest of at most so many threads that prepare samples in the shortest time.
    pub fn peak_threads(&self, work: &PreprocessWork, most: u32) -> u32 {
        self.preprocess.peak_threads(work, most, self.store_rate())
    }

    /// Returns how long a pool of threads, each of which loads and then prepares, takes for samples
    /// whose loading costs `loading` thread seconds, beside `pools - 1` pools like it on the node.
    pub fn pool_time(
        &self,
        work: &PreprocessWork,
        loading: Seconds,
        threads: f64,
        pools: f64,
    ) -> Seconds {
        self.preprocess.pool_time(work, loading, (threads, pools), self.store_rate())
    }

    /// Returns D_n, the cache capacity of one node without the staging buffer.
    pub fn cache_of(&self, node: u32) -> Bytes {
        self.tiers.iter().skip(1).map(|tier| tier.capacity_of(node)).sum()
    }

    /// Returns one tier's capacity on all nodes together.
    pub fn tier_total(&self, tier: usize) -> Bytes {
        let capacities = (0..self.nodes).map(|node| self.tiers[tier].capacity_of(node).0);
        Bytes(capacities.fold(0, u64::saturating_add))
    }

    /// Returns Σ D_n, which is N·D where nodes are alike.
    pub fn cache_total(&self) -> Bytes {
        let tiers = (1..self.tiers.len()).map(|tier| self.tier_total(tier).0);
        Bytes(tiers.fold(0, u64::saturating_add))
    }

    /// Returns D, every node's cache capacity, or the smallest where they differ.
    pub fn cache_capacity(&self) -> Bytes {
        self.tiers.iter().skip(1).map(|tier| tier.capacity).sum()
    }
}

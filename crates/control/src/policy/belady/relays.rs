//! Relays: nodes that read for others in every epoch, through space that they keep free.
//!
//! Where a node uses less than its share of what the source must give, it has too little to read,
//! even if none of its own samples is held; the source then gives the others less than it gives
//! all nodes together. Such a node reads samples for others: its prefetcher fetches them, their
//! user takes them from there, and the node evicts them when the iteration that uses them is over.
//!
//! The space is a double buffer: twice what an iteration takes from the relay in the mean. Nothing is
//! ever held in it, so what a relay fetches never meets what others push to it, and no node needs to
//! know how far a relay is. Each epoch reads as many bytes more. That is done only where the time
//! gained is longer than these take, and with no more than [`GAIN`] of the dataset.

use super::space::usable;
use crate::job::{Job, Sizes};
use crate::model::{Readers, Sharing};
use crate::sampler::{EpochOrder, Order, Scheme};

/// The gain below which nodes count as level: the precision at which policies are compared.
pub const GAIN: f64 = 0.005;

/// What shares the source's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceShare {
    /// Every node has the same share, whichever of its threads read.
    Nodes,
    /// Every thread has the same share.
    Threads,
}

impl SourceShare {
    /// Returns what shares the source's rate, if it matters which node or thread reads.
    pub fn of(job: &Job) -> Option<Self> {
        let (nodes, source) = (job.system.nodes, &job.system.source);
        match (source.sharing, source.readers) {
            (Sharing::PerThread, _) => Some(Self::Threads),
            // All nodes together get more than fewer of them.
            (Sharing::Aggregate, Readers::Nodes)
                if nodes > 1
                    && source.throughput.best_up_to(nodes - 1) < source.throughput.at(nodes) =>
            {
                Some(Self::Nodes)
            }
            (Sharing::Aggregate, _) => None,
        }
    }
}

/// What an epoch uses.
#[derive(Debug, Default)]
pub struct NodeUses {
    /// In bytes.
    pub by_node: Vec<f64>,
    /// The seconds that the slowest rank of each iteration computes, summed.
    pub computing: f64,
}

impl NodeUses {
    pub fn count(job: &Job, order: &EpochOrder) -> Self {
        let system = &job.system;
        let mut uses = Self { by_node: vec![0.0; system.nodes as usize], computing: 0.0 };
        for iteration in 0..order.iterations() {
            let mut most: f64 = 0.0;
            for rank in 0..system.ranks() {
                let size = |sample| job.sizes.get(sample) as f64;
                let batch: f64 = order.batch(rank, iteration).map(size).sum();
                uses.by_node[system.node_of(rank) as usize] += batch;
                let samples = order.batch(rank, iteration).count() as u64;
                most = most.max(system.compute.time(samples, batch).0);
            }
            uses.computing += most;
        }
        uses
    }
}

/// Returns how long nodes take that read so many bytes from a source whose rate they share
/// equally: the node with the least is done first, then fewer read.
pub fn reading_seconds(job: &Job, mut reads: Vec<f64>) -> f64 {
    reads.sort_by(f64::total_cmp);
    let throughput = &job.system.source.throughput;
    let per_node = |readers: u32| throughput.at(readers).0 / f64::from(readers);
    let before = std::iter::once(0.0).chain(reads.iter().copied());
    let more = reads.iter().zip(before).map(|(read, before)| read - before);
    more.zip((1..=reads.len() as u32).rev()).map(|(more, nodes)| more / per_node(nodes)).sum()
}

/// Space that nodes keep free to read for others.
#[derive(Debug, Default)]
pub struct Relays {
    /// By node; empty if none relays.
    space: Vec<u64>,
}

impl Relays {
    /// Of a job whose epochs use as much as this one.
    pub fn of(job: &Job, order: &EpochOrder) -> Self {
        let system = &job.system;
        let config = job.stream.config();
        let drawn = matches!(config.order, Order::Given(_) | Order::Provided(_));
        let uneven = config.scheme == Scheme::Imbalanced;
        let tiers = system.tiers.len();
        let by_nodes = SourceShare::of(job) == Some(SourceShare::Nodes);
        if !uneven || drawn || tiers == 1 || !by_nodes {
            return Self::default();
        }
        let held: u64 = (0..system.nodes as usize * tiers).map(|spot| usable(job, spot)).sum();
        let uses = NodeUses::count(job, order);
        let read = uses.by_node.iter().sum::<f64>() - held as f64;
        if read <= 0.0 {
            return Self::default();
        }
        let level = read / f64::from(system.nodes);
        let iterations = f64::from(order.iterations().max(1));
        let twice = |used: &f64| 2.0 * (level - used).max(0.0) / iterations;
        let wanted: Vec<f64> = uses.by_node.iter().map(twice).collect();
        let most = GAIN * job.sizes.total().as_f64();
        let part = (most / wanted.iter().sum::<f64>()).min(1.0);
        let unit = match job.sizes {
            Sizes::Equal { bytes, .. } => bytes.max(1),
            Sizes::Narrow(_) | Sizes::Wide(_) => 1,
        };
        let limited = |(node, wanted): (usize, &f64)| {
            let bytes = (wanted * part) as u64;
            bytes.next_multiple_of(unit).min(usable(job, node * tiers + 1))
        };
        let space: Vec<u64> = wanted.iter().enumerate().map(limited).collect();
        let costs = space.iter().sum::<u64>() as f64;
        let rate = system.source.throughput.at(system.nodes).0;
        let with = (read + costs) / rate;
        let without = reading_seconds(job, fill(&uses.by_node, read));
        let compute = uses.computing;
        let gains = costs > 0.0 && without > compute.max((1.0 + GAIN) * with);
        if gains { Self { space } } else { Self::default() }
    }

    /// Whether any node relays.
    pub fn any(&self) -> bool {
        !self.space.is_empty()
    }

    /// Bytes that a node keeps free.
    pub fn space(&self, node: usize) -> u64 {
        self.space.get(node).copied().unwrap_or(0)
    }
}

/// Returns what each node reads of `all` if none reads more than another one that could read
/// more; each can read as much as it uses.
fn fill(used: &[f64], all: f64) -> Vec<f64> {
    let mut sorted = used.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut left = all;
    let mut level = 0.0;
    for (at, &used) in sorted.iter().enumerate() {
        level = left / (sorted.len() - at) as f64;
        if used >= level {
            break;
        }
        left -= used;
    }
    used.iter().map(|&used| used.min(level)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_read_equally_much_as_far_as_they_use_it() {
        assert_eq!(fill(&[40.0, 10.0, 40.0, 10.0], 70.0), [25.0, 10.0, 25.0, 10.0]);
        assert_eq!(fill(&[40.0, 10.0], 12.0), [6.0, 6.0]);
        assert_eq!(fill(&[1.0, 2.0, 30.0], 9.0), [1.0, 2.0, 6.0]);
    }
}

//! Reading ahead: what the tiers' prefetchers fetch of an epoch that finds the caches empty.
//!
//! A sample that is read from the source and then held can be read by the node that uses it, which
//! pushes it to its holder, or by the holder's prefetcher, from which the user loads it. The same
//! bytes come from the source and pass the network. An epoch that begins with empty caches has
//! space for all that it will hold from its beginning on, so either may read.
//!
//! [`Transition::read_ahead`] decides which of them reads, sample by sample in the order of use:
//! the one that has read less for its share of the source. That keeps nodes level whose batches
//! differ in bytes, and uses the prefetchers' share where the source counts threads. Where neither
//! matters, nothing is read ahead.

use super::fetches::ReadAhead;
use super::state::Transition;
use super::{NOWHERE, Spot};
use crate::bits::Bits;
use crate::model::{Readers, Sharing};

/// What shares the source's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceShare {
    /// Every node has the same share, whichever of its threads read.
    Nodes,
    /// Every thread has the same share.
    Threads,
}

/// The gain below which nodes count as level: the precision at which policies are compared.
const GAIN: f64 = 0.005;

impl Transition<'_> {
    /// Returns what shares the source's rate, if it matters which node or thread reads.
    fn source_share(&self) -> Option<SourceShare> {
        let (system, source) = (&self.job.system, &self.job.system.source);
        let nodes = system.nodes;
        match (source.sharing, source.readers) {
            (Sharing::PerThread, _) => Some(SourceShare::Threads),
            // All nodes together get more than fewer of them.
            (Sharing::Aggregate, Readers::Nodes)
                if nodes > 1
                    && source.throughput.best_up_to(nodes - 1) < source.throughput.at(nodes) =>
            {
                Some(SourceShare::Nodes)
            }
            (Sharing::Aggregate, _) => None,
        }
    }

    /// Chooses what prefetchers fetch of this epoch, after the choice of what is held.
    pub fn read_ahead(&self) -> ReadAhead {
        let decision = &self.decision;
        let begins_empty = self.spots.is_empty() && !self.copies.any();
        // What is put into a tier stays there for all of the epoch.
        let nothing_goes = decision.tracked.is_empty() && decision.evictions.is_empty();
        let own_batches = self.ranks == self.job.system.ranks();
        if decision.spots.is_empty() || !begins_empty || !nothing_goes || !own_batches {
            return ReadAhead::default();
        }
        let share = self.source_share().filter(|&share| self.is_worth_it(share));
        share.map(|share| self.deal_reads(share)).unwrap_or_default()
    }

    /// Returns whether the epoch would wait for the source if every node read what it uses, and
    /// nodes that read level would wait less. Otherwise nothing is gained.
    fn is_worth_it(&self, share: SourceShare) -> bool {
        let system = &self.job.system;
        let mut reads = vec![0.0; system.nodes as usize];
        let mut computing = 0.0;
        for iteration in 0..self.order.iterations() {
            let mut most: f64 = 0.0;
            for rank in 0..self.ranks {
                let size = |sample| self.job.sizes.get(sample) as f64;
                let batch: f64 = self.uses(rank, iteration).map(size).sum();
                reads[system.node_of(rank) as usize] += batch;
                let samples = self.uses(rank, iteration).count() as u64;
                most = most.max(system.compute.time(samples, batch).0);
            }
            computing += most;
        }
        reads.sort_by(f64::total_cmp);
        let all: f64 = reads.iter().sum();
        let source = &system.source;
        let per_node = |readers: u32| source.throughput.at(readers).0 / f64::from(readers);
        let reading: f64 = match share {
            SourceShare::Threads => {
                let threads = f64::from(system.staging_threads());
                reads.last().unwrap_or(&0.0) / (threads * per_node(system.nodes))
            }
            // The node with the least is done first, then fewer read.
            SourceShare::Nodes => {
                let before = std::iter::once(0.0).chain(reads.iter().copied());
                let more = reads.iter().zip(before).map(|(read, before)| read - before);
                more.zip((1..=system.nodes).rev()).map(|(more, nodes)| more / per_node(nodes)).sum()
            }
        };
        let level = match share {
            // The prefetchers' threads add their shares, whatever nodes read.
            SourceShare::Threads => 0.0,
            SourceShare::Nodes => all / source.throughput.at(system.nodes).0,
        };
        reading > f64::max(computing, (1.0 + GAIN) * level)
    }

    fn deal_reads(&self, share: SourceShare) -> ReadAhead {
        let system = &self.job.system;
        // A reader is the staging threads of a node (its tier 0) or the prefetcher of a tier.
        let reader = |spot: usize| match share {
            SourceShare::Threads => spot,
            SourceShare::Nodes => spot / self.tiers * self.tiers,
        };
        let weight = |reader: usize| match share {
            SourceShare::Threads => f64::from(system.tiers[reader % self.tiers].threads),
            SourceShare::Nodes => 1.0,
        };
        let batches = system.nodes * self.order.iterations();
        let all: u64 = self.order.samples().iter().map(|&sample| self.job.sizes.get(sample)).sum();
        // Staging reads a node's batch at a time: readers that differ by less are level.
        let level = all as f64 / f64::from(batches.max(1));
        let mut read = vec![0.0; self.free.len()];
        let mut lists = vec![vec![]; self.free.len()];
        let mut fetched = Bits::new(self.job.sizes.len());
        for iteration in 0..self.order.iterations() {
            for rank in 0..self.ranks {
                let own = reader(system.node_of(rank) as usize * self.tiers);
                for sample in self.uses(rank, iteration) {
                    let size = self.job.sizes.get(sample) as f64;
                    let after = |reader: usize| (read[reader] + size) / weight(reader);
                    let spot: Spot = self.decision.spots.get(sample);
                    let other = reader(usize::from(spot));
                    let ahead = spot != NOWHERE && after(other) < after(own) - level / weight(own);
                    if ahead {
                        lists[usize::from(spot)].push(sample);
                        fetched.insert(sample);
                    }
                    read[if ahead { other } else { own }] += size;
                }
            }
        }
        ReadAhead::new(lists, fetched)
    }
}

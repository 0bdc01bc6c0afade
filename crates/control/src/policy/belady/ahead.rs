//! Reading ahead: what the tiers' prefetchers fetch of an epoch.
//!
//! A sample that is read from the source and then held can be read by the node that uses it, which
//! pushes it to its holder, or by the holder's prefetcher, from which the user loads it. The same
//! bytes come from the source and pass the network. An epoch that begins with empty caches has
//! space for all that it will hold from its beginning on, so either may read. In any epoch a relay
//! ([`relays`](super::relays)) may read.
//!
//! [`Transition::read_ahead`] decides which of them reads, sample by sample in the order of use:
//! the one that has read less for its share of the source. That keeps nodes level whose batches
//! differ in bytes, and uses the prefetchers' share where the source counts threads. Where neither
//! matters, nothing is read ahead.

use super::NOWHERE;
use super::fetches::{PlannedFetch, ReadAhead};
use super::relays::{GAIN, NodeUses, SourceShare, reading_seconds};
use super::state::{Transition, ring_of};
use crate::sampler::SampleId;

impl Transition<'_> {
    /// Chooses what prefetchers fetch of this epoch, after the choice of what is held.
    pub fn read_ahead(&mut self) -> ReadAhead {
        let own_batches = self.ranks == self.job.system.ranks();
        let Some(share) = SourceShare::of(self.job).filter(|_| own_batches) else {
            return ReadAhead::default();
        };
        let decision = &self.decision;
        let begins_empty = self.spots.is_empty() && !self.copies.any();
        // What is put into a tier stays there for all of the epoch.
        let nothing_goes = decision.tracked.is_empty() && decision.evictions.is_empty();
        let worth_it = begins_empty && self.is_worth_it(share);
        let to_holders = worth_it && nothing_goes && !decision.spots.is_empty();
        let relays = decision.tracked.is_empty()
            && (self.relays.keep_space() || worth_it && self.relays.any());
        if !to_holders && !relays {
            return ReadAhead::default();
        }
        self.deal_reads(share, to_holders)
    }

    /// Returns whether the epoch would wait for the source if every node read what it uses, and
    /// nodes that read level would wait less. Otherwise nothing is gained.
    fn is_worth_it(&self, share: SourceShare) -> bool {
        let system = &self.job.system;
        let NodeUses { by_node: reads, slowest } = NodeUses::count(self.job, self.order);
        let all_nodes = system.source.throughput.at(system.nodes).0;
        let (reading, level) = match share {
            // The prefetchers' threads add their shares, whatever nodes read.
            SourceShare::Threads => {
                let most = reads.iter().copied().fold(0.0, f64::max);
                let threads = f64::from(system.staging_threads());
                (most * f64::from(system.nodes) / (threads * all_nodes), 0.0)
            }
            SourceShare::Nodes => {
                let level = reads.iter().sum::<f64>() / all_nodes;
                (reading_seconds(self.job, reads), level)
            }
        };
        reading > (slowest / system.compute.0).max((1.0 + GAIN) * level)
    }

    /// Bytes that an iteration may take from a relay: half of its space, so that as much can be
    /// fetched meanwhile.
    fn relay_space(&self, node: usize, iteration: u32) -> u64 {
        let around = self.free_by_iteration.get(iteration as usize..iteration as usize + 2);
        let free = around.and_then(|free| free.iter().map(|free| free[node]).min());
        self.relays.an_iteration(node) + free.unwrap_or(0) / 2
    }

    /// Returns by node what its ring takes from the source when a run begins. Staging has more
    /// threads than prefetchers, so rings are full before these have read their share.
    fn read_early(&self, share: SourceShare) -> Vec<f64> {
        if share != SourceShare::Nodes || !self.began_behind.is_empty() {
            return vec![];
        }
        let used = NodeUses::count(self.job, self.order).by_node;
        let fair = used.iter().sum::<f64>() / used.len() as f64;
        used.iter().map(|used| ring_of(self.job) * (fair / used).min(1.0)).collect()
    }

    fn deal_reads(&mut self, share: SourceShare, to_holders: bool) -> ReadAhead {
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
        let missed = self.order.samples().iter().filter(|&&sample| self.spot(sample) == NOWHERE);
        let all: u64 = missed.map(|&sample| self.job.sizes.get(sample)).sum();
        // Staging reads a node's batch at a time: readers that differ by less are level.
        let level = all as f64 / f64::from(batches.max(1));
        let mut read = vec![0.0; self.free.len()];
        if share == SourceShare::Nodes {
            for (node, behind) in self.began_behind.iter().enumerate() {
                read[node * self.tiers] = *behind;
            }
        }
        for (node, early) in self.read_early(share).iter().enumerate() {
            read[node * self.tiers] += early;
        }
        let mut lists = vec![vec![]; self.free.len()];
        let mut relayed = vec![0; system.nodes as usize];
        // Of the iteration at hand, by node: what it uses and does not have.
        let mut own: Vec<Vec<SampleId>> = vec![vec![]; system.nodes as usize];
        for iteration in 0..self.order.iterations() {
            relayed.fill(0);
            for rank in 0..self.ranks {
                let node = system.node_of(rank) as usize;
                for sample in self.uses(rank, iteration) {
                    if self.spot(sample) == NOWHERE {
                        read[node * self.tiers] += self.job.sizes.get(sample) as f64;
                        own[node].push(sample);
                    }
                }
            }
            // The node that has most to read gives the next sample away.
            let after = |read: &[f64], reader: usize| read[reader] / weight(reader);
            while let Some(node) =
                (0..own.len()).filter(|&node| !own[node].is_empty()).max_by(|&a, &b| {
                    let of = |node: usize| after(&read, node * self.tiers);
                    of(a).total_cmp(&of(b)).then(b.cmp(&a))
                })
            {
                let Some(sample) = own[node].pop() else { break };
                let bytes = self.job.sizes.get(sample);
                let size = bytes as f64;
                let user = node * self.tiers;
                let with = |reader: usize| (read[reader] + size) / weight(reader);
                let holder = usize::from(self.decision.spots.get(sample));
                let holds = to_holders && holder != usize::from(NOWHERE);
                let relays = (0..relayed.len()).filter(|&node| {
                    // What its holder relayed would stay there.
                    node != holder / self.tiers
                        && relayed[node] + bytes <= self.relay_space(node, iteration)
                });
                let quicker = |&(spot, _): &(usize, bool)| {
                    with(reader(spot)) < (read[user] - level) / weight(user)
                };
                let holder = holds.then_some((holder, false)).filter(quicker);
                let relays = relays.map(|node| (node * self.tiers + 1, true));
                let Some((spot, relays)) = holder.or_else(|| {
                    let of = |relay: &(usize, bool)| with(reader(relay.0));
                    relays.min_by(|a, b| of(a).total_cmp(&of(b))).filter(quicker)
                }) else {
                    continue;
                };
                lists[spot].push(PlannedFetch { sample, iteration, relayed: relays });
                read[user] -= size;
                read[reader(spot)] += size;
                if relays {
                    relayed[spot / self.tiers] += bytes;
                }
            }
        }
        if share == SourceShare::Nodes {
            let by_node = read.iter().step_by(self.tiers).copied().collect();
            self.decision.behind = self.lag(by_node, all as f64);
        }
        let free = std::mem::take(&mut self.free_by_iteration);
        ReadAhead::new(lists, self.job.sizes.len(), free)
    }
}

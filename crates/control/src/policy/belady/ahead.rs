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

use super::fetches::ReadAhead;
use super::pace::{NodeReads, RelayPace};
use super::relays::{GAIN, NodeUses, SourceShare, reading_seconds};
use super::state::Transition;
use super::{NOWHERE, Spot};
use crate::bits::Bits;
use crate::sampler::SampleId;

impl Transition<'_> {
    /// Chooses what prefetchers fetch of this epoch, after the choice of what is held.
    pub fn read_ahead(&self) -> ReadAhead {
        let own_batches = self.ranks == self.job.system.ranks();
        let Some(share) = SourceShare::of(self.job).filter(|_| own_batches) else {
            return ReadAhead::default();
        };
        let decision = &self.decision;
        // What is put into a tier stays there for all of the epoch.
        let nothing_goes = decision.tracked.is_empty() && decision.evictions.is_empty();
        let to_holders = self.begins_empty()
            && nothing_goes
            && !decision.spots.is_empty()
            && self.is_worth_it(share);
        if !to_holders && !self.relays.any() {
            return ReadAhead::default();
        }
        let mut dealt = DealtReads {
            of: self,
            held: vec![vec![]; self.free.len()],
            fetched: Bits::new(self.job.sizes.len()),
            relayed: vec![vec![]; self.job.system.nodes as usize],
        };
        if to_holders {
            dealt.deal_to_holders(share);
        }
        if self.relays.any() {
            dealt.deal_to_relays();
        }
        ReadAhead::new(dealt.held, dealt.relayed, self.job.sizes.len())
    }

    fn begins_empty(&self) -> bool {
        self.spots.is_empty() && !self.copies.any()
    }

    /// Returns whether the epoch would wait for the source if every node read what it uses, and
    /// nodes that read level would wait less. Otherwise nothing is gained.
    fn is_worth_it(&self, share: SourceShare) -> bool {
        let system = &self.job.system;
        let NodeUses { by_node: reads, computing } = NodeUses::count(self.job, self.order);
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
        reading > f64::max(computing, (1.0 + GAIN) * level)
    }
}

/// Who reads what, while that is decided.
struct DealtReads<'a, 'b> {
    of: &'a Transition<'b>,
    held: Vec<Vec<SampleId>>,
    fetched: Bits,
    relayed: Vec<Vec<(u32, SampleId)>>,
}

impl DealtReads<'_, '_> {
    /// Deals samples to their users and their holders in the order of use, each to the one that has
    /// read less for its share of the source.
    fn deal_to_holders(&mut self, share: SourceShare) {
        let Transition { job, order, tiers, .. } = *self.of;
        let system = &job.system;
        // A reader is the staging threads of a node (its tier 0) or the prefetcher of a tier.
        let reader = |spot: usize| match share {
            SourceShare::Threads => spot,
            SourceShare::Nodes => spot / tiers * tiers,
        };
        let weight = |reader: usize| match share {
            SourceShare::Threads => f64::from(system.tiers[reader % tiers].threads),
            SourceShare::Nodes => 1.0,
        };
        let batches = system.nodes * order.iterations();
        let all: u64 = order.samples().iter().map(|&sample| job.sizes.get(sample)).sum();
        // Staging reads a node's batch at a time: readers that differ by less are level.
        let level = all as f64 / f64::from(batches.max(1));
        let mut read = vec![0.0; self.held.len()];
        for iteration in 0..order.iterations() {
            for rank in 0..self.of.ranks {
                let own = reader(system.node_of(rank) as usize * tiers);
                for sample in self.of.uses(rank, iteration) {
                    let size = job.sizes.get(sample) as f64;
                    let after = |reader: usize| (read[reader] + size) / weight(reader);
                    let spot: Spot = self.of.decision.spots.get(sample);
                    let other = reader(usize::from(spot));
                    let ahead = spot != NOWHERE && after(other) < after(own) - level / weight(own);
                    if ahead {
                        self.held[usize::from(spot)].push(sample);
                        self.fetched.insert(sample);
                    }
                    read[if ahead { other } else { own }] += size;
                }
            }
        }
    }

    /// What staging threads read of an iteration, by node.
    fn staged(&self, iteration: u32) -> Vec<Vec<SampleId>> {
        let mut staged = vec![vec![]; self.relayed.len()];
        for rank in 0..self.of.ranks {
            let node = self.of.job.system.node_of(rank) as usize;
            let uses = self.of.uses(rank, iteration);
            staged[node].extend(uses.filter(|&sample| {
                self.of.spot(sample) == NOWHERE && !self.fetched.contains(sample)
            }));
        }
        staged
    }

    /// What each node reads if none relays.
    fn node_reads(&self) -> Vec<NodeReads> {
        let Transition { job, order, tiers, relays, .. } = *self.of;
        let bytes = |samples: &[SampleId]| samples.iter().map(|&k| job.sizes.get(k)).sum::<u64>();
        let mut reads = vec![NodeReads::default(); self.relayed.len()];
        for (node, (reads, lists)) in reads.iter_mut().zip(self.held.chunks(tiers)).enumerate() {
            reads.held = lists.iter().map(|list| bytes(list)).sum();
            reads.space = relays.space(node);
            reads.used = vec![0; order.iterations() as usize];
        }
        for iteration in 0..order.iterations() {
            for rank in 0..self.of.ranks {
                let used = &mut reads[job.system.node_of(rank) as usize].used;
                used[iteration as usize] +=
                    order.batch(rank, iteration).map(|sample| job.sizes.get(sample)).sum::<u64>();
            }
            for (reads, samples) in reads.iter_mut().zip(self.staged(iteration)) {
                reads.staged.push(bytes(&samples));
            }
        }
        reads
    }

    /// Deals samples that nodes would read for themselves to relays.
    fn deal_to_relays(&mut self) {
        let Transition { job, order, tiers, .. } = *self.of;
        let mut pace = RelayPace::new(&self.node_reads(), job.system.tiers[0].capacity.0);
        // A relay begins when the first step is over, but in the epoch that finds the tiers empty.
        let first = u32::from(!self.of.begins_empty());
        for iteration in first..order.iterations() {
            let mut own = self.staged(iteration);
            pace.begin(iteration);
            while let Some(node) = pace.giver(|node| !own[node].is_empty()) {
                let Some(sample) = own[node].pop() else { return };
                let spot: Spot = self.of.decision.spots.get(sample);
                // What its holder relayed would stay there.
                let holder = (spot != NOWHERE).then(|| usize::from(spot) / tiers);
                if let Some(relay) = pace.give(node, holder, job.sizes.get(sample)) {
                    self.relayed[relay].push((iteration, sample));
                }
            }
        }
    }
}

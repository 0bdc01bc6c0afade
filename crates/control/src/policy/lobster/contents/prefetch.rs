//! Prefetching into the space that eviction frees.
//!
//! After each step a node looks at what it uses beyond the reach of its staging buffer, the nearest
//! use first, and fetches what no node holds, as long as there is free space or copies that the
//! policies of reuse count and reuse distance evict. A prefetched sample stays until it is used.
//!
//! Prefetchers take the same share of the reads from the source as they have of the node's threads,
//! so they keep pace with staging, whatever the rates are.

use super::cache::EvictionKey;
use super::copies::HeldCopy;
use super::future::NextUse;
use super::{Contents, Pass};
use crate::job::Job;
use crate::policy::NodeId;
use crate::sampler::Scheme;

/// How far one node's prefetchers are.
#[derive(Clone, Debug)]
pub struct Prefetcher {
    /// Iterations that the staging buffer reaches ahead.
    lead: u32,
    /// Of each tier: its prefetch threads for each staging thread.
    shares: Vec<f64>,
    /// Bytes that each tier's prefetchers may still fetch.
    credit: Vec<f64>,
    /// The most credit that is saved.
    most: f64,
    /// Where it looks next: an iteration of this epoch, and entries of it already looked at.
    iteration: u32,
    entry: usize,
}

impl Prefetcher {
    pub fn new(job: &Job, node: NodeId) -> Self {
        let system = &job.system;
        let config = job.stream.config();
        let staging = f64::from(system.staging_threads());
        let shares = system.tiers.iter().map(|tier| f64::from(tier.threads) / staging).collect();
        let mean = job.sizes.total().as_f64() / f64::from(job.sizes.len().max(1));
        let batch = mean * f64::from(config.batch) / f64::from(system.nodes);
        let reach = system.tiers[0].capacity_of(node).as_f64() / batch.max(1.0);
        Self {
            // One for the step that is consumed, and one for batches that are smaller than others.
            lead: reach.ceil().min(f64::from(u32::MAX / 2)) as u32 + 2,
            shares,
            credit: vec![0.0; system.tiers.len()],
            most: batch,
            iteration: 0,
            entry: 0,
        }
    }

    pub fn begin_epoch(&mut self) {
        (self.iteration, self.entry) = (0, 0);
    }

    fn begin_step(&mut self, iteration: u32, missed: u64) {
        for (credit, share) in self.credit.iter_mut().zip(&self.shares).skip(1) {
            *credit = (*credit + missed as f64 * share).min(self.most);
        }
        let reached = iteration.saturating_add(self.lead);
        if self.iteration < reached {
            (self.iteration, self.entry) = (reached, 0);
        }
    }

    fn could_fetch(&self, bytes: u64) -> bool {
        self.credit.iter().skip(1).any(|&credit| credit >= bytes as f64)
    }
}

impl Contents {
    /// Prefetches after an iteration in which the node missed so many bytes.
    pub(super) fn prefetch(&mut self, pass: &mut Pass<'_>, node: NodeId, missed: u64) {
        if !self.by_distance || self.job.stream.config().scheme == Scheme::Whole {
            return;
        }
        let mut prefetcher = std::mem::take(&mut self.prefetchers[node as usize]);
        if let Some(prefetcher) = &mut prefetcher {
            prefetcher.begin_step(pass.iteration, missed);
            while prefetcher.iteration < pass.iterations && self.fetch_of(pass, node, prefetcher) {
                (prefetcher.iteration, prefetcher.entry) = (prefetcher.iteration + 1, 0);
            }
        }
        self.prefetchers[node as usize] = prefetcher;
    }

    /// Fetches what the node uses in one iteration; returns whether it got to its end.
    fn fetch_of(&mut self, pass: &mut Pass<'_>, node: NodeId, at: &mut Prefetcher) -> bool {
        let order = pass.order;
        let ranks = self.job.system.ranks_per_node;
        let entries = (node * ranks..(node + 1) * ranks)
            .flat_map(|rank| order.batch(rank, at.iteration).map(move |sample| (rank, sample)));
        for (rank, sample) in entries.skip(at.entry) {
            let is_held = self.copies.of(sample).next().is_some();
            if !is_held && pass.uses.is_first(sample, rank, at.iteration) {
                let bytes = self.job.sizes.get(sample);
                if !at.could_fetch(bytes)
                    || !self.make_space(pass, node, sample, EvictionKey::BELOW_SPARE)
                {
                    return false;
                }
                let cache = &mut self.caches[node as usize];
                let fits =
                    |tier: &usize| cache.free[*tier] >= bytes && at.credit[*tier] >= bytes as f64;
                let Some(tier) = (1..cache.free.len()).find(fits) else { return false };
                cache.free[tier] -= bytes;
                cache.held += 1;
                at.credit[tier] -= bytes as f64;
                let next_use = NextUse { at: pass.begins + at.iteration, soon: true };
                self.next_uses[sample as usize] = next_use.at;
                let tier = tier as u8;
                let key = EvictionKey::NONE;
                let copy = HeldCopy { node, tier, kept_by: None, next_use, pinned: true, key };
                self.copies.insert(sample, copy);
                self.requeue(sample);
                pass.fetches.push((node, sample, tier));
            }
            at.entry += 1;
        }
        true
    }
}

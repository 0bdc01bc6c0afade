//! What every node's cache holds before each step, in logical time: a pure function of the job,
//! computed one epoch at a time, once per process.
//!
//! After a step a node may keep what it has just used. The paper's rules (section 4.4), in this
//! order:
//!
//! - *Reuse distance*: after iteration h, a sample whose next use by this node is more
//!   than 2·I − h iterations away, that is not in the next epoch, may go.
//! - *Reuse count*: a sample that this node will not use again may go, unless no other
//!   node holds a copy.
//! - When the cache is full, what is used again furthest in the future goes first.
//!
//! The two-epoch window cannot tell "not in the next epoch" from "never again", so the exception of
//! the second rule applies to both: an only copy stays while its space is free, and is evicted
//! first. A node that uses a sample again in the next epoch takes it over from a holder that does
//! not. So there is one copy of each sample, and a table of holders describes all caches.

mod epoch_plan;
#[cfg(test)]
mod tests;

use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::job::Job;
use crate::policy::{NodeId, TierId};
use crate::sampler::{EpochOrder, SampleId, Scheme};

pub use epoch_plan::{EpochPlan, Holder};

/// The larger, the sooner a sample is evicted.
type EvictionKey = u32;
/// Held only because no other node does: evicted before anything that the holder uses.
const ONLY_COPY: EvictionKey = 1 << 31;
/// No node uses the sample in the next epoch.
const UNUSED: EvictionKey = EvictionKey::MAX;

/// All caches as they are before the next epoch.
#[derive(Debug)]
pub struct Contents {
    job: Arc<Job>,
    by_distance: bool,
    holders: Vec<Holder>,
    keys: Vec<EvictionKey>,
    /// Which entry of all epochs (modulo 2^32) put a sample where it is.
    kept_by: Vec<u32>,
    caches: Vec<NodeCache>,
    /// Entries and iterations of all epochs before, modulo 2^32.
    entries: u32,
    iterations: u32,
    victims: Vec<(EvictionKey, SampleId)>,
    dropped: Vec<(NodeId, SampleId, TierId)>,
}

#[derive(Clone, Debug)]
struct NodeCache {
    /// Free bytes by tier; tier 0 has none.
    free: Vec<u64>,
    /// Includes entries whose sample has gone or has another key by now.
    heap: BinaryHeap<(EvictionKey, SampleId)>,
    held: usize,
}

/// The state of the epoch being planned.
struct Pass<'a> {
    /// The iterations of this epoch: the next one's count on from there.
    iterations: u32,
    next: Option<&'a EpochOrder>,
    /// First position of each sample in the next epoch's order.
    positions: Vec<u32>,
    iteration: u32,
    /// The first entry of the iteration, counted over all epochs.
    first: u32,
    keeps: Vec<TierId>,
}

impl Contents {
    pub fn new(job: &Arc<Job>, by_distance: bool) -> Self {
        let cache = |node| {
            let room = job.system.tiers.iter().skip(1).map(|tier| tier.capacity_of(node).0);
            let free = std::iter::once(0).chain(room).collect();
            NodeCache { free, heap: BinaryHeap::new(), held: 0 }
        };
        let samples = job.sizes.len() as usize;
        Self {
            by_distance,
            holders: vec![Holder::default(); samples],
            keys: vec![0; samples],
            kept_by: vec![0; samples],
            caches: (0..job.system.nodes).map(cache).collect(),
            entries: 0,
            iterations: 0,
            victims: vec![],
            dropped: vec![],
            job: job.clone(),
        }
    }

    /// Plans an epoch. `next` is the order of the one after it, if there is one.
    pub fn epoch(
        &mut self,
        epoch: u32,
        order: &EpochOrder,
        next: Option<&EpochOrder>,
    ) -> EpochPlan {
        let system = &self.job.system;
        let (ranks, nodes, ranks_per_node) = (system.ranks(), system.nodes, system.ranks_per_node);
        let mut plan = EpochPlan {
            epoch,
            ranks,
            starts: vec![0],
            samples: vec![],
            holders: vec![],
            keeps: vec![],
            eviction_starts: vec![0],
            evictions: vec![],
            nodes,
        };
        let positions = next.map(EpochOrder::positions).unwrap_or_default();
        let iterations = order.iterations();
        let mut pass = Pass { iterations, next, positions, iteration: 0, first: 0, keeps: vec![] };
        for iteration in 0..order.iterations() {
            let begin = plan.samples.len();
            for rank in 0..ranks {
                plan.samples.extend(order.batch(rank, iteration));
                plan.starts.push(plan.samples.len() as u32);
            }
            // Where everything is before the step, then what the step changes.
            let holders = plan.samples[begin..].iter().map(|&k| self.holders[k as usize]);
            plan.holders.extend(holders);
            pass.iteration = iteration;
            pass.first = self.entries.wrapping_add(begin as u32);
            pass.keeps.clear();
            pass.keeps.resize(plan.samples.len() - begin, 0);
            for rank in 0..ranks {
                let at = (iteration * ranks + rank) as usize;
                for entry in plan.starts[at] as usize..plan.starts[at + 1] as usize {
                    let node = rank / ranks_per_node;
                    self.used(&mut pass, node, plan.samples[entry], (entry - begin) as u32);
                }
            }
            plan.keeps.extend(&pass.keeps);
            self.dropped.sort_by_key(|&(node, ..)| node);
            let mut dropped = self.dropped.drain(..).peekable();
            for node in 0..nodes {
                while let Some((_, sample, tier)) = dropped.next_if(|&(of, ..)| of == node) {
                    plan.evictions.push((sample, tier));
                }
                plan.eviction_starts.push(plan.evictions.len() as u32);
            }
        }
        self.entries = self.entries.wrapping_add(plan.samples.len() as u32);
        self.iterations = self.iterations.wrapping_add(iterations);
        plan
    }

    /// Records that `node` used a sample as the `at`-th entry of the iteration.
    fn used(&mut self, pass: &mut Pass<'_>, node: NodeId, sample: SampleId, at: u32) {
        let all_nodes_read = self.job.stream.config().scheme == Scheme::Whole;
        // Where all nodes read everything, one of them is the sample's home node.
        let home = sample % self.caches.len() as u32;
        if all_nodes_read && node != home {
            return;
        }
        let steps = |iteration: u32| self.iterations.wrapping_add(iteration) & !ONLY_COPY;
        let next_use = pass
            .next
            .and_then(|next| next.slot(pass.positions[sample as usize]))
            .map(|slot| (slot, steps(pass.iterations.wrapping_add(slot.iteration))));
        let key = |holder: NodeId| {
            if !self.by_distance {
                // The longer ago the last use, the larger.
                return ONLY_COPY - 1 - steps(pass.iteration);
            }
            match next_use {
                None => UNUSED,
                Some((_, at)) if all_nodes_read => at,
                Some((slot, at)) if self.job.system.node_of(slot.rank) == holder => at,
                Some((_, at)) => ONLY_COPY | at,
            }
        };
        match self.holders[sample as usize].get() {
            None => {
                let key = key(node);
                // A run's last epoch leaves nothing to keep for.
                if pass.next.is_some() {
                    self.keep(pass, node, sample, key, at);
                }
            }
            Some((holder, tier)) => {
                let (own, stay) = (key(node), key(holder));
                let fresh = self.is_fresh(pass, sample).is_some();
                let wants = self.by_distance && holder != node && own < ONLY_COPY && !fresh;
                if wants && self.make_space(pass, node, sample, own) {
                    self.drop_from(holder, tier, sample);
                    self.dropped.push((holder, sample, tier));
                    self.keep(pass, node, sample, own, at);
                } else if self.keys[sample as usize] != stay {
                    self.keys[sample as usize] = stay;
                    self.caches[holder as usize].push(
                        stay,
                        sample,
                        &self.keys,
                        &self.holders,
                        holder,
                    );
                }
            }
        }
    }

    /// Keeps a sample at a node if it fits, or if samples with larger keys can be evicted for it.
    fn keep(
        &mut self,
        pass: &mut Pass<'_>,
        node: NodeId,
        sample: SampleId,
        key: EvictionKey,
        at: u32,
    ) {
        if !self.make_space(pass, node, sample, key) {
            return;
        }
        let bytes = self.job.sizes.get(sample);
        let Some(tier) = self.caches[node as usize].tier_with(bytes) else { return };
        let cache = &mut self.caches[node as usize];
        cache.free[tier as usize] -= bytes;
        cache.held += 1;
        self.holders[sample as usize] = Holder::new(node, tier);
        self.keys[sample as usize] = key;
        self.kept_by[sample as usize] = pass.first.wrapping_add(at);
        pass.keeps[at as usize] = tier;
        self.caches[node as usize].push(key, sample, &self.keys, &self.holders, node);
    }

    /// Evicts samples with a larger key until the sample fits, or none at all.
    fn make_space(
        &mut self,
        pass: &mut Pass<'_>,
        node: NodeId,
        sample: SampleId,
        key: EvictionKey,
    ) -> bool {
        let bytes = self.job.sizes.get(sample);
        let at = node as usize;
        let mut victims = std::mem::take(&mut self.victims);
        victims.clear();
        let mut free = std::mem::take(&mut self.caches[at].free);
        let fits = |free: &[u64]| free.iter().skip(1).any(|&free| free >= bytes);
        let mut enough = fits(&free);
        while !enough {
            let Some((worst, victim)) = self.worst(node) else { break };
            if worst <= key {
                break;
            }
            self.caches[at].heap.pop();
            if let Some((_, tier)) = self.holders[victim as usize].get() {
                free[tier as usize] += self.job.sizes.get(victim);
            }
            // A second entry of the same sample would count it twice.
            self.keys[victim as usize] = EvictionKey::default();
            victims.push((worst, victim));
            enough = fits(&free);
        }
        for &(key, victim) in &victims {
            self.keys[victim as usize] = key;
            if !enough {
                if let Some((_, tier)) = self.holders[victim as usize].get() {
                    free[tier as usize] -= self.job.sizes.get(victim);
                }
                self.caches[at].heap.push((key, victim));
            }
        }
        self.caches[at].free = free;
        if enough {
            for &(_, victim) in &victims {
                let Some((_, tier)) = self.holders[victim as usize].get() else { continue };
                self.holders[victim as usize] = Holder::default();
                self.caches[at].held -= 1;
                match self.is_fresh(pass, victim) {
                    // This step would have kept it: it is not kept at all.
                    Some(entry) => pass.keeps[entry] = 0,
                    None => self.dropped.push((node, victim, tier)),
                }
            }
        }
        self.victims = victims;
        enough
    }

    /// Returns the entry of the current iteration that put the sample where it is.
    fn is_fresh(&self, pass: &Pass<'_>, sample: SampleId) -> Option<usize> {
        let at = self.kept_by[sample as usize].wrapping_sub(pass.first) as usize;
        (at < pass.keeps.len() && pass.keeps[at] != 0).then_some(at)
    }

    fn drop_from(&mut self, node: NodeId, tier: TierId, sample: SampleId) {
        let cache = &mut self.caches[node as usize];
        cache.free[tier as usize] += self.job.sizes.get(sample);
        cache.held -= 1;
        self.holders[sample as usize] = Holder::default();
    }

    /// Returns the sample that a node would evict first.
    fn worst(&mut self, node: NodeId) -> Option<(EvictionKey, SampleId)> {
        let cache = &mut self.caches[node as usize];
        while let Some(&(key, sample)) = cache.heap.peek() {
            if is_current(key, sample, node, &self.keys, &self.holders) {
                return Some((key, sample));
            }
            cache.heap.pop();
        }
        None
    }
}

impl NodeCache {
    fn tier_with(&self, bytes: u64) -> Option<TierId> {
        let at = self.free.iter().skip(1).position(|&free| free >= bytes)?;
        Some(at as TierId + 1)
    }

    fn push(
        &mut self,
        key: EvictionKey,
        sample: SampleId,
        keys: &[EvictionKey],
        holders: &[Holder],
        node: NodeId,
    ) {
        // Every use leaves an old entry behind: sweep when half of the entries are old.
        if self.heap.len() > 2 * self.held + 64 {
            self.heap.retain(|&(key, sample)| is_current(key, sample, node, keys, holders));
        }
        self.heap.push((key, sample));
    }
}

fn is_current(
    key: EvictionKey,
    sample: SampleId,
    node: NodeId,
    keys: &[EvictionKey],
    holders: &[Holder],
) -> bool {
    keys[sample as usize] == key
        && holders[sample as usize].get().is_some_and(|(holder, _)| holder == node)
}

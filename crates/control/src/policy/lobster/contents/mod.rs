//! What every node's cache holds before each step, in logical time: a pure function of the job,
//! computed one epoch at a time, once per process.
//!
//! After a step a node may keep what it has just used, and so may several nodes. The paper's
//! policies (section 4.4) say what goes when space is needed:
//!
//! - *Reuse distance*: after iteration h, a copy whose next use by its node is more than 2·I − h
//!   iterations away, that is not in the next epoch.
//! - *Reuse count*: a copy that its node will not use again. Uses are counted over the epochs that
//!   are looked at ([`future`]).
//! - The group's last copy stays after both, or other nodes would have to read the source: it goes
//!   when the cache is full of what its node uses, or when no node uses it in the window.
//! - In a full cache, what is used again furthest in the future goes first.
//!
//! What the first two evict, and free space, is room to keep what a node uses again in the next
//! epoch, though another node has a copy, and to prefetch ([`prefetch`]). The paper also lets a
//! prefetch evict by distance what the first two policies keep. It does not here: each sample is
//! used once an epoch, so a read that is made earlier would cost another one later.

mod cache;
mod copies;
mod epoch_plan;
mod future;
mod prefetch;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::job::Job;
use crate::policy::{NodeId, TierId};
use crate::sampler::{EpochOrder, SampleId, Scheme};
use cache::{CopyClass, EvictionKey, NodeCache};
use copies::{Copies, HeldCopy};
use future::{EpochUses, Future, NEVER, NextUse};
use prefetch::Prefetcher;

pub use epoch_plan::{EpochPlan, Holder};

/// All caches as they are before the next epoch.
#[derive(Debug)]
pub struct Contents {
    job: Arc<Job>,
    by_distance: bool,
    copies: Copies,
    future: Future,
    /// The next use of each sample by any node, as it was when the sample was used last.
    next_uses: Vec<u32>,
    caches: Vec<NodeCache>,
    /// By node; in use while one is missing.
    prefetchers: Vec<Option<Prefetcher>>,
    /// Entries of all epochs before, modulo 2^32, and iterations.
    entries: u32,
    iterations: u32,
    // Reused for their allocation.
    victims: Vec<SampleId>,
    changed: Vec<NodeId>,
    dropped: Vec<(NodeId, SampleId, TierId)>,
}

/// The state of the epoch being planned.
struct Pass<'a> {
    order: &'a EpochOrder,
    /// Where this epoch uses its samples.
    uses: EpochUses,
    iterations: u32,
    /// Its first iteration, counted over all epochs.
    begins: u32,
    iteration: u32,
    /// The first entry of the iteration, counted over all epochs.
    first: u32,
    keeps: Vec<TierId>,
    fetches: Vec<(NodeId, SampleId, TierId)>,
}

impl Contents {
    pub fn new(job: &Arc<Job>, by_distance: bool) -> Self {
        let room = |node| job.system.tiers.iter().skip(1).map(move |tier| tier.capacity_of(node).0);
        let nodes = 0..job.system.nodes;
        Self {
            by_distance,
            copies: Copies::new(job.sizes.len()),
            future: Future::new(job),
            next_uses: vec![NEVER; job.sizes.len() as usize],
            caches: nodes.clone().map(|node| NodeCache::new(room(node))).collect(),
            prefetchers: nodes.map(|node| Some(Prefetcher::new(job, node))).collect(),
            entries: 0,
            iterations: 0,
            victims: vec![],
            changed: vec![],
            dropped: vec![],
            job: job.clone(),
        }
    }

    /// Plans an epoch. `next` is the order of the one after it, if there is one.
    pub fn epoch(
        &mut self,
        epoch: u32,
        order: &Arc<EpochOrder>,
        next: Option<&Arc<EpochOrder>>,
    ) -> EpochPlan {
        let system = &self.job.system;
        let (ranks, nodes, ranks_per_node) = (system.ranks(), system.nodes, system.ranks_per_node);
        let mut plan = EpochPlan::new(epoch, nodes, ranks);
        let mut pass = Pass {
            order,
            uses: self.future.enter(epoch, self.iterations, order, next),
            iterations: order.iterations(),
            begins: self.iterations,
            iteration: 0,
            first: 0,
            keeps: vec![],
            fetches: vec![],
        };
        self.prefetchers.iter_mut().flatten().for_each(Prefetcher::begin_epoch);
        let mut missed = vec![0; nodes as usize];
        for iteration in 0..order.iterations() {
            let begin = plan.samples.len();
            missed.fill(0);
            for rank in 0..ranks {
                let node = rank / ranks_per_node;
                for sample in order.batch(rank, iteration) {
                    // Where everything is before the step, then what the step changes.
                    let holder = self.copies.nearest(sample, node);
                    if holder.get().is_none() {
                        missed[node as usize] += self.job.sizes.get(sample);
                    }
                    plan.samples.push(sample);
                    plan.holders.push(holder);
                }
                plan.starts.push(plan.samples.len() as u32);
            }
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
            for node in 0..nodes {
                self.prefetch(&mut pass, node, missed[node as usize]);
            }
            plan.end_iteration(&pass.keeps, &mut self.dropped, &mut pass.fetches);
        }
        self.entries = self.entries.wrapping_add(plan.samples.len() as u32);
        self.iterations = self.iterations.wrapping_add(order.iterations());
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
        let by_distance = self.by_distance;
        let now = NextUse { at: pass.begins.wrapping_add(pass.iteration), soon: false };
        let future = &self.future;
        // Without reuse distances, when it was used last.
        let next_use = |node| if by_distance { future.next_use(sample, Some(node)) } else { now };
        self.next_uses[sample as usize] = future.next_use(sample, None).at;
        let (mut is_held, mut is_own) = (false, false);
        for copy in self.copies.of_mut(sample) {
            copy.next_use = next_use(copy.node);
            copy.pinned = false;
            is_held = true;
            is_own |= copy.node == node;
        }
        let own = next_use(node);
        self.requeue(sample);
        // A run's last epoch leaves nothing to keep for.
        let keeps =
            if is_held { by_distance && !is_own && own.soon } else { !self.future.is_over() };
        if keeps {
            let entry = Some(pass.first.wrapping_add(at));
            let key = EvictionKey::NONE;
            let copy =
                HeldCopy { node, tier: 0, kept_by: entry, next_use: own, pinned: false, key };
            self.keep(pass, sample, copy, at);
        }
    }

    /// Keeps a copy if it fits, or if copies with larger keys can be evicted for it.
    fn keep(&mut self, pass: &mut Pass<'_>, sample: SampleId, mut copy: HeldCopy, at: u32) {
        // Beside the copies of others it is one that its node uses.
        let key = self.key(sample, &copy, self.copies.of(sample).next().is_none());
        if !self.make_space(pass, copy.node, sample, key) {
            return;
        }
        let bytes = self.job.sizes.get(sample);
        let cache = &mut self.caches[copy.node as usize];
        let Some(tier) = cache.tier_with(bytes) else { return };
        cache.free[tier as usize] -= bytes;
        cache.held += 1;
        copy.tier = tier;
        self.copies.insert(sample, copy);
        pass.keeps[at as usize] = tier;
        self.requeue(sample);
    }

    /// Evicts copies with a larger key until the sample fits, or none at all.
    fn make_space(
        &mut self,
        pass: &mut Pass<'_>,
        node: NodeId,
        sample: SampleId,
        key: EvictionKey,
    ) -> bool {
        let bytes = self.job.sizes.get(sample);
        let at = node as usize;
        let fits = |free: &[u64]| free.iter().skip(1).any(|&free| free >= bytes);
        let mut victims = std::mem::take(&mut self.victims);
        victims.clear();
        let mut popped = vec![];
        let mut free = self.caches[at].free.clone();
        let mut enough = fits(&free);
        while !enough {
            let Some((worst, victim)) = self.worst(node) else { break };
            if worst <= key {
                break;
            }
            self.caches[at].heap.pop();
            // A second entry of the same copy would count it twice.
            if victims.contains(&victim) {
                continue;
            }
            if let Some(copy) = self.copies.at(victim, node) {
                free[copy.tier as usize] += self.job.sizes.get(victim);
            }
            popped.push((worst, victim));
            victims.push(victim);
            enough = fits(&free);
        }
        if enough {
            self.caches[at].free = free;
            for &victim in &victims {
                let Some(copy) = self.copies.remove(victim, node) else { continue };
                self.caches[at].held -= 1;
                match Self::is_fresh(pass, &copy) {
                    // This step would have kept it: it is not kept at all.
                    Some(entry) => pass.keeps[entry] = 0,
                    None => self.dropped.push((node, victim, copy.tier)),
                }
                self.requeue(victim);
            }
        } else {
            self.caches[at].heap.extend(popped);
        }
        self.victims = victims;
        enough
    }

    /// Returns the entry of the current iteration that put the copy where it is.
    fn is_fresh(pass: &Pass<'_>, copy: &HeldCopy) -> Option<usize> {
        let at = copy.kept_by?.wrapping_sub(pass.first) as usize;
        (at < pass.keeps.len() && pass.keeps[at] != 0).then_some(at)
    }

    fn key(&self, sample: SampleId, copy: &HeldCopy, is_last: bool) -> EvictionKey {
        key(self.by_distance, self.next_uses[sample as usize], copy, is_last)
    }

    /// Tells the caches of all copies of a sample what it is worth now.
    fn requeue(&mut self, sample: SampleId) {
        let is_last = self.copies.last(sample).is_some();
        let by_any = self.next_uses[sample as usize];
        let mut changed = std::mem::take(&mut self.changed);
        for copy in self.copies.of_mut(sample) {
            let key = key(self.by_distance, by_any, copy, is_last);
            if copy.key != key {
                copy.key = key;
                self.caches[copy.node as usize].heap.push((key, sample));
                changed.push(copy.node);
            }
        }
        for node in changed.drain(..) {
            self.caches[node as usize].sweep(is_current(&self.copies, node));
        }
        self.changed = changed;
    }

    /// Returns the copy that a node would evict first.
    fn worst(&mut self, node: NodeId) -> Option<(EvictionKey, SampleId)> {
        self.caches[node as usize].worst(is_current(&self.copies, node))
    }
}

/// Returns whether an entry of a node's queue is that of a copy as it is.
fn is_current(copies: &Copies, node: NodeId) -> impl Fn(EvictionKey, SampleId) -> bool + '_ {
    move |key, sample| copies.at(sample, node).is_some_and(|copy| copy.key == key)
}

/// Returns when a copy is evicted. `by_any` is the sample's next use by any node.
fn key(by_distance: bool, by_any: u32, copy: &HeldCopy, is_last: bool) -> EvictionKey {
    let NextUse { at, soon } = copy.next_use;
    if !by_distance {
        // The longer ago the last use, the larger.
        return EvictionKey::new(CopyClass::Own, NEVER - 1 - at);
    }
    match copy.pinned {
        true => EvictionKey::new(CopyClass::Pinned, at),
        false if by_any == NEVER => EvictionKey::new(CopyClass::Useless, NEVER),
        false if soon => EvictionKey::new(CopyClass::Own, at),
        false if is_last => EvictionKey::new(CopyClass::Last, by_any),
        false => EvictionKey::new(CopyClass::Spare, at),
    }
}

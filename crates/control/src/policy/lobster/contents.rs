//! What every node's cache holds before each step, in logical time: a pure function
//! of the job, worked out one epoch at a time, once per process.
//!
//! After a step a node may keep what it has just used. The paper's rules (section
//! 4.4), in this order:
//!
//! - *Reuse distance*: after iteration h, a sample whose next use by this node is more
//!   than 2·I − h iterations away, that is not in the next epoch, may go.
//! - *Reuse count*: a sample that this node will not use again may go, unless no other
//!   node holds a copy.
//! - When the cache is full, what is used again furthest in the future goes first.
//!
//! The two-epoch window cannot tell "not in the next epoch" from "never again", so
//! the exception of the second rule is applied to both: the only copy stays as long
//! as nobody needs the room, and is the first to go. A node that does use a sample
//! again in the next epoch takes it over from a holder that does not. So there is one
//! copy of each sample, and a table of holders describes all caches.

use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::job::Job;
use crate::policy::{NodeId, TierId};
use crate::sampler::{EpochOrder, SampleId, Scheme};

/// The node and tier that hold a sample, packed: 0 for nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder(u32);

impl Holder {
    fn new(node: NodeId, tier: TierId) -> Self {
        Self((node + 1) << 8 | u32::from(tier))
    }

    #[inline]
    pub fn get(self) -> Option<(NodeId, TierId)> {
        (self.0 != 0).then(|| ((self.0 >> 8) - 1, self.0 as TierId))
    }
}

/// One epoch: where its samples are when they are read, and what stays.
#[derive(Debug)]
pub struct EpochPlan {
    pub epoch: u32,
    ranks: u32,
    /// `[iteration * ranks + rank]`: where a local batch starts in the lists below.
    starts: Vec<u32>,
    samples: Vec<SampleId>,
    holders: Vec<Holder>,
    /// The tier in which the reader keeps it; 0 for none.
    keeps: Vec<TierId>,
    /// `[iteration * nodes + node]`: where that step's evictions start.
    eviction_starts: Vec<u32>,
    evictions: Vec<(SampleId, TierId)>,
    nodes: u32,
}

impl EpochPlan {
    fn range(&self, rank: u32, iteration: u32) -> std::ops::Range<usize> {
        let at = (iteration * self.ranks + rank) as usize;
        self.starts[at] as usize..self.starts[at + 1] as usize
    }

    pub fn samples(&self, rank: u32, iteration: u32) -> &[SampleId] {
        &self.samples[self.range(rank, iteration)]
    }

    pub fn holders(&self, rank: u32, iteration: u32) -> &[Holder] {
        &self.holders[self.range(rank, iteration)]
    }

    pub fn keeps(&self, rank: u32, iteration: u32) -> &[TierId] {
        &self.keeps[self.range(rank, iteration)]
    }

    /// What a node drops after an iteration.
    pub fn evictions(&self, node: NodeId, iteration: u32) -> &[(SampleId, TierId)] {
        let at = (iteration * self.nodes + node) as usize;
        &self.evictions[self.eviction_starts[at] as usize..self.eviction_starts[at + 1] as usize]
    }
}

/// Larger goes first.
type Key = u32;
/// Held only because no other node does: goes before anything the holder uses itself.
const ONLY_COPY: Key = 1 << 31;
/// Not used in the next epoch by anybody.
const UNUSED: Key = Key::MAX;

/// All caches as they are before the next epoch.
#[derive(Debug)]
pub struct Contents {
    job: Arc<Job>,
    by_distance: bool,
    holders: Vec<Holder>,
    keys: Vec<Key>,
    /// Which entry of all epochs (modulo 2^32) put a sample where it is.
    kept_by: Vec<u32>,
    caches: Vec<Cache>,
    /// Entries and iterations of all epochs before, modulo 2^32.
    entries: u32,
    iterations: u32,
    victims: Vec<(Key, SampleId)>,
    dropped: Vec<(NodeId, SampleId, TierId)>,
}

#[derive(Clone, Debug)]
struct Cache {
    /// Free bytes by tier; tier 0 has none.
    free: Vec<u64>,
    /// Includes entries whose sample has gone or has another key by now.
    heap: BinaryHeap<(Key, SampleId)>,
    held: usize,
}

/// An epoch under way.
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
            Cache { free, heap: BinaryHeap::new(), held: 0 }
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

    /// Goes through an epoch. `next` is the order of the one after it, if there is one.
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

    /// `node` has used a sample as the `at`-th entry of the iteration.
    fn used(&mut self, pass: &mut Pass<'_>, node: NodeId, sample: SampleId, at: u32) {
        let everyone_reads = self.job.stream.config().scheme == Scheme::Whole;
        // When all nodes read everything, one of them is the sample's home.
        let home = sample % self.caches.len() as u32;
        if everyone_reads && node != home {
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
                Some((_, at)) if everyone_reads => at,
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
                if wants && self.room(pass, node, sample, own) {
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

    /// Keeps a sample at a node if there is room or something worse to drop.
    fn keep(&mut self, pass: &mut Pass<'_>, node: NodeId, sample: SampleId, key: Key, at: u32) {
        if !self.room(pass, node, sample, key) {
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

    /// Makes room for a sample by dropping what has a larger key, all or nothing.
    fn room(&mut self, pass: &mut Pass<'_>, node: NodeId, sample: SampleId, key: Key) -> bool {
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
            self.keys[victim as usize] = Key::default();
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
                    // It was to be kept after this very step: it just is not.
                    Some(entry) => pass.keeps[entry] = 0,
                    None => self.dropped.push((node, victim, tier)),
                }
            }
        }
        self.victims = victims;
        enough
    }

    /// The entry of the present iteration that put the sample where it is.
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

    /// The sample that a node would drop first.
    fn worst(&mut self, node: NodeId) -> Option<(Key, SampleId)> {
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

impl Cache {
    fn tier_with(&self, bytes: u64) -> Option<TierId> {
        let at = self.free.iter().skip(1).position(|&free| free >= bytes)?;
        Some(at as TierId + 1)
    }

    fn push(&mut self, key: Key, sample: SampleId, keys: &[Key], holders: &[Holder], node: NodeId) {
        // Every use leaves an old entry behind: sweep when half of them are.
        if self.heap.len() > 2 * self.held + 64 {
            self.heap.retain(|&(key, sample)| is_current(key, sample, node, keys, holders));
        }
        self.heap.push((key, sample));
    }
}

fn is_current(key: Key, sample: SampleId, node: NodeId, keys: &[Key], holders: &[Holder]) -> bool {
    keys[sample as usize] == key
        && holders[sample as usize].get().is_some_and(|(holder, _)| holder == node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Bytes;
    use crate::policy::testing::job;
    use crate::sampler::{AccessStream, Order, StreamConfig};
    use proptest::prelude::*;

    fn with_orders(job: &mut Job, lists: Vec<Vec<SampleId>>) {
        let order = Order::Given(Arc::new(lists));
        let config = StreamConfig { order, ..job.stream.config().clone() };
        job.stream = AccessStream::new(config).unwrap();
    }

    fn plans(job: Job, by_distance: bool, epochs: u32) -> Vec<EpochPlan> {
        let job = Arc::new(job);
        let mut contents = Contents::new(&job, by_distance);
        let orders: Vec<_> = (0..epochs).map(|epoch| job.stream.epoch(epoch)).collect();
        (0..epochs)
            .map(|epoch| {
                let at = epoch as usize;
                contents.epoch(epoch, &orders[at], orders.get(at + 1))
            })
            .collect()
    }

    #[test]
    fn keeps_what_is_used_again_soonest() {
        // One node, room for two of four samples.
        let mut job = job(4, 1, 1, &[20]);
        with_orders(&mut job, vec![vec![0, 1, 2, 3], vec![3, 1, 2, 0]]);
        let plans = plans(job, true, 2);
        // 0 and 1 fill the cache; 3 comes sooner than 0, 2 later than 1.
        assert_eq!(plans[0].keeps(0, 0), [1, 1]);
        assert_eq!(plans[0].keeps(0, 1), [0, 1]);
        assert_eq!(plans[0].evictions(0, 1), [(0, 1)]);
        let held: Vec<_> = plans[1].holders.iter().map(|holder| holder.get().is_some()).collect();
        assert_eq!(held, [true, true, false, false]);
    }

    #[test]
    fn samples_drawn_again_and_again_made_planning_quadratic() {
        let mut job = job(50, 1, 1, &[200]);
        let list: Vec<SampleId> = (0..20_000).map(|at| at * at % 50).collect();
        with_orders(&mut job, vec![list]);
        // With less room than samples, and with room for all.
        for (by_distance, room) in [(true, 200), (false, 200), (true, 500), (false, 500)] {
            job.system.tiers[1].capacity.0 = room;
            let job = Arc::new(job.clone());
            let mut contents = Contents::new(&job, by_distance);
            let order = job.stream.epoch(0);
            contents.epoch(0, &order, Some(&order));
            let Cache { heap, held, .. } = &contents.caches[0];
            assert!(heap.len() <= 2 * held + 65, "{} entries for {held} samples", heap.len());
        }
    }

    #[test]
    fn without_reuse_distances_the_least_recently_used_goes() {
        let mut job = job(4, 1, 1, &[20]);
        with_orders(&mut job, vec![vec![0, 1, 2, 3], vec![3, 1, 2, 0]]);
        let plans = plans(job, false, 2);
        assert_eq!(plans[0].evictions(0, 1), [(1, 1), (0, 1)]);
        assert_eq!(plans[0].keeps(0, 1), [1, 1]);
    }

    #[test]
    fn the_next_user_takes_a_sample_over_from_its_only_holder() {
        // Node 0 reads 0, 2, then node 1 does, then node 1 again.
        let mut job = job(4, 2, 1, &[40]);
        let first = vec![0, 1, 2, 3];
        let then = vec![1, 0, 3, 2];
        with_orders(&mut job, vec![first, then.clone(), then.clone(), then]);
        let plans = plans(job, true, 4);
        let holder = |epoch: usize| plans[epoch].holders(1, 0)[0].get();
        assert_eq!(plans[1].samples(1, 0)[0], 0);
        assert_eq!((holder(0), holder(1), holder(2)), (None, Some((0, 1)), Some((1, 1))));
        assert!(plans[1].evictions(0, 0).contains(&(0, 1)));
    }

    /// What to drop first, as the paper says it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Worth {
        /// How long ago, where reuse distances are not used: smaller is longer.
        Used(std::cmp::Reverse<u32>),
        /// The holder uses it again then.
        Again(u32),
        /// Another node uses it then.
        OnlyCopy(u32),
        Never,
    }

    #[derive(Clone, Copy, Debug)]
    struct Copy {
        node: NodeId,
        tier: TierId,
        worth: Worth,
        /// The entry of this iteration that keeps it.
        fresh: Option<usize>,
    }

    /// The same contents with a table of copies that is looked through for everything.
    struct Naive<'a> {
        job: &'a Job,
        by_distance: bool,
        copies: Vec<Option<Copy>>,
        iterations: u32,
        keeps: Vec<TierId>,
        evictions: Vec<(NodeId, SampleId, TierId)>,
    }

    impl Naive<'_> {
        fn free(&self, node: NodeId, tier: TierId) -> u64 {
            let held = self.copies.iter().enumerate().filter_map(|(sample, copy)| {
                let copy = copy.filter(|copy| (copy.node, copy.tier) == (node, tier))?;
                Some((sample, copy))
            });
            let used: u64 = held.map(|(sample, _)| self.job.sizes.get(sample as u32)).sum();
            self.job.system.tiers[tier as usize].capacity_of(node).0 - used
        }

        fn tier_with(&self, node: NodeId, bytes: u64) -> Option<TierId> {
            let tiers = self.job.system.tiers.len() as TierId;
            (1..tiers).find(|&tier| self.free(node, tier) >= bytes)
        }

        fn keep(&mut self, node: NodeId, sample: SampleId, worth: Worth, at: usize) -> bool {
            let before = self.copies.clone();
            let own = self.copies[sample as usize].take();
            let mut gone = vec![];
            let tier = loop {
                if let Some(tier) = self.tier_with(node, self.job.sizes.get(sample)) {
                    break tier;
                }
                let held = (0..self.copies.len()).filter_map(|sample| {
                    let copy = self.copies[sample].filter(|copy| copy.node == node)?;
                    Some((copy.worth, sample))
                });
                match held.max() {
                    Some((worst, victim)) if worst > worth => {
                        gone.extend(self.copies[victim].take().map(|copy| (victim, copy)));
                    }
                    _ => {
                        self.copies = before;
                        return false;
                    }
                }
            };
            for (victim, copy) in gone {
                match copy.fresh {
                    Some(entry) => self.keeps[entry] = 0,
                    None => self.evictions.push((node, victim as SampleId, copy.tier)),
                }
            }
            if let Some(own) = own {
                self.evictions.push((own.node, sample, own.tier));
            }
            self.copies[sample as usize] = Some(Copy { node, tier, worth, fresh: Some(at) });
            self.keeps[at] = tier;
            true
        }

        fn used(
            &mut self,
            node: NodeId,
            sample: SampleId,
            at: usize,
            iteration: u32,
            next: Option<&[Vec<(NodeId, SampleId)>]>,
        ) {
            let whole = self.job.stream.config().scheme == Scheme::Whole;
            if whole && sample % self.job.system.nodes != node {
                return;
            }
            let again = next.and_then(|next| {
                next.iter().enumerate().find_map(|(iteration, uses)| {
                    let found = uses.iter().find(|&&(_, other)| other == sample);
                    found.map(|&(node, _)| (iteration as u32, node))
                })
            });
            let by_distance = self.by_distance;
            let worth = |holder: NodeId| match again {
                _ if !by_distance => Worth::Used(std::cmp::Reverse(self.iterations + iteration)),
                Some((then, _)) if whole => Worth::Again(self.iterations + then),
                Some((then, user)) if user == holder => Worth::Again(self.iterations + then),
                Some((then, _)) => Worth::OnlyCopy(self.iterations + then),
                None => Worth::Never,
            };
            match self.copies[sample as usize] {
                None if next.is_some() => drop(self.keep(node, sample, worth(node), at)),
                None => {}
                Some(copy) => {
                    let (own, stays) = (worth(node), worth(copy.node));
                    let wants = by_distance && matches!(own, Worth::Again(_));
                    let moves = wants && copy.node != node && copy.fresh.is_none();
                    if !(moves && self.keep(node, sample, own, at)) {
                        self.copies[sample as usize] = Some(Copy { worth: stays, ..copy });
                    }
                }
            }
        }
    }

    /// Who uses what in each iteration.
    fn uses(job: &Job, order: &EpochOrder) -> Vec<Vec<(NodeId, SampleId)>> {
        let of = |iteration| {
            let of_rank = move |rank| {
                let node = job.system.node_of(rank);
                order.batch(rank, iteration).map(move |sample| (node, sample))
            };
            (0..job.system.ranks()).flat_map(of_rank).collect()
        };
        (0..order.iterations()).map(of).collect()
    }

    /// Every node has the same capacities, or each more than the one before it.
    fn varied(
        (samples, nodes, ranks): (u32, u32, u32),
        capacities: &[u64],
        sizes: &[u64],
        (seed, whole): (u64, bool),
    ) -> Job {
        let mut job = job(samples, nodes, ranks, capacities);
        let more = 40 * (seed % 3);
        for tier in &mut job.system.tiers {
            let room = |node| Bytes(tier.capacity.0 + more * u64::from(node));
            tier.by_node = (0..nodes).map(room).collect();
        }
        job.sizes = crate::Sizes::from_bytes(&sizes[..samples as usize]);
        let scheme = if whole { Scheme::Whole } else { Scheme::Uniform };
        let config = job.stream.config().clone();
        let config = StreamConfig { order: Order::Permutation, seed, scheme, ..config };
        job.stream = AccessStream::new(config).unwrap();
        job
    }

    proptest! {
        #[test]
        fn contents_are_those_of_a_table_that_is_looked_through(
            (nodes, ranks) in (1u32..4, 1u32..3),
            samples in 12u32..40,
            capacities in prop::collection::vec(0u64..400, 1..3),
            sizes in prop::collection::vec(1u64..60, 40),
            by_distance: bool,
            whole: bool,
            // Orders that differ in length leave samples out of an epoch.
            (seed, drop_last) in (any::<u64>(), any::<bool>()),
        ) {
            let mut job = varied((samples, nodes, ranks), &capacities, &sizes, (seed, whole));
            let config = StreamConfig { drop_last, ..job.stream.config().clone() };
            job.stream = AccessStream::new(config).unwrap();
            let orders: Vec<_> = (0..4).map(|epoch| uses(&job, &job.stream.epoch(epoch))).collect();
            let mut naive = Naive {
                job: &job,
                by_distance,
                copies: vec![None; samples as usize],
                iterations: 0,
                keeps: vec![],
                evictions: vec![],
            };
            for (epoch, plan) in plans(job.clone(), by_distance, 4).iter().enumerate() {
                // The next epoch's iterations count on from this one's.
                let now = naive.iterations;
                for (iteration, used) in orders[epoch].iter().enumerate() {
                    let iteration = iteration as u32;
                    let ranks = 0..job.system.ranks();
                    let holders: Vec<_> =
                        ranks.clone().flat_map(|rank| plan.holders(rank, iteration)).collect();
                    for (&(_, sample), holder) in used.iter().zip(holders) {
                        let copy = naive.copies[sample as usize];
                        prop_assert_eq!(copy.map(|copy| (copy.node, copy.tier)), holder.get());
                    }
                    naive.copies.iter_mut().flatten().for_each(|copy| copy.fresh = None);
                    naive.keeps = vec![0; used.len()];
                    naive.evictions.clear();
                    for (at, &(node, sample)) in used.iter().enumerate() {
                        let next = orders.get(epoch + 1).map(AsRef::as_ref);
                        naive.iterations = now;
                        if naive.by_distance {
                            naive.iterations += orders[epoch].len() as u32;
                        }
                        naive.used(node, sample, at, iteration, next);
                    }
                    let keeps: Vec<_> =
                        ranks.flat_map(|rank| plan.keeps(rank, iteration)).copied().collect();
                    prop_assert_eq!(&keeps, &naive.keeps);
                    for node in 0..nodes {
                        let evicted = naive.evictions.iter().filter(|(of, ..)| *of == node);
                        let mut evicted: Vec<_> =
                            evicted.map(|&(_, sample, tier)| (sample, tier)).collect();
                        let mut planned = plan.evictions(node, iteration).to_vec();
                        evicted.sort_unstable();
                        planned.sort_unstable();
                        prop_assert_eq!(planned, evicted);
                    }
                }
                naive.iterations = now + orders[epoch].len() as u32;
            }
        }

        /// Carrying the plan out gives the contents that it speaks of, and fits.
        #[test]
        fn keeps_and_evictions_add_up(
            nodes in 1u32..4,
            ranks in 1u32..3,
            samples in 6u32..60,
            capacities in prop::collection::vec(0u64..400, 1..3),
            sizes in prop::collection::vec(1u64..60, 60),
            by_distance: bool,
            seed: u64,
            whole: bool,
        ) {
            let job = varied((samples, nodes, ranks), &capacities, &sizes, (seed, whole));
            let mut held = vec![Holder::default(); samples as usize];
            let cache_tiers = &job.system.tiers[1..];
            let room = |node| cache_tiers.iter().map(|tier| tier.capacity_of(node).0).collect();
            let mut free: Vec<Vec<u64>> = (0..nodes).map(room).collect();
            for plan in plans(job.clone(), by_distance, 4) {
                for iteration in 0..job.stream.iterations() {
                    for rank in 0..job.system.ranks() {
                        let batch = plan.samples(rank, iteration).iter();
                        for (&k, &holder) in batch.zip(plan.holders(rank, iteration)) {
                            prop_assert_eq!(held[k as usize], holder);
                        }
                    }
                    for node in 0..nodes {
                        for &(k, tier) in plan.evictions(node, iteration) {
                            prop_assert_eq!(held[k as usize], Holder::new(node, tier));
                            held[k as usize] = Holder::default();
                            free[node as usize][tier as usize - 1] += job.sizes.get(k);
                        }
                    }
                    for rank in 0..job.system.ranks() {
                        let node = job.system.node_of(rank);
                        let batch = plan.samples(rank, iteration).iter();
                        for (&k, &tier) in batch.zip(plan.keeps(rank, iteration)) {
                            if tier == 0 {
                                continue;
                            }
                            prop_assert_eq!(held[k as usize].get(), None);
                            held[k as usize] = Holder::new(node, tier);
                            let room = &mut free[node as usize][tier as usize - 1];
                            prop_assert!(*room >= job.sizes.get(k));
                            *room -= job.sizes.get(k);
                        }
                    }
                }
            }
        }
    }
}

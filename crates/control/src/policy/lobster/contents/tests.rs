//! Unit tests of what lobster's caches hold.

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

fn plans(mut job: Job, by_distance: bool, epochs: u32) -> Vec<EpochPlan> {
    job.epochs = Some(epochs);
    let job = Arc::new(job);
    let mut contents = Contents::new(&job, by_distance);
    let orders: Vec<_> = (0..epochs).map(|epoch| Arc::new(job.stream.epoch(epoch))).collect();
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
        let order = Arc::new(job.stream.epoch(0));
        contents.epoch(0, &order, Some(&order));
        let NodeCache { heap, held, .. } = &contents.caches[0];
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
fn a_node_keeps_its_own_copy_of_what_it_uses_again() {
    // Node 0 reads 0 and 2, then node 1 does, then node 1 again.
    let mut job = job(4, 2, 1, &[40]);
    let (first, then) = (vec![0, 1, 2, 3], vec![1, 0, 3, 2]);
    with_orders(&mut job, vec![first, then.clone(), then.clone(), then]);
    let plans = plans(job, true, 4);
    let holder = |epoch: usize| plans[epoch].holders(1, 0)[0].get();
    assert_eq!(plans[1].samples(1, 0)[0], 0);
    assert_eq!((holder(0), holder(1), holder(2)), (None, Some((0, 1)), Some((1, 1))));
    // Both nodes have space for all four.
    assert!(plans.iter().all(|plan| plan.evictions.is_empty()), "{plans:?}");
}

#[test]
fn a_copy_goes_before_the_last_one_in_the_group() {
    let mut job = job(8, 2, 1, &[30]);
    job.system.tiers[1].by_node = vec![Bytes(30), Bytes(50)];
    // In turn a sample of node 0 and one of node 1, two of each in a step.
    let lists = vec![
        vec![0, 1, 2, 3, 4, 5, 6, 7],
        vec![1, 0, 3, 7, 4, 2, 5, 6],
        vec![4, 0, 5, 1, 2, 3, 6, 7],
    ];
    with_orders(&mut job, lists);
    let plans = plans(job, true, 3);
    // Node 0 holds 0, 2 and 4, node 1 the odd ones and, once it has used it, a copy of 0. Node 0
    // keeps a copy of 5 in the place of 0, though it uses 2 later than node 1 uses 0.
    assert!(plans[1].evictions(0, 0).is_empty() && plans[1].evictions(1, 0).is_empty());
    assert_eq!(plans[1].evictions(0, 1), [(0, 1)]);
    // So node 1 can keep 6 in the place of 5.
    assert_eq!(plans[1].evictions(1, 1), [(5, 1)]);
    assert!(plans[2].holders.iter().all(|holder| holder.get().is_some()), "{plans:?}");
}

#[test]
fn what_no_epoch_of_the_window_uses_goes_before_what_a_later_one_uses() {
    // Room for two. After the first epoch 2 is not used, and 1 and 3 three epochs later.
    let mut job = job(4, 1, 1, &[20]);
    with_orders(&mut job, vec![vec![2, 1, 0, 3], vec![0; 4], vec![0; 4], vec![3, 0, 1, 0]]);
    let plans = plans(job, true, 4);
    assert_eq!(plans[0].keeps(0, 0), [1, 1]);
    // 0 takes the place of 2, and 3, which is used sooner, that of 1.
    assert_eq!(plans[0].keeps(0, 1), [1, 1]);
    assert_eq!(plans[0].evictions(0, 1), [(2, 1), (1, 1)]);
    assert_eq!(plans[3].holders(0, 0)[0].get(), Some((0, 1)));
}

#[test]
fn prefetchers_take_their_share_of_the_reads_beyond_the_ring() {
    // 80 steps of 20 B; the ring reaches 5, and the prefetcher has a quarter of the threads.
    let mut job = job(160, 1, 1, &[1600]);
    job.system.tiers[0].capacity = Bytes(100);
    let plans = plans(job, true, 2);
    let fetched = |iteration| plans[0].fetches(0, iteration).to_vec();
    // Five bytes a step: the first sample after two.
    assert_eq!(fetched(0), []);
    assert_eq!(fetched(1), [(16, 1)]);
    assert_eq!(fetched(3), [(20, 1)]);
    let all: Vec<SampleId> = plans[0].fetches.iter().map(|&(sample, _)| sample).collect();
    // Of 140 samples beyond the ring, one in five.
    assert!(all.is_sorted() && (26..=30).contains(&all.len()), "{all:?}");
    // They are held when they are used, and later.
    for &sample in &all {
        assert_eq!(plans[0].holders[sample as usize].get(), Some((0, 1)));
    }
    assert!(plans[1].fetches.is_empty() && plans[0].evictions.is_empty());
    assert!(plans[1].holders.iter().all(|holder| holder.get().is_some()));
}

#[test]
fn prefetching_reads_no_more_than_the_cache_lacks() {
    for (nodes, room) in [(1, 400), (2, 200), (4, 100)] {
        let mut job = job(160, nodes, 1, &[room]);
        job.system.tiers[0].capacity = Bytes(100);
        let config = StreamConfig { order: Order::Permutation, ..job.stream.config().clone() };
        job.stream = AccessStream::new(config).unwrap();
        let plans = plans(job, true, 4);
        assert!(plans.iter().any(|plan| !plan.fetches.is_empty()));
        for (epoch, plan) in plans.iter().enumerate() {
            let missed = plan.holders.iter().filter(|holder| holder.get().is_none()).count();
            let read = missed + plan.fetches.len();
            // All in the first epoch, and then what exceeds the 40 that are held.
            let least = if epoch == 0 { 160 } else { 120 };
            assert!((least..=least + 6).contains(&read), "{nodes} nodes: {read} in epoch {epoch}");
        }
    }
}

/// What to drop first, as the paper says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// How long ago, where reuse distances are not used: smaller is longer.
    Used(std::cmp::Reverse<u32>),
    /// Prefetched.
    Awaited(u32),
    /// The holder uses it again then.
    Again(u32),
    /// Another node uses it then.
    LastCopy(u32),
    /// The holder uses it again then, if at all.
    OneOfSeveral(u32),
    Never,
}

#[derive(Clone, Copy, Debug)]
struct NaiveCopy {
    sample: SampleId,
    node: NodeId,
    tier: TierId,
    /// When the holder uses it again, and whether in the epoch after its last use.
    own: (u32, bool),
    prefetched: bool,
    /// The entry of this iteration that keeps it.
    fresh: Option<usize>,
}

/// The same contents with a list of copies that is looked through for everything.
struct Naive<'a> {
    job: &'a Job,
    by_distance: bool,
    copies: Vec<NaiveCopy>,
    /// By sample: when any node uses it again.
    by_any: Vec<u32>,
    orders: Vec<Arc<EpochOrder>>,
    /// By epoch, rank and sample of each iteration.
    uses: Vec<Vec<Vec<(u32, SampleId)>>>,
    epoch: usize,
    iteration: usize,
    keeps: Vec<TierId>,
    evictions: Vec<(NodeId, SampleId, TierId)>,
    fetches: Vec<(NodeId, SampleId, TierId)>,
    /// By node: bytes that may be fetched, by tier, and uses of the epoch that were looked at.
    credit: Vec<(Vec<f64>, usize)>,
}

impl Naive<'_> {
    fn now(&self) -> u32 {
        let before: usize = self.uses[..self.epoch].iter().map(Vec::len).sum();
        (before + self.iteration) as u32
    }

    /// Iteration and rank of an epoch's first use.
    fn first(&self, epoch: usize, sample: SampleId) -> Option<(u32, u32)> {
        let order = &self.orders[epoch];
        let position = order.samples().iter().position(|&other| other == sample)?;
        order.slot(position as u32).map(|slot| (slot.iteration, slot.rank))
    }

    /// When a sample is used after this epoch, by a node or by any.
    fn again(&self, sample: SampleId, by: Option<NodeId>) -> (u32, bool) {
        let by = by.filter(|_| self.job.stream.config().scheme != Scheme::Whole);
        let mut at: u32 = self.uses[..=self.epoch].iter().map(|epoch| epoch.len() as u32).sum();
        for (ahead, epoch) in (self.epoch + 1..self.uses.len()).enumerate() {
            // Only an epoch's first use counts.
            if let Some((iteration, rank)) = self.first(epoch, sample)
                && by.is_none_or(|by| by == self.job.system.node_of(rank))
            {
                return (at + iteration, ahead == 0);
            }
            at += self.uses[epoch].len() as u32;
        }
        (u32::MAX, false)
    }

    fn worth(&self, copy: &NaiveCopy) -> Worth {
        let by_any = self.by_any[copy.sample as usize];
        let count = self.copies.iter().filter(|other| other.sample == copy.sample).count();
        let (at, soon) = copy.own;
        match () {
            () if !self.by_distance => Worth::Used(std::cmp::Reverse(at)),
            () if copy.prefetched => Worth::Awaited(at),
            () if by_any == u32::MAX => Worth::Never,
            () if soon => Worth::Again(at),
            () if count == 1 => Worth::LastCopy(by_any),
            () => Worth::OneOfSeveral(at),
        }
    }

    fn free(&self, node: NodeId, tier: TierId) -> u64 {
        let held = self.copies.iter().filter(|copy| (copy.node, copy.tier) == (node, tier));
        let used: u64 = held.map(|copy| self.job.sizes.get(copy.sample)).sum();
        self.job.system.tiers[tier as usize].capacity_of(node).0 - used
    }

    fn tier_with(&self, node: NodeId, bytes: u64) -> Option<TierId> {
        let tiers = self.job.system.tiers.len() as TierId;
        (1..tiers).find(|&tier| self.free(node, tier) >= bytes)
    }

    /// Drops what is worth less until a sample fits, or nothing.
    fn make_space(&mut self, node: NodeId, bytes: u64, worth: Worth) -> bool {
        let worths: Vec<Worth> = self.copies.iter().map(|copy| self.worth(copy)).collect();
        let mut order: Vec<(Worth, SampleId)> = std::iter::zip(&worths, &self.copies)
            .filter(|(_, copy)| copy.node == node)
            .map(|(&worth, copy)| (worth, copy.sample))
            .collect();
        order.sort();
        let before = self.copies.clone();
        let mut gone = vec![];
        while self.tier_with(node, bytes).is_none() {
            let Some((_, victim)) = order.pop().filter(|(worst, _)| *worst > worth) else {
                self.copies = before;
                return false;
            };
            let is_victim = |copy: &NaiveCopy| (copy.node, copy.sample) == (node, victim);
            gone.extend(self.copies.iter().copied().find(is_victim));
            self.copies.retain(|copy| !is_victim(copy));
        }
        for copy in gone {
            match copy.fresh {
                Some(entry) => self.keeps[entry] = 0,
                None => self.evictions.push((node, copy.sample, copy.tier)),
            }
        }
        true
    }

    fn used(&mut self, node: NodeId, sample: SampleId, at: usize) {
        let whole = self.job.stream.config().scheme == Scheme::Whole;
        if whole && sample % self.job.system.nodes != node {
            return;
        }
        let now = self.now();
        let own = |naive: &Self, node| match naive.by_distance {
            true => naive.again(sample, Some(node)),
            false => (now, false),
        };
        self.by_any[sample as usize] = self.again(sample, None).0;
        for index in 0..self.copies.len() {
            if self.copies[index].sample == sample {
                let again = own(self, self.copies[index].node);
                self.copies[index].own = again;
                self.copies[index].prefetched = false;
            }
        }
        let holds = |copy: &&NaiveCopy| copy.sample == sample;
        let held = self.copies.iter().any(|copy| holds(&copy));
        let held_here = self.copies.iter().filter(holds).any(|copy| copy.node == node);
        let (again, soon) = own(self, node);
        let last_epoch = self.epoch + 1 == self.uses.len();
        let keeps = if held { self.by_distance && !held_here && soon } else { !last_epoch };
        if !keeps {
            return;
        }
        let own = (again, soon);
        let fresh = Some(at);
        let mut copy = NaiveCopy { sample, node, tier: 0, own, prefetched: false, fresh };
        self.copies.push(copy);
        let worth = self.worth(&copy);
        self.copies.pop();
        let bytes = self.job.sizes.get(sample);
        if self.make_space(node, bytes, worth) {
            copy.tier = self.tier_with(node, bytes).unwrap();
            self.keeps[at] = copy.tier;
            self.copies.push(copy);
        }
    }

    fn prefetch(&mut self, node: NodeId, missed: u64) {
        let system = &self.job.system;
        if !self.by_distance || self.job.stream.config().scheme == Scheme::Whole {
            return;
        }
        let (mut credit, mut looked) = self.credit[node as usize].clone();
        let mean = self.job.sizes.total().as_f64() / f64::from(self.job.sizes.len());
        let batch = mean * f64::from(self.job.stream.config().batch) / f64::from(system.nodes);
        for (tier, credit) in credit.iter_mut().enumerate().skip(1) {
            let share = f64::from(system.tiers[tier].threads) / f64::from(system.staging_threads());
            *credit = (*credit + missed as f64 * share).min(batch);
        }
        let reach = (system.tiers[0].capacity_of(node).as_f64() / batch).ceil() as usize;
        let epoch = &self.uses[self.epoch];
        let is_own = |&&(rank, _): &&(u32, SampleId)| system.node_of(rank) == node;
        let count = |used: &Vec<_>| used.iter().filter(is_own).count();
        looked = looked.max(epoch.iter().take(self.iteration + reach + 2).map(count).sum());
        let list: Vec<(u32, u32, SampleId)> = (0..)
            .zip(epoch)
            .flat_map(|(iteration, used)| {
                let own = used.iter().filter(is_own);
                own.map(move |&(rank, sample)| (iteration, rank, sample))
            })
            .collect();
        while let Some(&(iteration, rank, sample)) = list.get(looked) {
            let held = self.copies.iter().any(|copy| copy.sample == sample);
            if !held && self.first(self.epoch, sample) == Some((iteration, rank)) {
                let bytes = self.job.sizes.get(sample);
                let could = |credit: &f64| *credit >= bytes as f64;
                if !credit.iter().skip(1).any(could)
                    || !self.make_space(node, bytes, Worth::LastCopy(u32::MAX))
                {
                    break;
                }
                let fits = |&tier: &usize| {
                    self.free(node, tier as TierId) >= bytes && could(&credit[tier])
                };
                let Some(tier) = (1..credit.len()).find(fits) else { break };
                credit[tier] -= bytes as f64;
                let before: usize = self.uses[..self.epoch].iter().map(Vec::len).sum();
                let own = (before as u32 + iteration, true);
                self.by_any[sample as usize] = own.0;
                let tier = tier as TierId;
                self.fetches.push((node, sample, tier));
                let copy = NaiveCopy { sample, node, tier, own, prefetched: true, fresh: None };
                self.copies.push(copy);
            }
            looked += 1;
        }
        self.credit[node as usize] = (credit, looked);
    }
}

/// The samples that each rank uses in each iteration.
fn uses(job: &Job, order: &EpochOrder) -> Vec<Vec<(u32, SampleId)>> {
    let of = |iteration| {
        let of_rank = move |rank| order.batch(rank, iteration).map(move |sample| (rank, sample));
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
    // A batch or two.
    let ring = |node| Bytes(100 * u64::from(ranks) + more * u64::from(node));
    job.system.tiers[0].by_node = (0..nodes).map(ring).collect();
    job.sizes = crate::Sizes::from_bytes(&sizes[..samples as usize]);
    let scheme = if whole { Scheme::Whole } else { Scheme::Uniform };
    let config = job.stream.config().clone();
    let config = StreamConfig { order: Order::Permutation, seed, scheme, ..config };
    job.stream = AccessStream::new(config).unwrap();
    job
}

/// What a node reads and evicts, in any order.
fn of_node<T: Copy + Ord>(list: &[(NodeId, SampleId, T)], node: NodeId) -> Vec<(SampleId, T)> {
    let own = list.iter().filter(|(of, ..)| *of == node);
    let mut own: Vec<_> = own.map(|&(_, sample, tier)| (sample, tier)).collect();
    own.sort_unstable();
    own
}

proptest! {
    #[test]
    fn contents_are_those_of_a_list_that_is_looked_through(
        (nodes, ranks) in (1u32..4, 1u32..3),
        samples in 12u32..60,
        capacities in prop::collection::vec(0u64..500, 1..3),
        sizes in prop::collection::vec(1u64..60, 60),
        by_distance in prop::bool::weighted(0.8),
        whole in prop::bool::weighted(0.2),
        // Orders that differ in length leave samples out of an epoch, drawn ones use some twice.
        (seed, drop_last, drawn) in (any::<u64>(), any::<bool>(), prop::bool::weighted(0.3)),
    ) {
        let mut job = varied((samples, nodes, ranks), &capacities, &sizes, (seed, whole));
        let mut config = StreamConfig { drop_last, ..job.stream.config().clone() };
        if drawn {
            let draw = |at: u32, epoch: u32| (at * (at + epoch) + 7 * epoch) % samples;
            let list = |epoch| (0..samples).map(|at| draw(at, epoch)).collect();
            config.order = Order::Given(Arc::new((0..4).map(list).collect()));
        }
        job.stream = AccessStream::new(config).unwrap();
        let orders: Vec<_> = (0..4).map(|epoch| Arc::new(job.stream.epoch(epoch))).collect();
        let uses: Vec<_> = orders.iter().map(|order| uses(&job, order)).collect();
        let mut naive = Naive {
            job: &job,
            by_distance,
            copies: vec![],
            by_any: vec![u32::MAX; samples as usize],
            orders,
            uses: uses.clone(),
            epoch: 0,
            iteration: 0,
            keeps: vec![],
            evictions: vec![],
            fetches: vec![],
            credit: vec![(vec![0.0; job.system.tiers.len()], 0); nodes as usize],
        };
        for (epoch, plan) in plans(job.clone(), by_distance, 4).iter().enumerate() {
            naive.epoch = epoch;
            naive.credit.iter_mut().for_each(|(_, looked)| *looked = 0);
            for (iteration, used) in uses[epoch].iter().enumerate() {
                naive.iteration = iteration;
                let iteration = iteration as u32;
                let ranks = 0..job.system.ranks();
                let holders: Vec<_> =
                    ranks.clone().flat_map(|rank| plan.holders(rank, iteration)).collect();
                let mut missed = vec![0; nodes as usize];
                for (&(rank, sample), holder) in used.iter().zip(holders) {
                    let node = job.system.node_of(rank);
                    let copies: Vec<_> =
                        naive.copies.iter().filter(|copy| copy.sample == sample).collect();
                    let own = copies.iter().find(|copy| copy.node == node);
                    let copy = own.or(copies.first()).map(|copy| (copy.node, copy.tier));
                    prop_assert_eq!(copy, holder.get());
                    if copy.is_none() {
                        missed[node as usize] += job.sizes.get(sample);
                    }
                }
                naive.copies.iter_mut().for_each(|copy| copy.fresh = None);
                naive.keeps = vec![0; used.len()];
                naive.evictions.clear();
                naive.fetches.clear();
                for (at, &(rank, sample)) in used.iter().enumerate() {
                    naive.used(job.system.node_of(rank), sample, at);
                }
                for node in 0..nodes {
                    naive.prefetch(node, missed[node as usize]);
                }
                let keeps: Vec<_> =
                    ranks.flat_map(|rank| plan.keeps(rank, iteration)).copied().collect();
                prop_assert_eq!(&keeps, &naive.keeps);
                for node in 0..nodes {
                    let mut planned = plan.evictions(node, iteration).to_vec();
                    planned.sort_unstable();
                    prop_assert_eq!(planned, of_node(&naive.evictions, node));
                    let mut planned = plan.fetches(node, iteration).to_vec();
                    planned.sort_unstable();
                    prop_assert_eq!(planned, of_node(&naive.fetches, node));
                }
            }
        }
    }

    /// Carrying the plan out gives the contents that it speaks of, and fits.
    #[test]
    fn keeps_fetches_and_evictions_add_up(
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
        let cache_tiers = &job.system.tiers[1..];
        let room = |node| cache_tiers.iter().map(|tier| tier.capacity_of(node).0).collect();
        let mut free: Vec<Vec<u64>> = (0..nodes).map(room).collect();
        let mut held = std::collections::BTreeSet::<(SampleId, NodeId, TierId)>::new();
        for plan in plans(job.clone(), by_distance, 4) {
            for iteration in 0..job.stream.iterations() {
                for rank in 0..job.system.ranks() {
                    let here = job.system.node_of(rank);
                    let batch = plan.samples(rank, iteration).iter();
                    for (&k, &holder) in batch.zip(plan.holders(rank, iteration)) {
                        let holders = held.iter().filter(|(of, ..)| *of == k);
                        let holders: Vec<_> = holders.map(|&(_, node, tier)| (node, tier)).collect();
                        let own = holders.iter().find(|(node, _)| *node == here);
                        prop_assert!(own.is_none() || holder.get() == own.copied());
                        prop_assert_eq!(holder.get().is_none(), holders.is_empty());
                        prop_assert!(holder.get().is_none_or(|copy| holders.contains(&copy)));
                    }
                }
                for node in 0..nodes {
                    for &(k, tier) in plan.evictions(node, iteration) {
                        prop_assert!(held.remove(&(k, node, tier)));
                        free[node as usize][tier as usize - 1] += job.sizes.get(k);
                    }
                }
                let mut put = |k: SampleId, node: NodeId, tier: TierId| {
                    let room = &mut free[node as usize][tier as usize - 1];
                    let fits = *room >= job.sizes.get(k) && held.insert((k, node, tier));
                    *room = room.saturating_sub(job.sizes.get(k));
                    fits
                };
                for rank in 0..job.system.ranks() {
                    let node = job.system.node_of(rank);
                    let batch = plan.samples(rank, iteration).iter();
                    for (&k, &tier) in batch.zip(plan.keeps(rank, iteration)) {
                        prop_assert!(tier == 0 || put(k, node, tier));
                    }
                }
                for node in 0..nodes {
                    for &(k, tier) in plan.fetches(node, iteration) {
                        prop_assert!(put(k, node, tier));
                    }
                }
            }
        }
    }
}

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

/// The samples that each node uses in each iteration.
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

//! `lobster`: a node-local cache shared by co-located ranks, a distributed cache of
//! all nodes, eviction by reuse distance, and threads that follow the load.
//!
//! Knows the orders of this epoch and the next, hence what every node uses again and when. From
//! that each process computes, in logical time, what every node's cache holds before each step
//! ([`contents`]), without messages. Samples are staged in access order from the local cache, from
//! the node that holds them, or from the source, and stay cached after use as the eviction rules
//! say; prefetchers use the space that these free. In every step the node's threads are assigned to its ranks by where their next batches come
//! from ([`threads`], the paper's Algorithm 1). Costs about S − N·D source bytes an epoch; which
//! rank reads them is random, and the threads compensate for it.
//!
//! Both parts can be switched off, as in the paper's ablation. Without `eviction` the cache takes
//! in what is read and drops what was used longest ago. Without `threads` duties are fixed as in
//! DALI, on which the paper's runtime is built and with which its ablation compares.

mod contents;
mod measured;
mod threads;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::holdings::Holdings;
use super::{
    Actions, Event, Evict, Fetch, FixedDuties, Keep, Load, LoadFrom, NodeId, Policy, PolicyPlan,
    ThreadAssignment, TierId,
};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::{EpochOrder, SampleId, Step};
use contents::{Contents, EpochPlan, Holder};
use measured::MeasuredAssigner;
use threads::Assigner;

#[derive(Clone, Copy, Debug)]
pub struct LobsterOptions {
    pub threads: bool,
    pub eviction: bool,
    pub tau: Seconds,
}

#[derive(Debug)]
pub struct Lobster {
    job: Arc<Job>,
    options: LobsterOptions,
    contents: Mutex<Contents>,
    /// The epochs that are being consumed, staged and prepared.
    plans: Mutex<VecDeque<Arc<EpochPlan>>>,
}

impl Lobster {
    pub fn new(job: &Arc<Job>, options: LobsterOptions) -> Self {
        let contents = Mutex::new(Contents::new(job, options.eviction));
        Self { job: job.clone(), options, contents, plans: Mutex::default() }
    }

    fn epoch(&self, epoch: u32) -> Option<Arc<EpochPlan>> {
        // Plans are pushed whole: a poisoned lock still guards complete ones.
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.iter().find(|plan| plan.epoch == epoch).cloned()
    }
}

impl PolicyPlan for Lobster {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        let assigner =
            self.options.threads.then(|| Assigner::new(&self.job, self.options.tau)).flatten();
        Box::new(LobsterNode {
            id: node,
            held: Holdings::new(&self.job, node),
            ring: Bits::new(self.job.sizes.len()),
            plans: [None, None],
            cleaned: None,
            assigned: None,
            assigner,
            fetches: vec![VecDeque::new(); self.job.system.tiers.len()],
            coming: HashMap::new(),
            measured: self.options.threads.then(|| MeasuredAssigner::new(self.options.tau)),
            plan: self,
        })
    }

    fn begin_epoch(&self, epoch: u32, order: &Arc<EpochOrder>, next: Option<&Arc<EpochOrder>>) {
        let plan = {
            let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::new(contents.epoch(epoch, order, next))
        };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() == 3 {
            plans.pop_front();
        }
        plans.push_back(plan);
    }

    /// What a prefetcher reads by then has been read: staging waits for it.
    fn waits_for_fetches(&self) -> bool {
        true
    }

    fn threads(&self) -> ThreadAssignment {
        let duties = (!self.options.threads).then_some(FixedDuties::DALI);
        FixedDuties::assignment(duties, &self.job).unwrap_or(ThreadAssignment::PerRank)
    }
}

struct LobsterNode {
    id: NodeId,
    held: Holdings,
    /// What this node's ring holds.
    ring: Bits,
    /// The plans of even and odd epochs.
    plans: [Option<Arc<EpochPlan>>; 2],
    /// The last step whose evictions were carried out.
    cleaned: Option<Step>,
    /// The last step whose threads were assigned.
    assigned: Option<Step>,
    /// Assigns by the rates of the system, until there are measurements.
    assigner: Option<Assigner>,
    /// By tier: what its prefetcher is still to fetch, and what no longer.
    fetches: Vec<VecDeque<SampleId>>,
    /// Samples that are to be fetched, and have not arrived.
    coming: HashMap<SampleId, Coming>,
    measured: Option<MeasuredAssigner>,
    plan: Arc<Lobster>,
}

/// How a sample that was to be fetched comes into its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coming {
    /// Its prefetcher has not begun.
    Waiting(TierId),
    /// Its prefetcher reads it.
    Reading,
    /// Staging was first, and it goes from the ring to the tier.
    Staged(TierId),
}

impl LobsterNode {
    fn epoch(&mut self, epoch: u32) -> Option<Arc<EpochPlan>> {
        let slot = &mut self.plans[epoch as usize % 2];
        if slot.as_ref().is_none_or(|plan| plan.epoch != epoch) {
            *slot = self.plan.epoch(epoch);
        }
        slot.clone()
    }

    fn place(&self, holder: Holder, sample: SampleId) -> LoadFrom {
        match holder.get() {
            None => LoadFrom::Source,
            Some((node, tier)) if node == self.id => match self.held.tier_of(sample) {
                Some(tier) => LoadFrom::Local(tier),
                // Planned, and in the ring on its way to the tier.
                None if self.ring.contains(sample) => LoadFrom::Local(tier),
                None if self.coming.get(&sample) == Some(&Coming::Reading) => LoadFrom::Local(tier),
                // Planned, but another rank of this node has not staged it yet, or it is yet to be
                // fetched.
                None => LoadFrom::Source,
            },
            Some((node, tier)) => LoadFrom::Peer(node, tier),
        }
    }

    fn stage(&mut self, rank: u32, step: Step, samples: &[SampleId], actions: &mut Actions) {
        let Some(plan) = self.epoch(step.epoch) else {
            actions.loads.extend(samples.iter().map(|&k| Load::from_source(k)));
            return;
        };
        let is_measured = self.measured.as_ref().is_some_and(MeasuredAssigner::has_answered);
        if self.assigned < Some(step)
            && !is_measured
            && let Some(assigner) = &mut self.assigner
        {
            self.assigned = Some(step);
            actions.threads = assigner.assign(&self.plan.job, self.id, step, &plan);
        }
        let holders = plan.holders(rank, step.iteration);
        for (&sample, &holder) in samples.iter().zip(holders) {
            actions.loads.push(Load::from(sample, self.place(holder, sample)));
        }
        for &sample in samples {
            self.ring.insert(sample);
            if let Some(coming) = self.coming.get_mut(&sample)
                && let Coming::Waiting(tier) = *coming
            {
                *coming = Coming::Staged(tier);
            }
        }
    }

    fn consumed(&mut self, rank: u32, step: Step, samples: &[SampleId], actions: &mut Actions) {
        let Some(plan) = self.epoch(step.epoch) else { return };
        let sizes = &self.plan.job.sizes;
        // All of a step's evictions come first: its keeps need the space.
        if self.cleaned != Some(step) {
            self.cleaned = Some(step);
            for &(sample, tier) in plan.evictions(self.id, step.iteration) {
                // What has not arrived is dropped when it does.
                if self.coming.remove(&sample).is_none() {
                    self.held.remove(tier, sample, sizes.get(sample));
                    actions.evictions.push(Evict { sample, tier });
                }
            }
            for &(sample, tier) in plan.fetches(self.id, step.iteration) {
                let coming = match self.ring.contains(sample) {
                    true => Coming::Staged(tier),
                    false => Coming::Waiting(tier),
                };
                self.coming.insert(sample, coming);
                self.fetches[usize::from(tier)].push_back(sample);
            }
        }
        let keeps = plan.keeps(rank, step.iteration);
        for (&sample, &tier) in samples.iter().zip(keeps) {
            self.ring.remove(sample);
            let tier = match self.coming.get(&sample) {
                Some(&Coming::Staged(tier)) => {
                    self.coming.remove(&sample);
                    tier
                }
                _ => tier,
            };
            if tier != 0 {
                self.held.put(tier, sample, sizes.get(sample));
                actions.keeps.push(Keep { sample, node: self.id, tier });
            }
        }
    }
}

impl LobsterNode {
    fn fetch(&mut self, tier: TierId, limit: usize, actions: &mut Actions) {
        while actions.fetches.len() < limit
            && let Some(sample) = self.fetches[usize::from(tier)].pop_front()
        {
            if let Some(coming) = self.coming.get_mut(&sample)
                && *coming == Coming::Waiting(tier)
            {
                *coming = Coming::Reading;
                actions.fetches.push(Fetch { sample });
            }
        }
    }

    fn fetched(&mut self, tier: TierId, sample: SampleId, actions: &mut Actions) {
        match self.coming.remove(&sample) {
            Some(_) => self.held.put(tier, sample, self.plan.job.sizes.get(sample)),
            None => actions.evictions.push(Evict { sample, tier }),
        }
    }
}

impl Policy for LobsterNode {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { rank, step, samples } => self.stage(rank, step, samples, actions),
            Event::Consumed { rank, step, samples } => self.consumed(rank, step, samples, actions),
            Event::Missed { sample, .. } => actions.loads.push(Load::from_source(sample)),
            Event::Idle { tier, limit } => self.fetch(tier, limit, actions),
            Event::Fetched { tier, sample } => self.fetched(tier, sample, actions),
            Event::Measured(now) => {
                actions.threads = self.measured.as_mut().and_then(|measured| measured.assign(now));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{Driver, job};
    use crate::sampler::{AccessStream, Order, StreamConfig};

    const ALL: LobsterOptions =
        LobsterOptions { threads: true, eviction: true, tau: Seconds(0.001) };

    fn shuffled(capacity: u64, epochs: u32) -> Arc<Job> {
        let mut job = job(40, 2, 2, &[capacity]);
        let config = StreamConfig { order: Order::Torch, ..job.stream.config().clone() };
        job.stream = AccessStream::new(config).unwrap();
        job.epochs = Some(epochs);
        Arc::new(job)
    }

    /// Plays a run; returns the loads from the source by epoch.
    fn play(job: &Arc<Job>, options: LobsterOptions) -> Vec<usize> {
        let plan: Arc<dyn PolicyPlan> = Arc::new(Lobster::new(job, options));
        let mut nodes = [0, 1].map(|node| Driver::new(&plan, node));
        let mut held = [Bits::new(40), Bits::new(40)];
        let epochs = job.epochs.unwrap();
        let mut read = vec![];
        for epoch in 0..epochs {
            let order = Arc::new(job.stream.epoch(epoch));
            let next = (epoch + 1 < epochs).then(|| Arc::new(job.stream.epoch(epoch + 1)));
            plan.begin_epoch(epoch, &order, next.as_ref());
            let mut from_source = 0;
            for iteration in 0..order.iterations() {
                let batch = |rank| order.batch(rank, iteration).collect::<Vec<_>>();
                for rank in 0..4 {
                    let node = rank as usize / 2;
                    for load in nodes[node].stage(rank, (epoch, iteration), &batch(rank)) {
                        match load.from {
                            LoadFrom::Source => from_source += 1,
                            LoadFrom::Local(1) => assert!(held[node].contains(load.sample)),
                            LoadFrom::Peer(peer, 1) => {
                                assert!(peer as usize != node);
                                assert!(held[peer as usize].contains(load.sample), "{load:?}");
                            }
                            other => panic!("{other:?}"),
                        }
                    }
                }
                for rank in 0..4 {
                    let node = rank as usize / 2;
                    let actions = nodes[node].consumed(rank, (epoch, iteration), &batch(rank));
                    for evict in &actions.evictions {
                        assert!(held[node].remove(evict.sample), "{evict:?} is not held");
                    }
                    for keep in &actions.keeps {
                        assert!(held[node].insert(keep.sample), "{keep:?} is held already");
                    }
                    let capacity = job.system.tiers[1].capacity.0 as usize / 10;
                    assert!(held[node].count() <= capacity);
                }
            }
            read.push(from_source);
        }
        read
    }

    #[test]
    fn a_cache_of_the_whole_dataset_reads_the_source_only_in_the_first_epoch() {
        assert_eq!(play(&shuffled(400, 4), ALL), [40, 0, 0, 0]);
    }

    #[test]
    fn in_a_small_cache_every_action_can_be_carried_out() {
        for eviction in [true, false] {
            let read = play(&shuffled(100, 5), LobsterOptions { eviction, ..ALL });
            assert_eq!(read[0], 40);
            // Two nodes of ten: twenty of forty can be held.
            assert!(read[1..].iter().all(|&later| (20..40).contains(&later)), "{read:?}");
        }
    }

    #[test]
    fn an_epoch_that_was_not_begun_is_read_from_the_source() {
        let plan: Arc<dyn PolicyPlan> = Arc::new(Lobster::new(&shuffled(400, 2), ALL));
        let mut node = Driver::new(&plan, 0);
        assert_eq!(node.stage(0, (1, 0), &[7]), [Load::from_source(7)]);
        assert!(node.consumed(0, (1, 0), &[7]).keeps.is_empty());
        let missed = node.on(Event::Missed { rank: 0, sample: 7, peer: 1 });
        assert_eq!(missed.loads, [Load::from_source(7)]);
    }

    #[test]
    fn threads_are_dalis_unless_they_follow_the_load() {
        let job = shuffled(400, 2);
        let dali = Lobster::new(&job, LobsterOptions { threads: false, ..ALL }).threads();
        assert_eq!(dali, ThreadAssignment::Split { loading: vec![3.0, 3.0], preprocessing: 2.0 });
        assert_eq!(Lobster::new(&job, ALL).threads(), ThreadAssignment::PerRank);
    }

    #[test]
    fn threads_are_assigned_with_the_first_batch_of_a_step_and_when_they_change() {
        let job = shuffled(400, 2);
        let lobster = Lobster::new(&job, ALL);
        let order = Arc::new(job.stream.epoch(0));
        lobster.begin_epoch(0, &order, Some(&Arc::new(job.stream.epoch(1))));
        let plan: Arc<dyn PolicyPlan> = Arc::new(lobster);
        let mut node = Driver::new(&plan, 0);
        let mut assigned = |rank, iteration| {
            let batch: Vec<_> = order.batch(rank, iteration).collect();
            node.stage(rank, (0, iteration), &batch);
            node.actions.threads.is_some()
        };
        let steps = [(0, 0), (1, 0), (0, 1), (1, 1)].map(|(rank, at)| assigned(rank, at));
        assert_eq!(steps, [true, false, false, false]);
    }

    #[test]
    fn a_sample_on_its_way_through_the_ring_is_read_from_the_tier_it_goes_to() {
        let mut job = job(4, 1, 1, &[400]);
        job.epochs = Some(2);
        let job = Arc::new(job);
        let lobster = Lobster::new(&job, ALL);
        let orders = [0, 1].map(|epoch| Arc::new(job.stream.epoch(epoch)));
        lobster.begin_epoch(0, &orders[0], Some(&orders[1]));
        lobster.begin_epoch(1, &orders[1], None);
        let plan: Arc<dyn PolicyPlan> = Arc::new(lobster);
        let mut node = Driver::new(&plan, 0);
        node.stage(0, (0, 0), &[0, 1]);
        assert_eq!(node.stage(0, (1, 0), &[0])[0].from, LoadFrom::Local(1));
        // Planned, but its first use is not even staged.
        assert_eq!(node.stage(0, (1, 1), &[2])[0].from, LoadFrom::Source);
    }

    #[test]
    fn three_epochs_are_remembered() {
        let job = shuffled(400, 9);
        let lobster = Lobster::new(&job, ALL);
        for epoch in 0..6 {
            let order = Arc::new(job.stream.epoch(epoch));
            lobster.begin_epoch(epoch, &order, Some(&Arc::new(job.stream.epoch(epoch + 1))));
        }
        let there = [0, 1, 2, 3, 4, 5, 6].map(|epoch| lobster.epoch(epoch).is_some());
        assert_eq!(there, [false, false, false, true, true, true, false]);
    }
}

//! `locality-aware`: each batch is split by where its samples are.
//!
//! Knows which node holds which sample (each preloads its share of the dataset into RAM, as much as
//! fits) and the global batches. In every step the samples of the global batch go to ranks of the
//! node that holds them. A node's surplus, and samples that no node holds, fill up the other local
//! batches, so that all keep their sizes. Every sample is still delivered once an epoch, in the
//! same step, but perhaps to another rank. Costs S − N·`d_1` source bytes an epoch, and the network
//! only for the imbalance.
//!
//! Where every rank reads the whole batch there is nothing to split.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::shards::Shards;
use super::{Actions, Event, Load, NodeId, Policy, PolicyPlan, Preload, RankId};
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::{EpochOrder, SampleId, Scheme, Step};

/// Split steps that are kept for ranks that lag behind; older ones are split again.
const KEPT_STEPS: usize = 64;

#[derive(Debug)]
pub struct LocalityAware {
    job: Arc<Job>,
    shards: Shards,
    /// Both change how long an answer takes, never what it is.
    memory: Mutex<DealtEpochs>,
}

#[derive(Debug, Default)]
struct DealtEpochs {
    orders: VecDeque<(u32, Arc<EpochOrder>)>,
    dealt: VecDeque<Dealt>,
    /// Scratch: the samples of a global batch by node; the last list is for those whose holder's
    /// batch is full, or that have no holder.
    by_node: Vec<Vec<SampleId>>,
}

/// One global batch, split over ranks.
#[derive(Debug)]
struct Dealt {
    step: Step,
    /// Rank after rank.
    samples: Vec<SampleId>,
    /// Ranks that have not asked yet.
    left: u32,
}

impl LocalityAware {
    pub fn new(job: &Arc<Job>) -> Self {
        let shards = Shards::new(job, vec![1]);
        Self { job: job.clone(), shards, memory: Mutex::default() }
    }

    /// Appends the loads of one rank in one step.
    fn loads(&self, node: NodeId, rank: RankId, step: Step, loads: &mut Vec<Load>) {
        // Nothing is ever half done under this lock.
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match memory.dealt.iter().position(|dealt| dealt.step == step) {
            Some(at) => at,
            None => self.deal(&mut memory, step),
        };
        let layout = self.job.stream.layout();
        let start: usize = (0..rank).map(|r| layout.batch_len(r, step.iteration) as usize).sum();
        let count = layout.batch_len(rank, step.iteration) as usize;
        let dealt = &mut memory.dealt[at];
        let samples = &dealt.samples[start..start + count];
        loads.extend(samples.iter().map(|&k| Load::from(k, self.shards.place(node, k))));
        dealt.left -= 1;
        if dealt.left == 0 {
            memory.dealt.remove(at);
        }
    }

    /// Splits a step; returns its index in `dealt`.
    fn deal(&self, memory: &mut DealtEpochs, step: Step) -> usize {
        let order = memory.order(&self.job, step.epoch);
        let system = &self.job.system;
        let nodes = system.nodes as usize;
        let layout = self.job.stream.layout();
        let by_node = &mut memory.by_node;
        by_node.resize(nodes + 1, vec![]);
        by_node.iter_mut().for_each(Vec::clear);
        let capacity = |node: usize| -> usize {
            let first = node as u32 * system.ranks_per_node;
            let ranks = first..first + system.ranks_per_node;
            ranks.map(|rank| layout.batch_len(rank, step.iteration) as usize).sum()
        };
        let capacities: Vec<usize> = (0..nodes).map(capacity).collect();
        for rank in 0..system.ranks() {
            for sample in order.batch(rank, step.iteration) {
                let node = match self.shards.holder(sample) {
                    Some((node, _)) if by_node[node as usize].len() < capacities[node as usize] => {
                        node
                    }
                    _ => nodes as NodeId,
                };
                by_node[node as usize].push(sample);
            }
        }
        let mut samples = Vec::with_capacity(capacities.iter().sum());
        for (node, &capacity) in capacities.iter().enumerate() {
            let (own, rest) = by_node.split_at_mut(nodes);
            let missing = rest[0].len() - (capacity - own[node].len());
            own[node].extend(rest[0].drain(missing..));
            samples.append(&mut own[node]);
        }
        let dealt = Dealt { step, samples, left: system.ranks() };
        if memory.dealt.len() == KEPT_STEPS {
            memory.dealt.pop_front();
        }
        memory.dealt.push_back(dealt);
        memory.dealt.len() - 1
    }
}

impl DealtEpochs {
    fn order(&mut self, job: &Job, epoch: u32) -> Arc<EpochOrder> {
        match self.orders.iter().find(|(of, _)| *of == epoch) {
            Some((_, order)) => order.clone(),
            None => self.remember(epoch, Arc::new(job.stream.epoch(epoch))),
        }
    }

    fn remember(&mut self, epoch: u32, order: Arc<EpochOrder>) -> Arc<EpochOrder> {
        // Staging reaches less than an epoch ahead, and one more is begun early.
        if self.orders.len() == 3 {
            self.orders.pop_front();
        }
        self.orders.push_back((epoch, order.clone()));
        order
    }
}

impl PolicyPlan for LocalityAware {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(DealtBatches { node, plan: self })
    }

    fn preload(&self) -> Preload {
        self.shards.preload()
    }

    fn begin_epoch(&self, epoch: u32, order: &Arc<EpochOrder>, _next: Option<&Arc<EpochOrder>>) {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.remember(epoch, order.clone());
    }

    fn keeps_order(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct DealtBatches {
    node: NodeId,
    plan: Arc<LocalityAware>,
}

impl Policy for DealtBatches {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. }
                if self.plan.job.stream.config().scheme == Scheme::Whole =>
            {
                let place = |&k| Load::from(k, self.plan.shards.place(self.node, k));
                actions.loads.extend(samples.iter().map(place));
            }
            Event::Stage { rank, step, .. } => {
                self.plan.loads(self.node, rank, step, &mut actions.loads);
            }
            Event::Missed { sample, .. } => actions.loads.push(Load::from_source(sample)),
            Event::Consumed { .. }
            | Event::Idle { .. }
            | Event::Fetched { .. }
            | Event::Measured(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::LoadFrom;
    use crate::policy::testing::{Driver, job};
    use crate::sampler::{AccessStream, Order, StreamConfig};

    fn shuffled(mut job: Job, scheme: Scheme) -> Arc<Job> {
        let config = job.stream.config().clone();
        let config = StreamConfig { order: Order::Permutation, scheme, ..config };
        job.stream = AccessStream::new(config).unwrap();
        Arc::new(job)
    }

    #[test]
    fn each_node_preloads_its_share_and_ranks_get_other_samples_than_the_streams() {
        let plan = LocalityAware::new(&Arc::new(job(8, 2, 1, &[30])));
        assert_eq!(plan.preload().nodes[1], [(4, 1), (5, 1), (6, 1)]);
        assert!(!plan.keeps_order());
    }

    #[test]
    fn where_all_ranks_read_the_whole_batch_nothing_is_moved() {
        let job = shuffled(job(8, 2, 1, &[40]), Scheme::Whole);
        let plan: Arc<dyn PolicyPlan> = Arc::new(LocalityAware::new(&job));
        let loads = Driver::new(&plan, 1).stage(1, (0, 0), &[5, 0]);
        assert_eq!(loads, [Load::from(5, LoadFrom::Local(1)), Load::from(0, LoadFrom::Peer(0, 1))]);
    }

    proptest! {
        /// Also if one rank is far behind the others, or an epoch begins while another is read.
        #[test]
        fn every_step_delivers_its_global_batch_and_keeps_local_what_fits(
            (nodes, ranks) in (1u32..4, 1u32..4),
            samples in 12u32..400,
            capacity in 0u64..1500,
            behind in 0usize..3,
            uneven: bool,
        ) {
            let scheme = if uneven { Scheme::Imbalanced } else { Scheme::Uniform };
            let job = shuffled(job(samples, nodes, ranks, &[capacity]), scheme);
            let plan = Arc::new(LocalityAware::new(&job));
            let shared: Arc<dyn PolicyPlan> = plan.clone();
            let mut drivers: Vec<_> = (0..nodes).map(|node| Driver::new(&shared, node)).collect();
            let orders: Vec<_> = (0..2).map(|epoch| Arc::new(job.stream.epoch(epoch))).collect();
            for (epoch, order) in orders.iter().enumerate() {
                shared.begin_epoch(epoch as u32, order, None);
            }
            prop_assert_eq!(lock_of(&plan).orders.len(), 2, "they are made once");
            let steps: Vec<(u32, u32)> = (0..2)
                .flat_map(|epoch| (0..job.stream.iterations()).map(move |at| (epoch, at)))
                .collect();
            let mut loads = vec![vec![vec![]; job.system.ranks() as usize]; steps.len()];
            let last = job.system.ranks() - 1;
            // The last rank asks in the order of the epochs backwards, or after all others.
            for (at, &step) in steps.iter().enumerate() {
                for rank in (0..=last).filter(|&rank| behind == 0 || rank < last) {
                    let driver = &mut drivers[job.system.node_of(rank) as usize];
                    loads[at][rank as usize] = driver.stage(rank, step, &[]);
                }
                if behind == 0 {
                    prop_assert!(lock_of(&plan).dealt.is_empty(), "all have asked");
                }
            }
            let mut late: Vec<_> = (0..steps.len()).filter(|_| behind > 0).collect();
            if behind == 2 {
                late.reverse();
            }
            for at in late {
                let driver = &mut drivers[nodes as usize - 1];
                loads[at][last as usize] = driver.stage(last, steps[at], &[]);
            }
            prop_assert!(lock_of(&plan).dealt.len() <= KEPT_STEPS);
            for (at, &(epoch, iteration)) in steps.iter().enumerate() {
                let order = &orders[epoch as usize];
                let mut all: Vec<SampleId> =
                    (0..=last).flat_map(|rank| order.batch(rank, iteration)).collect();
                let mut room = vec![0; nodes as usize];
                let mut local = vec![0; nodes as usize];
                let mut dealt = vec![];
                for rank in 0..=last {
                    let of = &loads[at][rank as usize];
                    let node = job.system.node_of(rank);
                    prop_assert_eq!(of.len(), order.batch(rank, iteration).count());
                    room[node as usize] += of.len();
                    for load in of {
                        prop_assert_eq!(load.from, plan.shards.place(node, load.sample));
                        local[node as usize] += usize::from(load.from == LoadFrom::Local(1));
                        dealt.push(load.sample);
                    }
                }
                for node in 0..nodes {
                    let here = |&&sample: &&SampleId| {
                        plan.shards.holder(sample).is_some_and(|(holder, _)| holder == node)
                    };
                    let held = all.iter().filter(here).count();
                    prop_assert_eq!(local[node as usize], held.min(room[node as usize]));
                }
                all.sort_unstable();
                dealt.sort_unstable();
                prop_assert_eq!(dealt, all);
            }
        }
    }

    fn lock_of(plan: &LocalityAware) -> std::sync::MutexGuard<'_, DealtEpochs> {
        plan.memory.lock().unwrap()
    }

    #[test]
    fn orders_of_three_epochs_and_64_steps_are_kept() {
        let job = shuffled(job(300, 1, 2, &[40]), Scheme::Uniform);
        let plan = LocalityAware::new(&job);
        for epoch in 0..5 {
            let _ = lock_of(&plan).order(&job, epoch);
        }
        let kept: Vec<u32> = lock_of(&plan).orders.iter().map(|(epoch, _)| *epoch).collect();
        assert_eq!(kept, [2, 3, 4]);
        for iteration in 0..70 {
            plan.loads(0, 0, Step { epoch: 4, iteration }, &mut vec![]);
        }
        let dealt: Vec<u32> = lock_of(&plan).dealt.iter().map(|of| of.step.iteration).collect();
        assert_eq!(dealt, (6..70).collect::<Vec<_>>());
    }

    #[test]
    fn samples_go_to_their_holder_and_the_rest_is_balanced() {
        // Node 0 holds 0..4 and node 1 holds 4..7; the first step is 0, 1, 2, 3.
        let plan: Arc<dyn PolicyPlan> =
            Arc::new(LocalityAware::new(&Arc::new(job(8, 2, 1, &[40]))));
        let first = Driver::new(&plan, 0).stage(0, (0, 0), &[0, 2]);
        let second = Driver::new(&plan, 1).stage(1, (0, 0), &[1, 3]);
        assert!(first.iter().all(|load| load.from == LoadFrom::Local(1)));
        assert!(second.iter().all(|load| load.from == LoadFrom::Peer(0, 1)));
        let mut all: Vec<_> = first.iter().chain(&second).map(|load| load.sample).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
    }

    #[test]
    fn a_shuffled_batch_stays_local_where_it_can() {
        let mut job = job(64, 2, 1, &[320]);
        let config = crate::sampler::StreamConfig {
            batch: 32,
            order: crate::sampler::Order::Permutation,
            ..job.stream.config().clone()
        };
        job.stream = crate::sampler::AccessStream::new(config).unwrap();
        let job = Arc::new(job);
        let plan: Arc<dyn PolicyPlan> = Arc::new(LocalityAware::new(&job));
        let loads = Driver::new(&plan, 0).stage(0, (0, 0), &[0; 16]);
        let held = job.stream.epoch(0).samples()[..32].iter().filter(|&&k| k < 32).count();
        let local = loads.iter().filter(|load| load.from == LoadFrom::Local(1)).count();
        assert_eq!(local, held.min(16));
    }
}

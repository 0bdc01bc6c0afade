//! `deepio-opportunistic`: batches of the samples that the node's RAM holds.
//!
//! Knows only its own RAM, filled with its share of the dataset before training. Each rank goes
//! through what its node holds, in a new random order for each epoch, again from the start when it
//! runs out. Never touches source or network after the preload. But the order is not the sampler's,
//! and samples that no node holds are never delivered.

use std::sync::Arc;

use super::shards::Shards;
use super::{Actions, Event, Load, LoadFrom, NodeId, Policy, PolicyPlan, Preload, RankId};
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::{Permutation, SampleId};

#[derive(Debug)]
pub struct DeepioOpportunistic {
    job: Arc<Job>,
    shards: Arc<Shards>,
}

impl DeepioOpportunistic {
    pub fn new(job: &Arc<Job>) -> Self {
        Self { job: job.clone(), shards: Arc::new(Shards::new(job, vec![1])) }
    }
}

impl PolicyPlan for DeepioOpportunistic {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(OwnShard::new(&self.job, self.shards.clone(), node))
    }

    fn preload(&self) -> Preload {
        self.shards.preload()
    }

    fn keeps_order(&self) -> bool {
        false
    }
}

/// Reads only what its node holds.
#[derive(Debug)]
pub struct OwnShard {
    shards: Arc<Shards>,
    seed: u64,
    ranks_per_node: u32,
    /// First held sample and how many follow.
    first: SampleId,
    held: u64,
    /// By local rank.
    cursors: Vec<Cursor>,
}

/// A rank's position in its epoch's order of the held samples.
#[derive(Clone, Debug)]
struct Cursor {
    epoch: u32,
    order: Permutation,
    /// The next position; co-located ranks take turns.
    next: u64,
}

impl OwnShard {
    pub fn new(job: &Job, shards: Arc<Shards>, node: NodeId) -> Self {
        let range = shards.held(node);
        // Nodes hold different samples, so one seed for all is enough.
        let seed = job.stream.config().seed;
        let held = range.len() as u64;
        let cursor =
            |rank| Cursor { epoch: 0, order: Permutation::new(held.max(1), seed, 0), next: rank };
        let ranks_per_node = job.system.ranks_per_node;
        let cursors = (0..u64::from(ranks_per_node)).map(cursor).collect();
        Self { shards, seed, ranks_per_node, first: range.start, held, cursors }
    }

    fn next(&mut self, rank: RankId, epoch: u32) -> Load {
        let local = rank % self.ranks_per_node;
        let cursor = &mut self.cursors[local as usize];
        if cursor.epoch != epoch {
            cursor.epoch = epoch;
            cursor.order = Permutation::new(self.held, self.seed, u64::from(epoch));
            cursor.next = u64::from(local);
        }
        let at = cursor.order.forward(cursor.next % self.held);
        cursor.next += u64::from(self.ranks_per_node);
        let sample = self.first + at as SampleId;
        let tier = self.shards.holder(sample).map_or(1, |(_, tier)| tier);
        Load::from(sample, LoadFrom::Local(tier))
    }
}

impl Policy for OwnShard {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            // A node that holds nothing still delivers batches.
            Event::Stage { samples, .. } if self.held == 0 => {
                actions.loads.extend(samples.iter().map(|&k| Load::from_source(k)));
            }
            Event::Stage { rank, step, samples } => {
                for _ in samples {
                    let load = self.next(rank, step.epoch);
                    actions.loads.push(load);
                }
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
    use super::*;
    use crate::policy::testing::{Driver, job};

    #[test]
    fn co_located_ranks_go_through_the_held_samples_once_then_again() {
        let job = Arc::new(job(16, 2, 2, &[60]));
        let plan: Arc<dyn PolicyPlan> = Arc::new(DeepioOpportunistic::new(&job));
        let mut driver = Driver::new(&plan, 1);
        let mut seen: Vec<SampleId> = vec![];
        for iteration in 0..2 {
            for rank in [2, 3] {
                let loads = driver.stage(rank, (0, iteration), &[0, 1]);
                assert!(loads.iter().all(|load| load.from == LoadFrom::Local(1)));
                seen.extend(loads.iter().map(|load| load.sample));
            }
        }
        // Six are held and eight were asked for: all of them once, two of them again.
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [8, 9, 10, 11, 12, 13]);
    }

    #[test]
    fn the_share_is_preloaded_and_a_node_without_one_reads_the_source() {
        let plan: Arc<dyn PolicyPlan> =
            Arc::new(DeepioOpportunistic::new(&Arc::new(job(8, 2, 1, &[20]))));
        assert_eq!(plan.preload().nodes[1], [(4, 1), (5, 1)]);
        assert!(!plan.keeps_order());
        let plan: Arc<dyn PolicyPlan> =
            Arc::new(DeepioOpportunistic::new(&Arc::new(job(8, 2, 1, &[]))));
        let loads = Driver::new(&plan, 0).stage(0, (0, 0), &[6, 1]);
        assert_eq!(loads, [6, 1].map(Load::from_source));
    }

    #[test]
    fn epochs_differ() {
        let job = Arc::new(job(64, 1, 1, &[640]));
        let plan: Arc<dyn PolicyPlan> = Arc::new(DeepioOpportunistic::new(&job));
        let mut driver = Driver::new(&plan, 0);
        let first = driver.stage(0, (0, 0), &[0; 20]);
        assert_ne!(first, driver.stage(0, (1, 0), &[0; 20]));
    }
}

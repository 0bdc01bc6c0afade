//! Threads for the next batches of a node's ranks (the paper's sections 4.1 to 4.4).

use super::contents::EpochPlan;
use crate::job::Job;
use crate::model::lobster::{
    BatchBytes, LoadingThreads, ReadRates, StageThreads, assign_threads, loading_time,
    preprocessing_threads, time_difference,
};
use crate::model::{Bytes, Pipeline, Readers, Seconds};
use crate::policy::{NodeId, Threads};
use crate::sampler::Step;

#[derive(Debug)]
pub struct Assigner {
    rates: ReadRates,
    tau: Seconds,
    /// `p_0` of the node.
    total: u32,
    /// Whether both stages take their threads from one pool.
    one_pool: bool,
    /// What the world was told last.
    last: Option<(Vec<u32>, u32)>,
    // Reused from step to step.
    batches: Vec<BatchBytes>,
    pending: Vec<u32>,
}

impl Assigner {
    /// `None` where there are too few threads to give each rank one and preprocess.
    pub fn new(job: &Job, tau: Seconds) -> Option<Self> {
        let system = &job.system;
        let total = system.staging_threads();
        let one_pool = system.pipeline == Pipeline::Serial;
        if total < system.ranks_per_node + u32::from(one_pool) {
            return None;
        }
        let readers = match system.source.readers {
            Readers::Nodes => system.nodes,
            Readers::Threads => system.nodes * total,
        };
        let tier = usize::from(system.tiers.len() > 1);
        let rates = ReadRates::from_system(system, tier, readers).ok()?;
        Some(Self { rates, tau, total, one_pool, last: None, batches: vec![], pending: vec![] })
    }

    /// The threads for a step, if they change.
    pub fn assign(
        &mut self,
        job: &Job,
        node: NodeId,
        step: Step,
        plan: &EpochPlan,
    ) -> Option<Threads> {
        self.predict(job, node, step, plan);
        let system = &job.system;
        let ranks = self.batches.len() as u32;
        let bytes = |batch: &BatchBytes| batch.local + batch.remote + batch.source;
        let all: Bytes = self.batches.iter().map(bytes).sum();
        // The ranks share the preprocessing threads, each of which does β.
        let preprocess = |threads: u32| all / (system.preprocess * f64::from(threads));
        let load = |batch: &BatchBytes, threads: u32| {
            loading_time(&self.rates, *batch, LoadingThreads::in_turn(threads))
        };
        // Each rank's share of the threads need not be whole: between two counts, the
        // time is too.
        let slowest = |threads: u32| {
            let (each, rest) = (threads / ranks, threads % ranks);
            let share = f64::from(rest) / f64::from(ranks);
            let time = |batch| load(batch, each) * (1.0 - share) + load(batch, each + 1) * share;
            self.batches.iter().map(time).fold(Seconds::ZERO, Seconds::max)
        };
        let train = self
            .batches
            .iter()
            .map(|batch| bytes(batch) / system.compute)
            .fold(Seconds::ZERO, Seconds::max);
        let split = if self.one_pool {
            // β is of one thread, and no peak is known: as many as leave one a rank.
            preprocessing_threads(self.total, self.total - ranks, train, preprocess, slowest)
        } else {
            StageThreads { preprocessing: self.total, loading: self.total }
        };
        let ahead = preprocess(split.preprocessing);
        // The first rank in line wins every tie: take turns, or the same rank falls
        // behind step after step.
        let turn = (step.iteration % ranks) as usize;
        self.pending.rotate_left(turn);
        self.batches.rotate_left(turn);
        let mut loading = assign_threads(&self.pending, split.loading, self.tau, |gpu, threads| {
            let batch = &self.batches[gpu];
            time_difference(load(batch, threads), ahead, bytes(batch) / system.compute)
        });
        give_everyone_one(&mut loading, split.loading);
        loading.rotate_right(turn);
        if self.last.as_ref().is_some_and(|last| *last == (loading.clone(), split.preprocessing)) {
            return None;
        }
        // Threads that nobody needs just now do not idle.
        let spare = f64::from(split.loading - loading.iter().sum::<u32>()) / f64::from(ranks);
        let shares = loading.iter().map(|&threads| f64::from(threads) + spare).collect();
        self.last = Some((loading, split.preprocessing));
        Some(Threads::Split { loading: shares, preprocessing: f64::from(split.preprocessing) })
    }

    /// The bytes of each local rank's batch by where they will come from.
    fn predict(&mut self, job: &Job, node: NodeId, step: Step, plan: &EpochPlan) {
        self.batches.clear();
        self.pending.clear();
        let first = node * job.system.ranks_per_node;
        for rank in first..first + job.system.ranks_per_node {
            let mut batch = BatchBytes::default();
            let samples = plan.samples(rank, step.iteration);
            for (&sample, holder) in samples.iter().zip(plan.holders(rank, step.iteration)) {
                let bytes = Bytes(job.sizes.get(sample));
                match holder.get() {
                    None => batch.source += bytes,
                    Some((holder, _)) if holder == node => batch.local += bytes,
                    Some(_) => batch.remote += bytes,
                }
            }
            self.batches.push(batch);
            self.pending.push(samples.len() as u32);
        }
    }
}

/// A rank without a thread would never be ready.
fn give_everyone_one(threads: &mut [u32], budget: u32) {
    while let Some(poor) = threads.iter().position(|&count| count == 0) {
        if threads.iter().sum::<u32>() >= budget {
            let Some(rich) = threads.iter_mut().max().filter(|count| **count > 1) else { return };
            *rich -= 1;
        }
        threads[poor] = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_goes_without_a_thread() {
        let mut threads = vec![0, 5, 0];
        give_everyone_one(&mut threads, 5);
        assert_eq!(threads, [1, 3, 1]);
        let mut threads = vec![0, 1];
        give_everyone_one(&mut threads, 4);
        assert_eq!(threads, [1, 1]);
    }
}

//! Threads for the next batches of a node's ranks (Lobster, sections 4.1 to 4.4).

use super::contents::EpochPlan;
use crate::job::Job;
use crate::model::lobster::{
    BatchBytes, LoadingThreads, ReadRates, StageThreads, assign_threads, loading_time,
    preprocessing_threads, time_difference,
};
use crate::model::{Bytes, Pipeline, PreprocessWork, Readers, Seconds};
use crate::policy::{NodeId, ThreadAssignment};
use crate::sampler::Step;

#[derive(Debug)]
pub struct Assigner {
    rates: ReadRates,
    tau: Seconds,
    /// `p_0` of the node.
    total: u32,
    /// Whether both stages take their threads from one pool.
    one_pool: bool,
    /// The last answer.
    last: Option<(Vec<u32>, u32)>,
    // Reused from step to step.
    batches: Vec<NextBatch>,
    pending: Vec<u32>,
    /// What the node preprocesses in the step.
    work: PreprocessWork,
}

/// What is predicted of a rank's next batch.
#[derive(Clone, Copy, Debug)]
struct NextBatch {
    bytes: BatchBytes,
    /// `T_train`.
    train: Seconds,
}

impl Assigner {
    /// Returns `None` where there are too few threads to give each rank one and preprocess.
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
        Some(Self {
            rates,
            tau,
            total,
            one_pool,
            last: None,
            batches: vec![],
            pending: vec![],
            work: PreprocessWork::default(),
        })
    }

    /// Returns the threads for a step, if they change.
    pub fn assign(
        &mut self,
        job: &Job,
        node: NodeId,
        step: Step,
        plan: &EpochPlan,
    ) -> Option<ThreadAssignment> {
        self.predict(job, node, step, plan);
        let system = &job.system;
        let ranks = self.batches.len() as u32;
        // The ranks share the preprocessing threads.
        let preprocess = |threads: u32| system.preparing_time(&self.work, f64::from(threads));
        let load = |batch: &NextBatch, threads: u32| {
            loading_time(&self.rates, batch.bytes, LoadingThreads::in_turn(threads))
        };
        // Each rank's share of the threads need not be whole: between two counts, the
        // time is too.
        let slowest = |threads: u32| {
            let (each, rest) = (threads / ranks, threads % ranks);
            let share = f64::from(rest) / f64::from(ranks);
            let time = |batch| load(batch, each) * (1.0 - share) + load(batch, each + 1) * share;
            self.batches.iter().map(time).fold(Seconds::ZERO, Seconds::max)
        };
        let train = self.batches.iter().map(|batch| batch.train).fold(Seconds::ZERO, Seconds::max);
        let split = if self.one_pool {
            // Where no peak is known, as many as leave one a rank.
            let peak = system.peak_threads(&self.work, self.total - ranks);
            preprocessing_threads(self.total, peak, train, preprocess, slowest)
        } else {
            let preprocessing = system.peak_threads(&self.work, self.total);
            StageThreads { preprocessing, loading: self.total }
        };
        let ahead = preprocess(split.preprocessing);
        // The first rank wins every tie. The order rotates, or the same rank would fall behind
        // step after step.
        let turn = (step.iteration % ranks) as usize;
        self.pending.rotate_left(turn);
        self.batches.rotate_left(turn);
        let mut loading = assign_threads(&self.pending, split.loading, self.tau, |gpu, threads| {
            let batch = &self.batches[gpu];
            time_difference(load(batch, threads), ahead, batch.train)
        });
        give_each_rank_one(&mut loading, split.loading);
        loading.rotate_right(turn);
        if self.last.as_ref().is_some_and(|last| *last == (loading.clone(), split.preprocessing)) {
            return None;
        }
        // Threads that no rank needs in this step are shared by all.
        let spare = f64::from(split.loading - loading.iter().sum::<u32>()) / f64::from(ranks);
        let shares = loading.iter().map(|&threads| f64::from(threads) + spare).collect();
        self.last = Some((loading, split.preprocessing));
        Some(ThreadAssignment::Split {
            loading: shares,
            preprocessing: f64::from(split.preprocessing),
        })
    }

    /// Sums what each local rank's batch needs, its bytes by where they come from.
    fn predict(&mut self, job: &Job, node: NodeId, step: Step, plan: &EpochPlan) {
        self.batches.clear();
        self.pending.clear();
        self.work.clear();
        let system = &job.system;
        let first = node * system.ranks_per_node;
        for rank in first..first + system.ranks_per_node {
            let (mut batch, mut all) = (BatchBytes::default(), Bytes::ZERO);
            let samples = plan.samples(rank, step.iteration);
            for (&sample, holder) in samples.iter().zip(plan.holders(rank, step.iteration)) {
                let bytes = Bytes(job.sizes.get(sample));
                system.preprocess.add(&mut self.work, bytes.0);
                all += bytes;
                match holder.get() {
                    None => batch.source += bytes,
                    Some((holder, _)) if holder == node => batch.local += bytes,
                    Some(_) => batch.remote += bytes,
                }
            }
            let train = system.compute.time(samples.len() as u64, all.as_f64());
            self.batches.push(NextBatch { bytes: batch, train });
            self.pending.push(samples.len() as u32);
        }
    }
}

/// A rank without a thread would never be ready.
pub(super) fn give_each_rank_one(threads: &mut [u32], budget: u32) {
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
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::contents::Contents;
    use super::*;
    use crate::Sizes;
    use crate::model::{ComputeCost, Curve, Portfolio, PreprocessModel, Rate, Sharing};
    use crate::policy::testing::job;
    use crate::sampler::{AccessStream, Order, StreamConfig};

    /// A job of three epochs whose plans are known, in another order each.
    fn shuffled(mut job: Job, sizes: &[u64]) -> (Arc<Job>, Vec<EpochPlan>) {
        job.sizes = Sizes::from_bytes(&sizes[..job.sizes.len() as usize]);
        let config = StreamConfig { order: Order::Permutation, ..job.stream.config().clone() };
        job.stream = AccessStream::new(config).unwrap();
        let job = Arc::new(job);
        let mut contents = Contents::new(&job, true);
        let order = |epoch| Arc::new(job.stream.epoch(epoch));
        let plans = (0..3).map(|at| contents.epoch(at, &order(at), Some(&order(at + 1))));
        let plans = plans.collect();
        (job, plans)
    }

    /// The bytes of a rank's batch, each sample looked up by itself.
    fn batch(job: &Job, plan: &EpochPlan, rank: u32, iteration: u32) -> BatchBytes {
        let from = |wanted: &dyn Fn(Option<NodeId>) -> bool| {
            let samples = plan.samples(rank, iteration).iter();
            samples
                .zip(plan.holders(rank, iteration))
                .filter(|(_, holder)| wanted(holder.get().map(|(node, _)| node)))
                .map(|(&sample, _)| Bytes(job.sizes.get(sample)))
                .sum()
        };
        let node = job.system.node_of(rank);
        BatchBytes {
            local: from(&|holder| holder == Some(node)),
            remote: from(&|holder| holder.is_some_and(|holder| holder != node)),
            source: from(&|holder| holder.is_none()),
        }
    }

    /// The threads of a step, worked out anew: of each rank, and for preprocessing.
    fn naive(job: &Job, tau: Seconds, node: NodeId, step: Step, plan: &EpochPlan) -> Vec<f64> {
        let system = &job.system;
        let (ranks, total) = (system.ranks_per_node, system.staging_threads());
        let rates = Assigner::new(job, tau).unwrap().rates;
        let of = |local: u32| batch(job, plan, node * ranks + local, step.iteration);
        let load =
            |local, threads| loading_time(&rates, of(local), LoadingThreads::in_turn(threads));
        let samples = |local: u32| plan.samples(node * ranks + local, step.iteration).iter();
        let train = |local| {
            let bytes = samples(local).map(|&sample| job.sizes.get(sample) as f64).sum();
            system.compute.time(samples(local).len() as u64, bytes)
        };
        let all =
            |time: &dyn Fn(u32) -> Seconds| (0..ranks).map(time).fold(Seconds::ZERO, Seconds::max);
        let mut work = PreprocessWork::default();
        for &sample in (0..ranks).flat_map(samples) {
            system.preprocess.add(&mut work, job.sizes.get(sample));
        }
        let preprocess = |threads: u32| system.preparing_time(&work, f64::from(threads));
        let peak = |most| {
            let least = (1..=most).map(|n| preprocess(n).0).fold(f64::INFINITY, f64::min);
            (1..=most).find(|&threads| preprocess(threads).0 <= least * (1.0 + 1e-12)).unwrap()
        };
        let (mut preprocessing, mut loading) = (peak(total), total);
        if system.pipeline == Pipeline::Serial {
            // Between two whole numbers of threads, the time is too.
            let slowest = |threads: u32| {
                let (few, part) = (threads / ranks, f64::from(threads % ranks) / f64::from(ranks));
                all(&|local| load(local, few) * (1.0 - part) + load(local, few + 1) * part)
            };
            let split =
                preprocessing_threads(total, peak(total - ranks), all(&train), preprocess, slowest);
            (preprocessing, loading) = (split.preprocessing, split.loading);
        }
        // The first in line changes with every step.
        let line: Vec<u32> = (0..ranks).map(|at| (at + step.iteration) % ranks).collect();
        let pending: Vec<u32> = line
            .iter()
            .map(|local| plan.samples(node * ranks + local, step.iteration).len() as u32)
            .collect();
        let mut given = assign_threads(&pending, loading, tau, |at, threads| {
            load(line[at], threads) + preprocess(preprocessing) - train(line[at])
        });
        give_each_rank_one(&mut given, loading);
        let spare = f64::from(loading - given.iter().sum::<u32>()) / f64::from(ranks);
        let mut threads = vec![0.0; ranks as usize];
        for (&local, &count) in line.iter().zip(&given) {
            threads[local as usize] = f64::from(count) + spare;
        }
        threads.push(f64::from(preprocessing));
        threads
    }

    proptest! {
        #[test]
        fn threads_of_every_step_are_what_the_model_gives(
            (nodes, ranks) in (1u32..4, 1u32..4),
            samples in 20u32..60,
            sizes in prop::collection::vec(1u64..200, 60),
            capacity in 0u64..4000,
            serial: bool,
            // More threads load faster, or share what the source gives.
            per_thread: bool,
            per_sample in prop_oneof![Just(0.0), 0.0f64..10.0],
            measured: bool,
            // Powers of ten.
            rates in prop::collection::vec(1.0f64..4.5, 5),
        ) {
            let mut job = job(samples, nodes, ranks, &[capacity]);
            job.system.pipeline = if serial { Pipeline::Serial } else { Pipeline::Overlapped };
            let rate = |at: usize| Rate(10f64.powf(rates[at]));
            job.system.compute = ComputeCost { rate: rate(0), per_sample: Seconds(per_sample) };
            job.system.preprocess = if measured {
                // A peak at five threads for small samples, at three for large ones.
                let curve = |peak| Curve::new(vec![(1, rate(1)), (peak, rate(1) * 3.0)]).unwrap();
                let models = vec![(Bytes(20), curve(5)), (Bytes(150), curve(3))];
                PreprocessModel::Measured(Portfolio::new(models).unwrap())
            } else {
                rate(1).into()
            };
            (job.system.network, job.system.source.link) = (rate(2), rate(2));
            job.system.tiers[1].read = Curve::flat(rate(3));
            job.system.source.throughput = Curve::flat(rate(4));
            job.system.source.sharing =
                if per_thread { Sharing::PerThread } else { Sharing::Aggregate };
            let (job, plans) = shuffled(job, &sizes);
            let tau = Seconds(0.001);
            for node in 0..nodes {
                let mut assigner = Assigner::new(&job, tau).unwrap();
                for (epoch, plan) in plans.iter().enumerate() {
                    for iteration in 0..job.stream.iterations() {
                        let step = Step { epoch: epoch as u32, iteration };
                        let expected = naive(&job, tau, node, step, plan);
                        // An unchanged assignment is not repeated.
                        let last = assigner.last.clone();
                        match assigner.assign(&job, node, step, plan) {
                            Some(ThreadAssignment::Split { mut loading, preprocessing }) => {
                                loading.push(preprocessing);
                                prop_assert_eq!(&loading, &expected);
                                prop_assert_ne!(&last, &assigner.last);
                            }
                            None => prop_assert!(last.is_some()),
                            other => prop_assert!(false, "{:?}", other),
                        }
                        let (counts, preprocessing) = assigner.last.clone().unwrap();
                        prop_assert_eq!(f64::from(preprocessing), expected[ranks as usize]);
                        // Threads to spare go to all alike.
                        let of_first = expected[0] - f64::from(counts[0]);
                        for (&count, &share) in counts.iter().zip(&expected) {
                            prop_assert!((share - f64::from(count) - of_first).abs() < 1e-9);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn with_fewer_threads_than_ranks_none_are_assigned() {
        let mut job = job(20, 1, 3, &[100]);
        let assigned = |job: &Job| Assigner::new(job, Seconds(0.001)).is_some();
        // A pool that both stages share needs one more, to preprocess.
        for (threads, overlapped, serial) in [(2, false, false), (3, true, false), (4, true, true)]
        {
            job.system.tiers[0].threads = threads;
            job.system.pipeline = Pipeline::Overlapped;
            assert_eq!(assigned(&job), overlapped, "{threads}");
            job.system.pipeline = Pipeline::Serial;
            assert_eq!(assigned(&job), serial, "{threads}");
        }
    }

    #[test]
    fn every_rank_gets_a_thread() {
        let mut threads = vec![0, 5, 0];
        give_each_rank_one(&mut threads, 5);
        assert_eq!(threads, [1, 3, 1]);
        for (budget, given) in [(4, [1, 1]), (2, [1, 1]), (1, [0, 1])] {
            let mut threads = vec![0, 1];
            give_each_rank_one(&mut threads, budget);
            assert_eq!(threads, given, "of {budget}");
        }
    }
}

//! Threads by what the node measures, in place of described rates (Lobster, sections 4.1 to 4.4).
//!
//! The two steps and Algorithm 1 are those of [`threads`](super::threads), and the threads are one
//! set that both duties share, as in the paper. Of the batches it takes those that are planned and
//! have not retired: a step's share of their bytes.

use super::threads::give_each_rank_one;
use crate::model::Seconds;
use crate::model::lobster::{assign_threads, preprocessing_threads, time_difference};
use crate::model::online::{NodeMeasurement, ThreadSplit};
use crate::policy::ThreadAssignment;

#[derive(Debug)]
pub struct MeasuredAssigner {
    tau: Seconds,
    /// The last answer.
    last: Option<ThreadSplit>,
    /// The rank that wins ties.
    turn: usize,
}

impl MeasuredAssigner {
    pub fn new(tau: Seconds) -> Self {
        Self { tau, last: None, turn: 0 }
    }

    /// Returns whether measurements decide from now on.
    pub fn has_answered(&self) -> bool {
        self.last.is_some()
    }

    /// Returns the threads from now on, if they change. Nothing before transforms were measured, or
    /// with too few threads to give each rank one and preprocess.
    pub fn assign(&mut self, now: &NodeMeasurement) -> Option<ThreadAssignment> {
        let split = self.split(now)?;
        if self.last.as_ref() == Some(&split) {
            return None;
        }
        let answer = ThreadAssignment::of_split(&split);
        self.last = Some(split);
        Some(answer)
    }

    fn split(&mut self, now: &NodeMeasurement) -> Option<ThreadSplit> {
        let (ranks, model) = (now.ranks.len() as u32, &now.model);
        let most = now.threads.checked_sub(ranks).filter(|&most| most > 0 && ranks > 0)?;
        let (samples, _) = now.of_one_step();
        model.transform_time(samples, 1)?;
        let preprocess =
            |threads: u32| model.transform_time(samples, threads).unwrap_or(Seconds::ZERO);
        let steps = f64::from(now.steps.max(1));
        let load = |rank: usize, busy: u32, threads: f64| {
            let bytes = now.ranks[rank].bytes.map(|bytes| bytes as f64 / steps);
            model.load_time(bytes, busy, threads)
        };
        let slowest = |threads: u32| {
            let each = f64::from(threads) / f64::from(ranks);
            let times = (0..now.ranks.len()).map(|rank| load(rank, threads, each));
            times.fold(Seconds::ZERO, Seconds::max)
        };
        let train = model.training_time();
        let peak = model.peak_threads(samples, most.min(model.most_worth_trying()));
        let stages = preprocessing_threads(now.threads, peak, train, preprocess, slowest);
        let ahead = preprocess(stages.preprocessing);
        // As in `threads`: the first rank wins every tie, so the order rotates.
        self.turn = (self.turn + 1) % now.ranks.len();
        let order: Vec<usize> =
            (0..now.ranks.len()).map(|at| (at + self.turn) % now.ranks.len()).collect();
        let pending: Vec<u32> =
            order.iter().map(|&rank| now.ranks[rank].samples.max(1) as u32).collect();
        let difference = |at: usize, threads: u32| {
            let time = match threads {
                0 => Seconds(f64::INFINITY),
                threads => load(order[at], stages.loading, f64::from(threads)),
            };
            time_difference(time, ahead, train)
        };
        let mut given = assign_threads(&pending, stages.loading, self.tau, difference);
        give_each_rank_one(&mut given, stages.loading);
        // Threads that no rank needs in this step are shared by all.
        let spare = stages.loading - given.iter().sum::<u32>();
        let mut loading = vec![0; now.ranks.len()];
        for (at, (&rank, threads)) in order.iter().zip(given).enumerate() {
            loading[rank] = threads + spare / ranks + u32::from((at as u32) < spare % ranks);
        }
        Some(ThreadSplit { loading, transforming: stages.preprocessing })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::online::{FitWindow, IterationWork, RankPending, SOURCE, WorkSum};

    const TAU: Seconds = Seconds(0.001);

    /// What a node measures of which a transform takes so many nanoseconds, and a mebibyte of the
    /// source; with what its ranks have to load.
    fn measured(threads: u32, transform: u64, source: u64, ranks: &[u64]) -> NodeMeasurement {
        let mut work = IterationWork::default();
        let sum = |count, nanoseconds| WorkSum { count, bytes: count << 20, nanoseconds };
        work.transforms.insert((21, 4), sum(100, 100 * transform));
        work.loads[SOURCE].insert(4, sum(100, 100 * source));
        let mut window = FitWindow::default();
        window.push(work);
        let pending = |&mebibytes: &u64| RankPending {
            samples: 8,
            bytes: [0, 0, mebibytes << 20],
            left: [0, 0, mebibytes << 20],
        };
        let ranks = ranks.iter().map(pending).collect();
        NodeMeasurement { threads, model: window.fit(8), steps: 1, ranks }
    }

    fn split(now: &NodeMeasurement) -> (Vec<f64>, f64) {
        match MeasuredAssigner::new(TAU).assign(now) {
            Some(ThreadAssignment::Split { loading, preprocessing }) => (loading, preprocessing),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn threads_move_to_the_duty_that_is_slow_and_to_the_rank_that_is_late() {
        let (_, fast_source) = split(&measured(16, 4_000_000, 1_000_000, &[8; 4]));
        let (loading, slow_source) = split(&measured(16, 4_000_000, 40_000_000, &[8; 4]));
        assert!(slow_source < fast_source, "{slow_source} transform, {fast_source} before");
        assert_eq!(loading.iter().sum::<f64>() + slow_source, 16.0);
        let (loading, _) = split(&measured(16, 400_000, 40_000_000, &[2, 2, 20, 2]));
        assert!((0..4).all(|rank| rank == 2 || loading[rank] < loading[2]), "{loading:?}");
    }

    #[test]
    fn nothing_is_assigned_before_transforms_are_measured_or_with_too_few_threads() {
        let mut assigner = MeasuredAssigner::new(TAU);
        let mut now = measured(16, 1, 1, &[1; 4]);
        now.model.transforms.clear();
        assert_eq!(assigner.assign(&now), None);
        assert_eq!(assigner.assign(&measured(4, 1, 1, &[1; 4])), None);
        assert_eq!(assigner.assign(&measured(4, 1, 1, &[])), None);
        assert!(!assigner.has_answered());
        assert!(assigner.assign(&measured(5, 1, 1, &[1; 4])).is_some() && assigner.has_answered());
    }

    proptest! {
        #[test]
        fn every_rank_and_both_duties_get_a_thread(
            spare in 1u32..12, transform in 1u64..1 << 30, source in 1u64..1 << 30,
            ranks in prop::collection::vec(0u64..30, 1..6), again in 0usize..4,
        ) {
            let threads = ranks.len() as u32 + spare;
            let now = measured(threads, transform, source, &ranks);
            let mut assigner = MeasuredAssigner::new(TAU);
            for _ in 0..=again {
                assigner.assign(&now);
                let last = assigner.last.as_ref().unwrap();
                prop_assert!(last.transforming > 0 && last.loading.iter().all(|&it| it > 0));
                prop_assert_eq!(last.transforming + last.loading.iter().sum::<u32>(), threads);
            }
        }
    }
}

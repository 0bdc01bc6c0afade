//! Carries out what the policy decides about threads, and tells it what was measured of them.

use std::sync::atomic::{AtomicBool, Ordering};

use belady_base::sync::Arc;
use belady_control::model::online::{NodeMeasurement, RankPending};
use belady_control::policy::{Event, ThreadAssignment};

use super::JobContext;
use super::thread_meter::ThreadMeter;
use crate::metrics::AssignedThreads;
use crate::pool::{LaneThreads, TransformShare};

/// How a job uses its threads.
#[derive(Debug)]
pub struct ThreadShares {
    pub meter: Arc<ThreadMeter>,
    /// The plan began with pooled threads: what it assigns to ranks later says whose turn is first,
    /// and does not keep a thread from other work.
    is_pooled: AtomicBool,
}

impl ThreadShares {
    pub fn new(ranks: usize) -> Self {
        Self { meter: Arc::new(ThreadMeter::new(ranks)), is_pooled: AtomicBool::new(true) }
    }

    /// Returns whether all threads load for any rank.
    pub fn are_pooled(&self) -> bool {
        self.is_pooled.load(Ordering::Relaxed)
    }
}

impl JobContext {
    /// Uses threads as a plan does in the beginning.
    pub fn assign_first_threads(&self, assignment: &ThreadAssignment) {
        let is_pooled = *assignment == ThreadAssignment::Pooled;
        self.threads.is_pooled.store(is_pooled, Ordering::Relaxed);
        self.assign_threads(assignment);
    }

    /// Gives each rank of this node its share of the threads that load, and says how many
    /// transform.
    pub fn assign_threads(&self, assignment: &ThreadAssignment) {
        let is_soft = self.threads.are_pooled();
        let (ranks, threads) = (self.ranks.len(), (self.lane.threads(), self.lane.share()));
        self.lane.assign(LaneThreads { is_soft, ..lane_threads(assignment, ranks, threads) });
        self.note_threads(true);
    }

    /// Shows how many threads have which duty.
    pub fn note_threads(&self, has_changed: bool) {
        let division = self.lane.division();
        let loading = (0..self.ranks.len()).map(|rank| {
            let limit = division.of_lane.loading.get(rank);
            u64::from(limit.map_or(division.loading, |&limit| limit.min(division.loading)))
        });
        self.metrics.threads().assigned(
            AssignedThreads {
                loading: division.loading.into(),
                transforming: division.transforming.into(),
                loading_by_rank: loading.collect(),
                transforming_by_rank: (0..self.ranks.len())
                    .map(|rank| division.transforming_for(rank).into())
                    .collect(),
            },
            has_changed,
        );
    }

    /// Tells the policy what was measured since the last step, with what the ranks' batches of the
    /// steps that have not retired consist of, and carries out its answer.
    pub fn tell_measured(&self, (steps, ranks): (u32, Vec<RankPending>)) {
        let model = self.threads.meter.fit();
        self.metrics.threads().fitted(&model);
        let now = NodeMeasurement { threads: self.lane.share(), model, steps, ranks };
        self.policy.send(Event::Measured(&now), |actions| {
            if let Some(threads) = &actions.threads {
                self.assign_threads(threads);
            }
        });
    }
}

/// Returns how a lane with so many ranks uses its threads. There are `loading` now, and `all` for
/// all duties; an assignment of more than all is scaled down.
fn lane_threads(
    assignment: &ThreadAssignment,
    ranks: usize,
    (loading, all): (u32, u32),
) -> LaneThreads {
    let (loading, transforming) = match assignment {
        ThreadAssignment::Pooled => (vec![], TransformShare::Pooled),
        ThreadAssignment::PerRank => {
            let share = f64::from(loading) / ranks as f64;
            (whole(&vec![share; ranks]), TransformShare::PerRank)
        }
        ThreadAssignment::Split { loading, preprocessing } => {
            let both = loading.iter().sum::<f64>() + preprocessing;
            let scale = (f64::from(all) / both).min(1.0);
            let transforming = (preprocessing * scale).round().max(1.0) as u32;
            (whole(loading), TransformShare::Threads(transforming))
        }
    };
    LaneThreads { loading, is_soft: false, transforming }
}

/// Rounds shares so that their sum stays, and every rank gets a thread.
fn whole(shares: &[f64]) -> Vec<u32> {
    let mut limits: Vec<u32> = shares.iter().map(|share| share.floor() as u32).collect();
    let whole: u32 = limits.iter().sum();
    // A sum of fractions that should be whole may be a little less.
    let rest = ((shares.iter().sum::<f64>() + 1e-6) as u32).saturating_sub(whole);
    let mut largest: Vec<usize> = (0..shares.len()).collect();
    largest.sort_by(|&a, &b| shares[b].fract().total_cmp(&shares[a].fract()));
    for &rank in largest.iter().take(rest as usize) {
        limits[rank] += 1;
    }
    limits.iter().map(|&limit| limit.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(loading: &[f64], preprocessing: f64) -> ThreadAssignment {
        ThreadAssignment::Split { loading: loading.to_vec(), preprocessing }
    }

    fn limits(assignment: &ThreadAssignment, ranks: usize, threads: u32) -> Vec<u32> {
        lane_threads(assignment, ranks, (threads, threads + 1)).loading
    }

    #[test]
    fn shares_are_rounded_so_that_all_threads_are_used() {
        assert_eq!(limits(&ThreadAssignment::Pooled, 3, 8), [0; 0]);
        assert_eq!(limits(&ThreadAssignment::PerRank, 3, 8), [3, 3, 2]);
        assert_eq!(limits(&ThreadAssignment::PerRank, 1, 8), [8]);
        assert_eq!(limits(&split(&[3.0, 5.0], 1.0), 2, 8), [3, 5]);
        assert_eq!(limits(&split(&[1.25, 4.5, 2.25], 1.0), 3, 8), [1, 5, 2]);
        let third = 1.0 / 3.0;
        let shares = [1.0 + third, 1.0 + third, 1.0 + third];
        assert_eq!(limits(&split(&shares, 1.0), 3, 4), [2, 1, 1]);
    }

    #[test]
    fn every_rank_has_a_thread() {
        assert_eq!(limits(&ThreadAssignment::PerRank, 4, 2), [1, 1, 1, 1]);
        assert_eq!(limits(&split(&[0.0, 4.0], 1.0), 2, 4), [1, 4]);
    }

    #[test]
    fn both_duties_are_carried_out() {
        let transforming =
            |assignment: &ThreadAssignment| lane_threads(assignment, 2, (8, 12)).transforming;
        assert_eq!(transforming(&ThreadAssignment::Pooled), TransformShare::Pooled);
        assert_eq!(transforming(&ThreadAssignment::PerRank), TransformShare::PerRank);
        assert_eq!(transforming(&split(&[3.0, 3.0], 6.0)), TransformShare::Threads(6));
        assert_eq!(transforming(&split(&[3.0, 3.0], 2.0)), TransformShare::Threads(2));
        assert_eq!(transforming(&split(&[3.0, 3.0], 0.0)), TransformShare::Threads(1));
        // Two stages of eight threads each share the twelve that there are.
        assert_eq!(transforming(&split(&[4.0, 4.0], 8.0)), TransformShare::Threads(6));
    }
}

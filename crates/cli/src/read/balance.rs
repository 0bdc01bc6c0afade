//! How evenly the local ranks of a run with `--barrier` wait, by the definitions of the simulator
//! (docs/simulator.md).

use std::time::Duration;

use belady_control::sampler::Step;

/// A rank counts as waiting when it waits longer than this share of the compute time: the
/// simulator's definition.
const WAIT_THRESHOLD: f64 = 0.05;

/// How long a rank waited for its batch of a step, and computes on it, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankStep {
    waited: f64,
    computes: f64,
}

/// What the steps of an epoch lost to their slowest ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepBalance {
    /// The steps that all local ranks have ended.
    pub steps: u64,
    /// Those in which the slowest rank waited and some other rank did not.
    pub imbalanced: u64,
    /// How much shorter the steps would be if their waiting were divided freely among the ranks.
    pub straggling_seconds: f64,
}

/// The present step of the local ranks, which a barrier keeps together.
#[derive(Debug)]
pub struct BalanceLedger {
    ranks: usize,
    step: Option<Step>,
    present: Vec<RankStep>,
    /// By epoch.
    epochs: Vec<StepBalance>,
}

impl RankStep {
    pub fn new(waited: Duration, computes: Duration) -> Self {
        Self { waited: waited.as_secs_f64(), computes: computes.as_secs_f64() }
    }

    fn lasts(&self) -> f64 {
        self.waited + self.computes
    }
}

impl BalanceLedger {
    /// Makes a ledger for so many local ranks.
    pub fn new(ranks: u32) -> Self {
        Self { ranks: ranks as usize, step: None, present: vec![], epochs: vec![] }
    }

    /// Notes a rank's step before the rank ends it.
    pub fn note(&mut self, step: Step, rank: RankStep) {
        if self.step != Some(step) {
            self.present.clear();
            self.step = Some(step);
        }
        self.present.push(rank);
        if self.present.len() < self.ranks {
            return;
        }
        let epoch = step.epoch as usize;
        if self.epochs.len() <= epoch {
            self.epochs.resize(epoch + 1, StepBalance::default());
        }
        self.epochs[epoch].add(&self.present);
    }

    /// Returns the balance of an epoch.
    pub fn of_epoch(&self, epoch: u32) -> StepBalance {
        self.epochs.get(epoch as usize).copied().unwrap_or_default()
    }
}

impl StepBalance {
    fn add(&mut self, ranks: &[RankStep]) {
        let compute = ranks.iter().map(|rank| rank.computes).fold(0.0, f64::max);
        let duration = ranks.iter().map(RankStep::lasts).fold(0.0, f64::max);
        let mean = ranks.iter().map(RankStep::lasts).sum::<f64>() / ranks.len() as f64;
        let slowest = ranks.iter().max_by(|a, b| a.lasts().total_cmp(&b.lasts()));
        let slowest_wait = slowest.map_or(0.0, |rank| rank.waited);
        let shortest_wait = ranks.iter().map(|rank| rank.waited).fold(f64::INFINITY, f64::min);
        let limit = WAIT_THRESHOLD * compute;
        self.steps += 1;
        self.imbalanced += u64::from(slowest_wait > limit && shortest_wait <= limit);
        self.straggling_seconds += duration - mean.max(compute);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(waited: u64, computes: u64) -> RankStep {
        RankStep::new(Duration::from_millis(waited), Duration::from_millis(computes))
    }

    fn balance(ranks: &[RankStep]) -> StepBalance {
        let mut ledger = BalanceLedger::new(ranks.len() as u32);
        let step = Step { epoch: 1, iteration: 7 };
        for &rank in ranks {
            assert_eq!(ledger.of_epoch(1).steps, 0, "the step is counted when all have ended it");
            ledger.note(step, rank);
        }
        assert_eq!(ledger.of_epoch(0), StepBalance::default());
        ledger.of_epoch(1)
    }

    #[test]
    fn waiting_that_all_ranks_share_is_no_straggling() {
        let shared = balance(&[rank(500, 100), rank(500, 100), rank(500, 100)]);
        assert_eq!((shared.steps, shared.imbalanced), (1, 0));
        assert!(shared.straggling_seconds.abs() < 1e-9);
    }

    #[test]
    fn a_rank_that_waits_alone_is_a_straggler() {
        let alone = balance(&[rank(0, 100), rank(0, 100), rank(60, 100)]);
        assert_eq!((alone.steps, alone.imbalanced), (1, 1));
        // 160 ms instead of 120.
        assert!((alone.straggling_seconds - 0.04).abs() < 1e-9);
    }

    #[test]
    fn a_wait_of_a_twentieth_of_the_compute_time_counts_as_none() {
        assert_eq!(balance(&[rank(0, 100), rank(5, 100)]).imbalanced, 0);
        assert_eq!(balance(&[rank(0, 100), rank(6, 100)]).imbalanced, 1);
        // A larger batch, and not a wait, makes the first rank the slowest.
        assert_eq!(balance(&[rank(0, 300), rank(60, 100)]).imbalanced, 0);
    }

    #[test]
    fn every_step_begins_anew() {
        let mut ledger = BalanceLedger::new(2);
        for iteration in 0..4 {
            for wait in [0, 50] {
                ledger.note(Step { epoch: 0, iteration }, rank(wait, 100));
            }
        }
        assert_eq!((ledger.of_epoch(0).steps, ledger.of_epoch(0).imbalanced), (4, 4));
    }
}

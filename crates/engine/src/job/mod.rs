//! The state of a running job that all of its stages share.
//!
//! This module and its children call no stage: [`plan`](crate::plan), [`fill`](crate::fill),
//! [`retire`](crate::retire) and [`deliver`](crate::deliver) read and change the state through a
//! shared [`JobContext`].

mod demand;
mod epochs;
mod extras;
mod failure;
mod horizon;
mod in_flight;
mod policy_driver;
mod rank_state;
mod recent_reads;
mod running;
mod step_waits;
mod thread_meter;
mod thread_shares;
mod tier_calls;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use belady_base::SampleId;
use belady_base::sync::Arc;
use belady_control::Sizes;
use belady_control::sampler::Step;
use belady_data::source::Source;

pub use epochs::DeliveredEpochs;
pub use extras::{BatchExtra, HeldBytes, Problem, SkippedSamples};
pub use failure::Failures;
pub use horizon::Horizon;
pub use in_flight::{InFlightReads, ReadRole, Waiter};
pub use policy_driver::PolicyDriver;
pub use rank_state::RankState;
pub use running::{DatasetJobs, LeadingBatch, LeadingItem, RunningJobs, SharedReads, SharedRole};
pub use step_waits::StepWaits;
pub use thread_meter::ThreadMeter;
pub use thread_shares::ThreadShares;

use crate::EngineError;
use crate::config::{BadSamples, Lend, Retry};
use crate::metrics::{Metrics, SourceWatch};
use crate::pool::{Lane, Task, Worker};
use crate::tiers::TierSet;
use crate::tiers::rates::JobRates;

/// A running job.
pub struct JobContext {
    pub source: Arc<dyn Source>,
    pub sizes: Arc<Sizes>,
    pub tiers: TierSet,
    /// The running jobs on this dataset.
    pub dataset: Arc<DatasetJobs>,
    pub policy: PolicyDriver,
    pub lane: Lane,
    pub threads: ThreadShares,
    pub rates: JobRates,
    pub metrics: Arc<Metrics>,
    pub retry: Retry,
    pub bad_samples: BadSamples,
    pub lending: Lending,
    pub in_flight: InFlightReads<Box<dyn Waiter>>,
    /// The ranks of this node.
    pub ranks: Box<[RankState]>,
    pub step_waits: StepWaits,
    pub epochs: DeliveredEpochs,
    pub failures: Failures,
    /// The number of steps that were planned.
    pub planned: AtomicU64,
    /// The policy loads on demand, one sample after the other.
    pub one_at_a_time: AtomicBool,
    /// Counts the source's operations in the metrics.
    pub _source_watch: SourceWatch,
}

/// When samples are lent from memory tiers instead of being copied.
#[derive(Clone, Copy, Debug)]
pub struct Lending {
    pub lend: Lend,
    /// All samples stay in memory. Otherwise only batches near the consumer borrow samples, because
    /// a lent sample cannot be evicted and a plan relies on the space of what it evicts.
    pub all_stay: bool,
}

impl JobContext {
    /// Returns the size of a sample in bytes.
    pub fn size(&self, sample: SampleId) -> u64 {
        self.sizes.get(sample)
    }

    /// Ends the job with an error, before the batches that were planned are delivered.
    pub fn fail(&self, error: EngineError) {
        self.failures.fatal(error);
        self.stop();
    }

    /// Tells all threads of the job to stop.
    pub fn stop(&self) {
        self.failures.set_stopping();
        for rank in &self.ranks {
            rank.wake();
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.failures.is_stopping()
    }

    /// Wraps work so that a panic in it ends the job, and nothing waits for its result.
    pub fn task(self: &Arc<Self>, work: impl FnOnce(&Worker) + Send + 'static) -> Task {
        let job = self.clone();
        Box::new(move |worker| {
            let _guard = job.panic_guard();
            work(worker);
        })
    }

    /// Returns a guard that ends the job if the thread panics while the guard exists.
    pub fn panic_guard(&self) -> PanicGuard<'_> {
        PanicGuard(self)
    }

    /// Returns how many steps the most demanding consumer of this node has asked for.
    pub fn asked_steps(&self) -> u64 {
        self.ranks.iter().map(|rank| rank.demand.count()).max().unwrap_or(0)
    }

    /// Returns how long the consumer that has waited longest has waited for a step.
    pub fn waited_for(&self, step: u64) -> Duration {
        let waits = self.ranks.iter().map(|rank| rank.demand.waited_for(step));
        waits.max().unwrap_or_default()
    }

    /// Counts a batch that the consumer of a local rank got after a wait.
    pub fn taken(&self, rank: usize, step: Step, waited: Duration) {
        self.metrics.waited(waited, step.iteration == 0 && step.epoch > 0);
        self.ranks[rank].metrics.waited(waited);
        if let Some(verdict) = self.step_waits.taken(rank, step, waited) {
            let slowest = &self.ranks[verdict.slowest].metrics;
            slowest.was_slowest(verdict.lost, verdict.is_imbalanced);
        }
    }

    /// Returns whether a memory tier may lend a sample that is staged now for a local rank.
    pub fn may_lend(&self, rank: usize) -> bool {
        let planned = self.planned.load(Ordering::Relaxed);
        let ahead = planned.saturating_sub(self.ranks[rank].demand.count());
        let near = || self.lending.all_stay || ahead <= u64::from(self.epochs.latest_batches() / 4);
        self.lending.lend == Lend::ReadOnly && near()
    }
}

impl std::fmt::Debug for JobContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobContext").field("source", &self.source).finish_non_exhaustive()
    }
}

/// Ends the job when it is dropped by a panic.
#[derive(Debug)]
pub struct PanicGuard<'a>(&'a JobContext);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(EngineError::Defect);
        }
    }
}

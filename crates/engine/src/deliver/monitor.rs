//! Observes a job from another thread, also while its consumer waits for a batch.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belady_base::sync::Arc;
use belady_control::sampler::Step;
use belady_data::tier::TierStatus;

use crate::job::JobContext;
use crate::metrics::{Metrics, RankMetrics};
use crate::pending::PendingQueue;

/// Observes a job without keeping it or its memory alive.
#[derive(Clone, Debug)]
pub struct LoaderMonitor {
    job: Weak<JobContext>,
    /// The local rank.
    rank: usize,
    queue: Weak<PendingQueue>,
    metrics: Arc<Metrics>,
    rank_metrics: Arc<RankMetrics>,
}

impl LoaderMonitor {
    pub(crate) fn new(job: &Arc<JobContext>, queue: &Arc<PendingQueue>, rank: usize) -> Self {
        let metrics = job.metrics.clone();
        let rank_metrics = job.ranks[rank].metrics.clone();
        let (job, queue) = (Arc::downgrade(job), Arc::downgrade(queue));
        Self { job, rank, queue, metrics, rank_metrics }
    }

    /// Returns the engine's metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Tells the job that its consumer begins an epoch. From now on all of the epoch may be staged,
    /// and the start of the next one, if [`crate::JobConfig::next_epoch`] sets a limit.
    pub fn begin_epoch(&self, epoch: u32) {
        if let Some(job) = self.job.upgrade() {
            job.ranks[self.rank].horizon.begin(epoch);
        }
    }

    /// Tells the job that its consumer is done with its epoch. The staging buffer then returns
    /// memory that it does not need to the system, if [`crate::JobConfig::next_epoch`] sets a
    /// limit.
    pub fn end_epoch(&self) {
        if let Some(job) = self.job.upgrade() {
            job.ranks[self.rank].horizon.end();
        }
    }

    /// Counts a batch that the consumer got after a wait, for a caller that hands batches on.
    pub fn delivered(&self, step: Step, waited: Duration, samples: u64, bytes: u64) {
        if let Some(job) = self.job.upgrade() {
            job.taken(self.rank, step, waited);
            job.threads.meter.delivered(self.rank, waited, step.iteration == 0);
        } else {
            // Batches outlive their job.
            self.metrics.waited(waited, step.iteration == 0 && step.epoch > 0);
            self.rank_metrics.waited(waited);
        }
        self.metrics.delivered(samples, bytes);
    }

    /// Notes whether the consumer waits for a batch, for a caller that hands batches on.
    pub fn set_waiting(&self, is_waiting: bool) {
        if let Some(job) = self.job.upgrade() {
            job.ranks[self.rank].demand.set_waiting(is_waiting);
        }
    }

    /// Returns the status of each cache tier; nothing once the job has ended.
    pub fn tiers(&self) -> Vec<TierStatus> {
        self.job.upgrade().map_or_else(Vec::new, |job| job.tiers.status())
    }

    /// Returns what the job waits for, as words that follow "waits for".
    pub fn waiting_for(&self) -> String {
        let (Some(job), Some(queue)) = (self.job.upgrade(), self.queue.upgrade()) else {
            return "nothing: it has ended".to_owned();
        };
        let Some(batch) = queue.first() else {
            let ahead = job.planned.load(Ordering::Acquire) >= job.ranks[self.rank].demand.count();
            return if ahead {
                "the caller: the staging buffer is full".to_owned()
            } else {
                "the plan of its next batch: for its order, or space in the staging buffer"
                    .to_owned()
            };
        };
        let step = batch.block.step();
        let name = format!("batch {} of epoch {}", step.iteration, step.epoch);
        match batch.missing() {
            0 => format!("{name}: its samples have arrived and are being stored"),
            missing => {
                let seen = job.metrics.snapshot();
                format!(
                    "{missing} of {} samples of {name}; so far {} reads of the source were tried \
                     again and {} given up",
                    batch.items.len(),
                    seen.retries,
                    seen.timeouts
                )
            }
        }
    }
}

//! The consumer's side of a job: takes the batches of one rank, which the retire stage publishes in
//! the rank's ring.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use belady_base::sync::Arc;
use belady_control::Job;
use belady_data::stage::{self, RingConsumer, SharedMemory, Take};
use belady_data::tier::TierStatus;

use super::batch::Batch;
use super::job_guard::JobGuard;
use super::monitor::LoaderMonitor;
use crate::EngineError;
use crate::job::{JobContext, Problem, RankState};
use crate::metrics::Metrics;

/// How often a consumer that waits checks whether the job has failed.
const TICK: Duration = Duration::from_millis(100);

/// Delivers the batches of one rank of a job, in order. Dropping the last loader of a job ends it.
#[derive(Debug)]
pub struct Loader {
    pub(crate) parts: ConsumerSide,
    /// How long the caller has waited for the batch that it asked for last.
    waited: Option<Duration>,
    /// The caller hands batches on, and itself counts what the consumer waits for and gets.
    feeds_stage: bool,
}

/// What a loader works with.
#[derive(Debug)]
pub struct ConsumerSide {
    pub guard: Arc<JobGuard>,
    /// The local rank.
    pub rank: usize,
    pub consumer: RingConsumer,
    pub shared: Option<SharedMemory>,
}

/// The end of a wait for the next batch.
#[derive(Clone, Debug)]
pub enum Delivery<T = Batch> {
    /// The next batch.
    Batch(T),
    /// The job has no more batches.
    Ended,
    /// The time was up; ask again.
    TimedOut,
}

impl Loader {
    pub(crate) fn new(parts: ConsumerSide) -> Self {
        Self { parts, waited: None, feeds_stage: false }
    }

    pub(crate) fn job_context(&self) -> &Arc<JobContext> {
        &self.parts.guard.job
    }

    fn rank(&self) -> &RankState {
        &self.job_context().ranks[self.parts.rank]
    }

    /// Notes that the caller hands batches on to their consumer: a transform stage, or another
    /// process. The caller reports what the consumer waits for and gets
    /// ([`LoaderMonitor::delivered`]).
    pub fn feed_stage(&mut self) {
        self.feeds_stage = true;
    }

    /// Returns the next batch, or `None` after the last one.
    ///
    /// # Errors
    /// An error about one sample takes the place of its batch; the next call returns the batch
    /// after it. Any other error ends the job.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, EngineError> {
        loop {
            match self.next_batch_timeout(TICK)? {
                Delivery::Batch(batch) => return Ok(Some(batch)),
                Delivery::Ended => return Ok(None),
                Delivery::TimedOut => {}
            }
        }
    }

    /// Returns the next batch if it comes within `patience`. Repeated calls count as one wait.
    ///
    /// # Errors
    /// As [`Self::next_batch`].
    pub fn next_batch_timeout(&mut self, patience: Duration) -> Result<Delivery, EngineError> {
        let began = Instant::now();
        if self.waited.is_none() {
            self.rank().demand.request();
        }
        let before = self.waited.take().unwrap_or_default();
        let ConsumerSide { guard, rank, consumer, .. } = &mut self.parts;
        let job = &guard.job;
        let waiting = (!self.feeds_stage).then(|| job.ranks[*rank].demand.wait());
        let taken = loop {
            let left = patience.saturating_sub(began.elapsed());
            match consumer.take(Some(left.min(TICK))) {
                Take::TimedOut => {
                    if let Some(error) = job.failures.due(false) {
                        return Err(error);
                    }
                    if began.elapsed() >= patience {
                        break Take::TimedOut;
                    }
                }
                taken => break taken,
            }
        };
        drop(waiting);
        let waited = before + began.elapsed();
        match taken {
            Take::Batch(batch) => self.deliver(batch, waited).map(Delivery::Batch),
            Take::Ended => self.ended(),
            Take::TimedOut => {
                self.waited = Some(waited);
                Ok(Delivery::TimedOut)
            }
        }
    }

    fn ended(&self) -> Result<Delivery, EngineError> {
        let complete = self.parts.consumer.is_complete();
        match self.job_context().failures.due(complete) {
            Some(error) => Err(error),
            None if complete => Ok(Delivery::Ended),
            None => Err(EngineError::Stopped),
        }
    }

    fn deliver(&self, block: stage::RingBatch, waited: Duration) -> Result<Batch, EngineError> {
        let step = block.step();
        let job = self.job_context();
        if !self.feeds_stage {
            job.taken(self.parts.rank, step, waited);
        }
        let mut extra = self.rank().extras.take(step);
        if let Some(Problem { error, attempts }) = extra.problem.take() {
            return Err(EngineError::BadSample { error, attempts });
        }
        if !self.feeds_stage {
            extra.lend(&block);
        }
        let can_be_mapped = self.parts.shared.is_some();
        let batch = Batch::of_ring(block, extra, job.source.clone(), can_be_mapped);
        if !self.feeds_stage {
            batch.skipped().report();
            let bytes = batch.iter().map(|sample| sample.bytes().len() as u64).sum();
            job.metrics.delivered(batch.iter().count() as u64, bytes);
        }
        Ok(batch)
    }

    /// Returns how many batches an epoch has; `None` before the epoch has begun to be staged. The
    /// number is known when the epoch's first batch is delivered.
    pub fn batches_of(&self, epoch: u32) -> Option<u32> {
        self.job_context().epochs.batches_of(epoch)
    }

    /// Returns what the policy knows: the access stream, the sizes, the system.
    pub fn job(&self) -> &Arc<Job> {
        &self.parts.guard.planned_job
    }

    /// Returns the engine's metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.job_context().metrics
    }

    /// Returns the memory that other processes map to read samples; `None` unless the job has a
    /// [`crate::RingKind::Shared`]. Forked processes inherit the descriptor. Processes that run
    /// another program have to be sent it, because it is closed on `exec`. A mapping outlives
    /// descriptor and loader.
    pub fn shared_memory(&self) -> Option<SharedRegion<'_>> {
        let SharedMemory { file, length } = self.parts.shared.as_ref()?;
        Some(SharedRegion { fd: file.as_fd(), length: *length })
    }

    /// Returns the memory of each tier, fastest first, that other processes map to read samples that
    /// are lent; `None` for a tier that they cannot map.
    pub fn shared_tiers(&self) -> impl Iterator<Item = Option<SharedRegion<'_>>> {
        let tiers = &self.job_context().tiers;
        tiers.ids().map(|id| {
            let memory = tiers.get(id)?.shared_memory()?;
            Some(SharedRegion { fd: memory.as_fd(), length: memory.len() })
        })
    }

    /// Returns the status of each cache tier.
    pub fn tiers(&self) -> Vec<TierStatus> {
        self.job_context().tiers.status()
    }

    /// Returns a monitor of the job, which other threads can use while this one waits for a batch.
    pub fn monitor(&self) -> LoaderMonitor {
        LoaderMonitor::new(self.job_context(), &self.parts.guard.queue, self.parts.rank)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let ConsumerSide { guard, rank, consumer, .. } = &self.parts;
        guard.leave(*rank, consumer.is_complete());
    }
}

/// The memory of a job's staging buffer or tier, to be mapped by other processes: shared, read-only,
/// `length` bytes from the start. Its size is sealed.
#[derive(Clone, Copy, Debug)]
pub struct SharedRegion<'a> {
    /// The file to map.
    pub fd: BorrowedFd<'a>,
    /// The number of bytes to map.
    pub length: usize,
}

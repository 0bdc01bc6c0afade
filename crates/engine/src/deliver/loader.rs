//! The consumer's side of a job.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_base::sync::Arc;
use belady_control::Job;
use belady_data::stage::{self, ProducerWaker, RingConsumer, SharedMemory, Take};
use belady_data::tier::TierStatus;
use belady_peer::Registration;

use super::batch::Batch;
use super::monitor::LoaderMonitor;
use crate::EngineError;
use crate::job::{JobContext, Problem};
use crate::metrics::Metrics;
use crate::peers::{Peers, RequestHandler};
use crate::pending::PendingQueue;
use crate::pool::WorkerPool;
use crate::retire::Retirer;

/// How often a consumer that waits checks whether the job has failed.
const TICK: Duration = Duration::from_millis(100);

/// Delivers the batches of a job, in order. Dropping it ends the job.
#[derive(Debug)]
pub struct Loader {
    pub(crate) parts: ConsumerSide,
    pub(crate) planner: Option<JoinHandle<()>>,
    /// How long the caller has waited for the batch that it asked for last.
    waited: Option<Duration>,
    /// The caller is a transform stage, which itself counts what the consumer waits for and gets.
    feeds_stage: bool,
}

/// What a loader works with.
#[derive(Debug)]
pub struct ConsumerSide {
    pub job: Arc<JobContext>,
    pub peers: Option<Arc<Peers>>,
    pub queue: Arc<PendingQueue>,
    pub retire: Arc<Retirer>,
    pub consumer: RingConsumer,
    pub shared: Option<SharedMemory>,
    pub waker: ProducerWaker,
    pub planned_job: Arc<Job>,
    /// Serves other nodes while it exists.
    pub serving: Option<(Arc<RequestHandler>, Registration)>,
    /// Keeps the threads alive.
    pub _pool: Arc<WorkerPool>,
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
    pub(crate) fn new(parts: ConsumerSide, planner: JoinHandle<()>) -> Self {
        Self { parts, planner: Some(planner), waited: None, feeds_stage: false }
    }

    /// Makes the caller a transform stage.
    pub(crate) fn feed_stage(&mut self) {
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
            self.parts.job.demand.request();
        }
        let before = self.waited.take().unwrap_or_default();
        let ConsumerSide { job, consumer, .. } = &mut self.parts;
        let waiting = (!self.feeds_stage).then(|| job.demand.wait());
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
        match self.parts.job.failures.due(complete) {
            Some(error) => Err(error),
            None if complete => Ok(Delivery::Ended),
            None => Err(EngineError::Stopped),
        }
    }

    fn deliver(&self, block: stage::RingBatch, waited: Duration) -> Result<Batch, EngineError> {
        let step = block.step();
        let job = &self.parts.job;
        if !self.feeds_stage {
            job.metrics.waited(waited, step.iteration == 0 && step.epoch > 0);
        }
        let mut extra = job.extras.take(step);
        if let Some(Problem { error, attempts }) = extra.problem.take() {
            return Err(EngineError::BadSample { error, attempts });
        }
        if !self.feeds_stage {
            extra.lend(&block);
        }
        let can_be_mapped = self.parts.shared.is_some();
        let batch = Batch::new(block, extra, job.source.clone(), can_be_mapped);
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
        self.parts.job.epochs.batches_of(epoch)
    }

    /// Returns what the policy knows: the access stream, the sizes, the system.
    pub fn job(&self) -> &Arc<Job> {
        &self.parts.planned_job
    }

    /// Returns the engine's metrics.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.parts.job.metrics
    }

    /// Returns the memory that other processes map to read samples; `None` unless the job has a
    /// [`crate::RingKind::Shared`]. Forked processes inherit the descriptor. Processes that run
    /// another program have to be sent it, because it is closed on `exec`. A mapping outlives
    /// descriptor and loader.
    pub fn shared_memory(&self) -> Option<SharedRegion<'_>> {
        let SharedMemory { file, length } = self.parts.shared.as_ref()?;
        Some(SharedRegion { fd: file.as_fd(), length: *length })
    }

    /// Returns the status of each cache tier.
    pub fn tiers(&self) -> Vec<TierStatus> {
        self.parts.job.tiers.status()
    }

    /// Returns a monitor of the job, which other threads can use while this one waits for a batch.
    pub fn monitor(&self) -> LoaderMonitor {
        LoaderMonitor::new(&self.parts.job, &self.parts.queue)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let ConsumerSide { job, peers, retire, consumer, waker, serving, .. } = &mut self.parts;
        if let Some(peers) = peers {
            if consumer.is_complete() {
                peers.let_others_finish();
            }
            peers.leave();
        }
        *serving = None;
        job.stop();
        waker.wake();
        if let Some(planner) = self.planner.take() {
            // A panic of the planner has been reported.
            let _ = planner.join();
        }
        retire.abandon();
        job.policy.finish();
    }
}

/// The memory of a job's staging buffer, to be mapped by other processes: shared, read-only,
/// `length` bytes from the start. Its size is sealed.
#[derive(Clone, Copy, Debug)]
pub struct SharedRegion<'a> {
    /// The file to map.
    pub fd: BorrowedFd<'a>,
    /// The number of bytes to map.
    pub length: usize,
}

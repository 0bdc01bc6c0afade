//! The consumer's side of a job.
//!
//! Other processes can be given samples without a copy ([`crate::Ring::Shared`]): they map the
//! memory of the staging buffer, are told where a sample lies, and answer when they have read
//! it. Until then this process holds on to the batch, for nothing else keeps the bytes in
//! their place.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_control::Job;
use belady_control::sampler::Step;
use belady_data::SampleId;
use belady_data::source::Source;
use belady_data::stage::{self, Consumer, ProducerWaker, SharedMemory, SlotState, Take};
use belady_data::sync::Arc;
use belady_data::tier::TierStatus;

use belady_peer::Serving;

use crate::EngineError;
use crate::metrics::Metrics;
use crate::parcel::{Extra, Held, Missing};
use crate::peers::{Counter, notify, pace};
use crate::pool::Pool;
use crate::run::Run;

/// How often a consumer that waits looks whether the job has failed.
const TICK: Duration = Duration::from_millis(100);

/// Gives out the batches of a job, in order.
#[derive(Debug)]
pub struct Loader {
    pub(crate) run: Arc<Run>,
    pub(crate) consumer: Consumer,
    pub(crate) shared: Option<SharedMemory>,
    pub(crate) planner: Option<JoinHandle<()>>,
    pub(crate) waker: ProducerWaker,
    pub(crate) job: Arc<Job>,
    /// How long the caller has waited for the batch that was asked for and has not come.
    pub(crate) waited: Option<Duration>,
    /// The caller is a stage, not the consumer: it counts what the consumer waits for and gets
    /// ([`crate::transformed`]), and lets batches go without being told to.
    pub(crate) feeds_stage: bool,
    /// Other nodes are served as long as this is there.
    pub(crate) counter: Option<(Arc<Counter>, Serving)>,
    /// Threads live as long as a job needs them.
    pub(crate) _pool: Arc<Pool>,
}

/// How a wait for the next batch has ended.
#[derive(Clone, Debug)]
pub enum Next<T = Batch> {
    Batch(T),
    /// There are no more.
    Ended,
    /// It has not come yet; ask again.
    TimedOut,
}

impl Loader {
    /// The next batch; `None` after the last one. After an error about one sample the next
    /// call goes on with the batch after it.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, EngineError> {
        loop {
            match self.next_batch_timeout(TICK)? {
                Next::Batch(batch) => return Ok(Some(batch)),
                Next::Ended => return Ok(None),
                Next::TimedOut => {}
            }
        }
    }

    /// The next batch, if it comes within `patience`. A caller who has other things to look
    /// after asks again and again; it counts as one wait.
    pub fn next_batch_timeout(&mut self, patience: Duration) -> Result<Next, EngineError> {
        let began = Instant::now();
        if self.waited.is_none() {
            self.run.asked.ask();
        }
        let before = self.waited.take().unwrap_or_default();
        let waiting = (!self.feeds_stage).then(|| self.run.asked.wait());
        let taken = loop {
            let left = patience.saturating_sub(began.elapsed());
            match self.consumer.take(Some(left.min(TICK))) {
                Take::TimedOut => {
                    if let Some(error) = self.run.failure(false) {
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
            Take::Batch(batch) => self.deliver(batch, waited).map(Next::Batch),
            Take::Ended => self.ended(),
            Take::TimedOut => {
                self.waited = Some(waited);
                Ok(Next::TimedOut)
            }
        }
    }

    fn ended(&self) -> Result<Next, EngineError> {
        let complete = self.consumer.is_complete();
        match self.run.failure(complete) {
            Some(error) => Err(error),
            None if complete => Ok(Next::Ended),
            None => Err(EngineError::Stopped),
        }
    }

    fn deliver(&self, block: stage::Batch, waited: Duration) -> Result<Batch, EngineError> {
        let step = block.step();
        let metrics = &self.run.metrics;
        if !self.feeds_stage {
            metrics.waited(waited, step.iteration == 0 && step.epoch > 0);
        }
        let mut extra = self.run.extras.take(step);
        if let Some(problem) = extra.problem.take() {
            let crate::parcel::Problem { error, attempts } = problem;
            return Err(EngineError::BadSample { error, attempts });
        }
        if !self.feeds_stage {
            extra.lend(&block);
        }
        let batch = Batch {
            block,
            extra: Arc::new(extra),
            source: self.run.source.clone(),
            can_be_mapped: self.shared.is_some(),
        };
        if !self.feeds_stage {
            batch.missing().report();
            let bytes = batch.iter().map(|sample| sample.bytes().len() as u64).sum();
            metrics.delivered(batch.iter().count() as u64, bytes);
        }
        Ok(batch)
    }

    /// How many batches an epoch has. It is known when the first of them is there, so that who
    /// gets the last one knows it; `None` before the epoch has begun to be staged.
    pub fn batches_of(&self, epoch: u32) -> Option<u32> {
        self.run.batches_of(epoch)
    }

    /// What the policy knows: the access stream, the sizes, the system.
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }

    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.run.metrics
    }

    /// What other processes map to read samples; `None` unless the job has a
    /// [`crate::Ring::Shared`]. Forked processes inherit the descriptor; those that run another
    /// program have to be given it, since it is closed on `exec`. Their mapping stays when
    /// descriptor and loader are gone.
    pub fn shared_memory(&self) -> Option<SharedRegion<'_>> {
        let SharedMemory { file, length } = self.shared.as_ref()?;
        Some(SharedRegion { fd: file.as_fd(), length: *length })
    }

    /// What each cache tier holds.
    pub fn tiers(&self) -> Vec<TierStatus> {
        self.run.cache.status()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if self.consumer.is_complete() {
            pace::let_others_finish(&self.run);
        }
        notify::leave(&self.run);
        self.counter = None;
        self.run.stop();
        self.waker.wake();
        if let Some(planner) = self.planner.take() {
            // A panic of the planner has been reported, and there is nobody left to tell.
            let _ = planner.join();
        }
        self.run.abandon();
        self.run.brain.finish();
    }
}

/// The memory of a job's staging buffer, to be mapped by other processes: shared, for reading
/// only, `length` bytes from the start. Its size is sealed.
#[derive(Clone, Copy, Debug)]
pub struct SharedRegion<'a> {
    pub fd: BorrowedFd<'a>,
    pub length: usize,
}

/// A batch, lent: its memory comes back when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Batch {
    block: stage::Batch,
    extra: Arc<Extra>,
    source: Arc<dyn Source>,
    /// The staging buffer is one that other processes can map.
    can_be_mapped: bool,
}

/// A sample of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    pub id: SampleId,
    bytes: &'a [u8],
    in_slot: bool,
    source: &'a dyn Source,
}

impl<'a> Sample<'a> {
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Whether the bytes lie in the staging buffer, where a consumer may write to them.
    pub fn is_in_slot(&self) -> bool {
        self.in_slot
    }

    /// The class, where the format has classes.
    pub fn label(&self) -> Option<u32> {
        self.source.catalog().label(self.id)
    }
}

impl Batch {
    pub fn step(&self) -> Step {
        self.block.step()
    }

    /// What was skipped or replaced.
    pub(crate) fn missing(&self) -> &Missing {
        &self.extra.missing
    }

    /// Samples, those included that were skipped.
    pub fn len(&self) -> usize {
        self.block.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One sample; `None` if it was bad and skipped.
    pub fn get(&self, index: usize) -> Option<Sample<'_>> {
        if self.block.state(index) == SlotState::Skipped {
            return None;
        }
        let mut id = self.block.sample(index);
        let held = self.extra.held(index);
        let in_slot = matches!(held, Held::Slot);
        let bytes = match held {
            Held::Slot => self.block.bytes(index),
            Held::Own(bytes) => bytes,
            Held::Substitute(other, bytes) => {
                id = *other;
                bytes
            }
            // SAFETY: pinned as long as `extra` is there, and nobody writes to a tier's memory.
            Held::Lent(_, _, pinned) => unsafe {
                std::slice::from_raw_parts(pinned.start, pinned.length)
            },
        };
        Some(Sample { id, bytes, in_slot, source: self.source.as_ref() })
    }

    /// Where another process finds the bytes of a sample in [`Loader::shared_memory`]: offset
    /// and length. They stay there until the last clone of this batch is dropped. `None` if
    /// they lie elsewhere and have to be sent: the sample was replaced, or a read or write of
    /// it hung, or the staging buffer is not shared; or if it was skipped.
    pub fn place(&self, index: usize) -> Option<(usize, usize)> {
        let in_slot = self.block.state(index) == SlotState::Filled
            && matches!(self.extra.held(index), Held::Slot);
        (self.can_be_mapped && in_slot)
            .then(|| (self.block.offset(index), self.block.bytes(index).len()))
    }

    /// The samples that are there, in order.
    pub fn iter(&self) -> impl Iterator<Item = Sample<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

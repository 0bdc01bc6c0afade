//! Transforms samples between the loader and the consumer.
//!
//! ```text
//! loader ──▶ puller ──▶ transform queue ──▶ in order: consumer
//!             raw         ▲ threads of the engine claim samples,
//!                         │ of the rank that is latest, oldest batch first
//!                     blocks of memory, used again
//! ```
//!
//! 1. One thread, the *puller*, takes raw batches from the loader in order, while fewer than
//!    `depth` are in the [`queue`]. Each gets an [`OutputBlock`] with space for the arrays of all
//!    fields whose shape is known.
//! 2. The engine's threads that transform ([`crate::pool`]) work for the stages of all ranks; each
//!    stage brings some. They claim samples, not batches: of the oldest batch first, so that all
//!    threads work on the batch that the consumer waits for. A sample is split into its
//!    [`field`]s, each goes
//!    through its chain, and the result is written to the sample's row.
//! 3. The thread that finishes the last sample of a batch assembles it ([`batch`]): failed samples
//!    are left out or replaced, and the raw batch returns to the staging buffer.
//! 4. The consumer takes batches in order. A block returns to its pool ([`memory`]) when its last
//!    holder drops it, so in steady state there are `depth` blocks and those that the consumer
//!    holds.
//!
//! Idle threads sleep. A transform that panics is a failed sample.

mod batch;
mod field;
mod memory;
mod output;
mod queue;
#[cfg(test)]
mod thread_tests;
mod threads;

use std::fmt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::Step;

pub use field::{FieldSpec, SampleParts, Transform, Value};
pub use memory::{BlockHome, BlockMemory, OutputBlock};
pub use output::{FailedSample, OutputBatch, OutputColumn, RowArray};

use crate::EngineError;
use crate::config::BadSamples;
use crate::deliver::{Delivery, Loader, LoaderMonitor};
use crate::pool::StageSlot;
use batch::Recipe;
use memory::BlockPool;
use queue::TransformQueue;
use threads::StageWork;

/// No machine has more processors.
const MOST_THREADS: usize = 1 << 12;

/// The configuration of a transform stage.
#[derive(Debug)]
pub struct TransformConfig {
    /// The columns of a batch.
    pub fields: Vec<FieldSpec>,
    /// The seed of random draws, which also depend on the epoch and the sample.
    pub seed: u64,
    /// The step that the loader counts as batch 0 of epoch 0, for a run that is resumed.
    pub first: Step,
    /// Whether an epoch can have a sample more than once. Draws then depend on its position as
    /// well.
    pub repeats: bool,
    /// Threads that the stage adds to those of the engine. All stages of a node share the threads
    /// that transform; how many do is up to the policy, and without its word, as many as the stages
    /// have brought.
    pub threads: usize,
    /// Batches that are being transformed or wait for the consumer.
    pub depth: usize,
    /// What happens to a batch with a sample that cannot be transformed.
    pub on_error: BadSamples,
    /// Whether the consumer is another process, which can map the memory of batches
    /// ([`OutputBlock::shared_memory`]). The caller then counts what the consumer gets and waits for
    /// ([`LoaderMonitor::delivered`]).
    pub is_shared: bool,
    /// Called before announced memory is freed.
    pub on_gone: Option<OnGone>,
}

/// Called for every announced block before its memory is freed, with its address and length. That
/// happens when the stage and all its batches are gone, so never on a thread of the engine.
pub struct OnGone(pub Box<dyn Fn(usize, usize) + Send + Sync>);

impl fmt::Debug for OnGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnGone")
    }
}

impl Default for TransformConfig {
    fn default() -> Self {
        Self {
            fields: vec![],
            seed: 0,
            first: Step { epoch: 0, iteration: 0 },
            repeats: false,
            threads: 1,
            depth: 2,
            on_error: BadSamples::Raise,
            is_shared: false,
            on_gone: None,
        }
    }
}

/// Delivers transformed batches, in order, to any number of threads.
#[derive(Debug)]
pub struct Transformed {
    queue: Arc<TransformQueue>,
    /// Outlives the work on batches.
    _pool: Arc<BlockPool>,
    is_shared: bool,
    /// Threads work for the stage while this is there.
    slot: Mutex<Option<Arc<StageSlot>>>,
    puller: Mutex<Option<JoinHandle<()>>>,
    monitor: LoaderMonitor,
    /// How long the caller has waited for the next batch.
    waited: Mutex<Duration>,
}

impl Transformed {
    /// Starts to transform the batches of a loader.
    ///
    /// # Errors
    /// Fails if a thread cannot be started.
    pub fn new(mut loader: Loader, config: TransformConfig) -> Result<Self, EngineError> {
        loader.feed_stage();
        let monitor = loader.monitor();
        let depth = config.depth.max(1);
        let pool = Arc::new(BlockPool::new(depth, config.is_shared, config.on_gone));
        let queue = Arc::new(TransformQueue::new(depth));
        let (job, rank) = (loader.job_context().clone(), loader.parts.rank);
        let work = StageWork {
            queue: queue.clone(),
            meter: job.threads.meter.clone(),
            metrics: loader.metrics().clone(),
            ranks: job.ranks.len(),
            scratches: Mutex::default(),
        };
        let threads = config.threads.clamp(1, MOST_THREADS) as u32;
        let slot =
            job.lane.add_stage(rank, threads, Arc::new(work)).map_err(EngineError::Threads)?;
        let slot = Arc::new(slot);
        job.threads.meter.turn_on();
        job.note_threads(false);
        // If the puller cannot be started, dropping the stage gives its threads back.
        let stage = Self {
            queue: queue.clone(),
            _pool: pool.clone(),
            is_shared: config.is_shared,
            slot: Mutex::new(Some(slot.clone())),
            puller: Mutex::default(),
            monitor,
            waited: Mutex::default(),
        };
        let recipe = Arc::new(Recipe {
            fields: config.fields,
            seed: config.seed,
            first: config.first,
            repeats: config.repeats,
            on_error: config.on_error,
        });
        let puller = std::thread::Builder::new().name("belady-pull".into());
        // The job refers to no stage: it ends when the puller drops the loader.
        drop(job);
        let puller = puller.spawn(move || threads::pull(loader, &queue, &slot, &recipe, &pool));
        *lock(&stage.puller) = Some(puller.map_err(EngineError::Threads)?);
        Ok(stage)
    }

    /// Returns the next batch if it comes within `patience`.
    ///
    /// # Errors
    /// After an error about a sample, the next call returns the batch after it.
    pub fn next_batch_timeout(
        &self,
        patience: Duration,
    ) -> Result<Delivery<OutputBatch>, EngineError> {
        let began = Instant::now();
        let next = self.queue.take(began.checked_add(patience));
        let mut waited = lock(&self.waited);
        *waited += began.elapsed();
        if matches!(next, Ok(Delivery::TimedOut)) {
            return next;
        }
        let waited = std::mem::take(&mut *waited);
        if let Ok(Delivery::Batch(batch)) = &next
            && !self.is_shared
        {
            batch.block.iter().for_each(|block| block.lend());
            batch.skipped.report();
            let (samples, bytes) = (batch.samples.len() as u64, batch.read_bytes);
            self.monitor.delivered(batch.step, waited, samples, bytes);
        }
        next
    }

    /// Returns what it waits for, as words that follow "waits for".
    pub fn waiting_for(&self) -> String {
        self.queue.waiting_for().unwrap_or_else(|| self.monitor.waiting_for())
    }

    /// Returns a monitor of the job behind the stage.
    pub fn monitor(&self) -> &LoaderMonitor {
        &self.monitor
    }

    /// Ends its threads and the job. A thread that waits for a batch gets [`EngineError::Stopped`].
    pub fn close(&self) {
        self.queue.close();
        if let Some(puller) = lock(&self.puller).take() {
            // A panic was reported to the consumer.
            let _ = puller.join();
        }
        // Waits for the threads that work for the stage.
        let slot = lock(&self.slot).take();
        drop(slot);
        self.queue.clear();
    }
}

impl Drop for Transformed {
    fn drop(&mut self) {
        self.close();
    }
}

//! Batches whose samples are transformed on their way to the consumer.
//!
//! ```text
//! loader ──▶ puller ──▶ line of batches ──▶ in order: consumer
//!             raw         ▲ threads claim samples,
//!                         │ oldest batch first
//!                     blocks of memory, used again
//! ```
//!
//! 1. One thread, the *puller*, takes raw batches from the loader in order, as long as fewer than
//!    `depth` are in the [`line`]. Each gets a [`Block`] of memory with room for the arrays of
//!    all fields whose shape is known.
//! 2. Threads claim samples, not batches: of the oldest batch first, so that all work on what the
//!    consumer waits for. A sample is taken apart into its [`field`]s, each goes through its
//!    chain, and the result is written straight to the sample's row.
//! 3. Who finishes the last sample of a batch puts it together ([`work`]): failed samples are left
//!    out or replaced, the raw batch goes back to the staging buffer.
//! 4. The consumer takes batches in order. Memory goes back to the [`pool`] when the last holder
//!    lets go of it, so in steady state there are `depth` blocks and those that the consumer holds.
//!
//! Threads with nothing to do sleep. A transform that panics is a failed sample, no more.

mod field;
mod line;
mod made;
mod pool;
mod threads;
mod work;

use std::fmt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use belady_control::sampler::Step;
use belady_data::sync::{Arc, Mutex, lock};

pub use field::{Field, Parts, Transform, Value};
pub use made::{Column, Failed, Made, Rows};
pub use pool::Block;

use crate::config::BadSamples;
use crate::loader::{Loader, Next};
use crate::metrics::Metrics;
use crate::{EngineError, Outlook};
use line::Line;
use pool::Pool;
use work::Recipe;

/// What is made of a job's samples, and by whom.
#[derive(Debug)]
pub struct TransformConfig {
    pub fields: Vec<Field>,
    /// Random draws depend on this, on the epoch and on the sample.
    pub seed: u64,
    /// What the loader counts as batch 0 of epoch 0: for runs that go on from somewhere.
    pub first: Step,
    /// Whether an epoch can have a sample more than once. Draws then depend on its place as well.
    pub repeats: bool,
    pub threads: usize,
    /// Batches that are worked on or wait for the consumer.
    pub depth: usize,
    /// What happens to a batch with a sample that cannot be transformed.
    pub on_error: BadSamples,
    pub on_gone: Option<OnGone>,
}

/// Told of every announced block before its memory goes: where it begins and how long it is. That
/// is when the stage and all its batches are gone, so never on a thread of the engine's.
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
            on_gone: None,
        }
    }
}

/// Gives out transformed batches, in order, to any number of threads.
#[derive(Debug)]
pub struct Transformed {
    line: Arc<Line>,
    /// So that it does not end before the threads do.
    _pool: Arc<Pool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    outlook: Outlook,
    metrics: Arc<Metrics>,
    /// How long the caller has waited for the batch that was asked for and has not come.
    waited: Mutex<Duration>,
}

impl Transformed {
    /// Starts to transform what a loader gives.
    pub fn new(mut loader: Loader, config: TransformConfig) -> Result<Self, EngineError> {
        loader.feeds_stage = true;
        let (outlook, metrics) = (loader.outlook(), loader.metrics().clone());
        let depth = config.depth.max(1);
        let pool = Arc::new(Pool::new(depth, config.on_gone));
        let line = Arc::new(Line::new(depth));
        let made = Self {
            line: line.clone(),
            _pool: pool.clone(),
            threads: Mutex::default(),
            outlook,
            metrics: metrics.clone(),
            waited: Mutex::default(),
        };
        let recipe = Arc::new(Recipe {
            fields: config.fields,
            seed: config.seed,
            first: config.first,
            repeats: config.repeats,
            on_error: config.on_error,
        });
        // Dropping what was made so far ends the threads that have been started.
        for number in 0..config.threads.max(1) {
            let (line, metrics) = (line.clone(), metrics.clone());
            made.spawn(format!("belady-xform-{number}"), move || {
                threads::transform(&line, &metrics);
            })?;
        }
        made.spawn("belady-pull".into(), move || threads::pull(loader, &line, &recipe, &pool))?;
        Ok(made)
    }

    fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) -> Result<(), EngineError> {
        let thread = std::thread::Builder::new().name(name).spawn(work);
        lock(&self.threads).push(thread.map_err(EngineError::Threads)?);
        Ok(())
    }

    /// The next batch, if it comes within `patience`. After an error about a sample the next call
    /// goes on with the batch after it.
    pub fn next_batch_timeout(&self, patience: Duration) -> Result<Next<Made>, EngineError> {
        let began = Instant::now();
        let next = self.line.take(began.checked_add(patience));
        let mut waited = lock(&self.waited);
        *waited += began.elapsed();
        if matches!(next, Ok(Next::TimedOut)) {
            return next;
        }
        let waited = std::mem::take(&mut *waited);
        if let Ok(Next::Batch(made)) = &next {
            made.block.iter().for_each(|block| block.lend());
            made.missing.report();
            self.metrics.waited(waited, made.step.iteration == 0 && made.step.epoch > 0);
            self.metrics.delivered(made.samples.len() as u64, made.read_bytes);
        }
        next
    }

    /// What it waits for, in words that go after "waits for".
    pub fn waiting_for(&self) -> String {
        self.line.waiting_for().unwrap_or_else(|| self.outlook.waiting_for())
    }

    /// The job behind it.
    pub fn outlook(&self) -> &Outlook {
        &self.outlook
    }

    /// Ends its threads and the job. Whoever waits for a batch gets [`EngineError::Stopped`].
    pub fn close(&self) {
        self.line.close();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // A panic was told to the consumer.
            let _ = thread.join();
        }
        self.line.clear();
    }
}

impl Drop for Transformed {
    fn drop(&mut self) {
        self.close();
    }
}

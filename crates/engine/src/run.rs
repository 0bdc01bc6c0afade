//! A job that runs: what the planner, the loading threads and the consumer share.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belady_control::Sizes;
use belady_control::sampler::Step;
use belady_data::SampleId;
use belady_data::source::{Begin, Source};
use belady_data::sync::{Arc, Condvar, Mutex, lock};

use crate::brain::Brain;
use crate::cache::Cache;
use crate::config::{BadSamples, Lend, Retry};
use crate::flights::Flights;
use crate::horizon::Horizon;
use crate::load::Waiter;
use crate::metrics::{Metrics, Watch};
use crate::parcel::{Extra, Parcel};
use crate::peers::{Peers, pace};
use crate::pool::{Lane, Task, Worker};
use crate::prefetch::Prefetchers;
use crate::rates::Rates;
use crate::{EngineError, keep};

/// What a run is made of.
pub struct Parts {
    pub source: Arc<dyn Source>,
    pub sizes: Arc<Sizes>,
    pub cache: Cache,
    pub brain: Brain,
    pub lane: Lane,
    pub rates: Rates,
    pub metrics: Arc<Metrics>,
    pub retry: Retry,
    pub bad_samples: BadSamples,
    pub lending: Lending,
    pub peers: Option<Peers>,
    pub horizon: Horizon,
}

pub struct Run {
    pub parts: Parts,
    pub flights: Flights<Waiter>,
    pub prefetchers: Prefetchers,
    /// Batches that are not finished, in order.
    pub in_order: Mutex<VecDeque<Arc<Parcel>>>,
    pub extras: Extras,
    /// Batches that the consumer has asked for.
    pub asked: Asked,
    /// Batches that were planned.
    pub planned: AtomicU64,
    /// The last epoch for which files are compared again.
    compared_for: AtomicU32,
    /// How many batches each epoch has that has begun to be staged.
    epochs: Mutex<Vec<u32>>,
    /// How many of them have ended.
    ended: Mutex<Vec<u32>>,
    /// Samples are lent only to batches that are at most so many ahead of the consumer.
    lend_ahead: AtomicU64,
    /// The policy loads on demand, and nothing at the same time.
    pub one_at_a_time: AtomicBool,
    /// Somebody is going to look whether the first batch may end.
    pub looks_again: AtomicBool,
    failure: Mutex<Failure>,
    stopping: AtomicBool,
    /// Lets the metrics see the source's operations.
    _watch: Watch,
}

/// Whether samples are lent from memory tiers.
#[derive(Clone, Copy, Debug)]
pub struct Lending {
    pub lend: Lend,
    /// All samples stay in memory. Otherwise, what is lent cannot be let go, and a plan counts
    /// on the room of what it lets go: only batches near the consumer are lent samples.
    pub all_stay: bool,
}

/// What no later batch can get around.
#[derive(Debug, Default)]
enum Failure {
    #[default]
    None,
    Fatal(EngineError),
    /// There is nothing after the batches that were planned.
    AtEnd(EngineError),
    /// The consumer knows.
    Told,
}

impl std::ops::Deref for Run {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Run {
    pub fn new(parts: Parts) -> Self {
        Self {
            prefetchers: Prefetchers::new(parts.cache.len()),
            _watch: parts.metrics.watch(parts.source.clone()),
            parts,
            flights: Flights::default(),
            in_order: Mutex::default(),
            extras: Extras::new(),
            asked: Asked::default(),
            planned: AtomicU64::new(0),
            compared_for: AtomicU32::new(0),
            epochs: Mutex::default(),
            ended: Mutex::default(),
            lend_ahead: AtomicU64::new(0),
            one_at_a_time: AtomicBool::new(false),
            looks_again: AtomicBool::new(false),
            failure: Mutex::default(),
            stopping: AtomicBool::new(false),
        }
    }

    pub fn size(&self, sample: SampleId) -> u64 {
        self.sizes.get(sample)
    }

    /// A problem that no later batch can get around.
    pub fn fail(&self, error: EngineError) {
        let mut failure = lock(&self.failure);
        if matches!(*failure, Failure::None | Failure::AtEnd(_)) {
            *failure = Failure::Fatal(error);
        }
        drop(failure);
        self.stop();
    }

    /// A problem behind the batches that were planned: they are delivered before it is told.
    pub fn end_with(&self, error: EngineError) {
        let mut failure = lock(&self.failure);
        if matches!(*failure, Failure::None) {
            *failure = Failure::AtEnd(error);
        }
    }

    /// Why the run has failed, if it has: in full the first time. `at_end` if all batches that
    /// were planned are delivered.
    pub fn failure(&self, at_end: bool) -> Option<EngineError> {
        let mut failure = lock(&self.failure);
        match std::mem::replace(&mut *failure, Failure::Told) {
            Failure::Fatal(error) => Some(error),
            Failure::AtEnd(error) if at_end => Some(error),
            Failure::Told => Some(EngineError::Stopped),
            still @ (Failure::None | Failure::AtEnd(_)) => {
                *failure = still;
                None
            }
        }
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.asked.wake();
        self.horizon.wake();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Lets go of all batches on their way. They refer to this, so somebody has to.
    pub fn abandon(&self) {
        self.stop();
        self.lane.close();
        let in_order = std::mem::take(&mut *lock(&self.in_order));
        drop(in_order);
        self.flights.close();
        self.extras.close();
        if let Some(peers) = &self.peers {
            peers.close();
        }
    }

    /// A piece of work that ends the run if it panics, so that nobody waits for it.
    pub fn task(self: &Arc<Self>, work: impl FnOnce(&Worker) + Send + 'static) -> Task {
        let run = self.clone();
        Box::new(move |worker| {
            let _guard = Guard(&run);
            work(worker);
        })
    }

    /// Ends the run if the thread panics while this is there.
    pub fn guard(&self) -> Guard<'_> {
        Guard(self)
    }

    /// Some items of a batch are there.
    pub fn loaded(self: &Arc<Self>, parcel: &Parcel, items: u32) {
        if parcel.loaded(items) {
            self.is_there(parcel);
        }
    }

    /// All of a batch is there.
    pub fn is_there(self: &Arc<Self>, parcel: &Parcel) {
        pace::loaded(self, parcel);
        keep::advance(self);
    }

    /// A batch of an epoch has ended.
    pub fn ended(&self, epoch: u32) {
        let mut ended = lock(&self.ended);
        if ended.len() <= epoch as usize {
            ended.resize(epoch as usize + 1, 0);
        }
        ended[epoch as usize] += 1;
    }

    /// Whether all batches of an epoch have ended.
    pub fn has_ended(&self, epoch: u32) -> bool {
        let ended = lock(&self.ended).get(epoch as usize).copied().unwrap_or(0);
        self.batches_of(epoch).is_some_and(|batches| ended >= batches)
    }

    /// An epoch of so many batches is staged from now on.
    pub fn begin_epoch(&self, batches: u32) {
        lock(&self.epochs).push(batches);
        pace::begin_epoch(self, batches);
        let ahead = if self.lending.all_stay { u64::MAX } else { u64::from(batches / 4) };
        self.lend_ahead.store(ahead, Ordering::Relaxed);
    }

    /// An epoch begins to be staged, here or at a node that is a little ahead and asks for what it needs:
    /// files are compared again, if the user wants it so.
    pub fn compare_for(&self, epoch: u32) {
        if self.compared_for.fetch_max(epoch, Ordering::AcqRel) < epoch {
            self.source.begin(Begin::Epoch);
        }
    }

    /// Epochs that have begun to be staged.
    pub fn epochs_begun(&self) -> u32 {
        lock(&self.epochs).len() as u32
    }

    /// How many batches an epoch has; `None` before it is staged.
    pub fn batches_of(&self, epoch: u32) -> Option<u32> {
        lock(&self.epochs).get(epoch as usize).copied()
    }

    /// Whether a memory tier may lend what is staged now.
    pub fn may_lend(&self) -> bool {
        let ahead = self.planned.load(Ordering::Relaxed).saturating_sub(self.asked.count());
        self.lending.lend == Lend::ReadOnly && ahead <= self.lend_ahead.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("source", &self.source).finish_non_exhaustive()
    }
}

pub struct Guard<'a>(&'a Run);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(EngineError::Defect);
        }
    }
}

/// What published batches have beside their blocks, until the consumer takes them.
#[derive(Debug)]
pub struct Extras {
    /// `None` once nobody takes them any more.
    waiting: Mutex<Option<HashMap<Step, Extra>>>,
}

impl Extras {
    pub fn new() -> Self {
        Self { waiting: Mutex::new(Some(HashMap::new())) }
    }

    pub fn add(&self, step: Step, extra: Extra) {
        let refused = match &mut *lock(&self.waiting) {
            Some(waiting) => waiting.insert(step, extra),
            None => Some(extra),
        };
        drop(refused);
    }

    pub fn take(&self, step: Step) -> Extra {
        let mut waiting = lock(&self.waiting);
        waiting.as_mut().and_then(|waiting| waiting.remove(&step)).unwrap_or_default()
    }

    fn close(&self) {
        let waiting = lock(&self.waiting).take();
        drop(waiting);
    }
}

/// How many batches the consumer has asked for.
#[derive(Debug, Default)]
pub struct Asked {
    count: AtomicU64,
    /// When the last one was asked for.
    at: Mutex<Option<Instant>>,
    waiting: AtomicBool,
    lock: Mutex<()>,
    more: Condvar,
}

/// A consumer waits as long as this is there.
#[derive(Debug)]
pub struct Waiting<'a>(&'a Asked);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.store(false, Ordering::Release);
    }
}

impl Asked {
    /// One batch more.
    pub fn ask(&self) {
        *lock(&self.at) = Some(Instant::now());
        self.count.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    /// One batch that nobody here asks for.
    pub fn skip(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// How long the batch of that number is being waited for; zero if it was not asked for.
    pub fn waited_for(&self, batch: u64) -> Duration {
        if self.count() < batch {
            return Duration::ZERO;
        }
        lock(&self.at).map_or(Duration::ZERO, |at| at.elapsed())
    }

    pub fn wait(&self) -> Waiting<'_> {
        self.waiting.store(true, Ordering::Release);
        Waiting(self)
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    pub fn wake(&self) {
        let _lock = lock(&self.lock);
        self.more.notify_all();
    }

    /// Waits until more than `batches` were asked for.
    pub fn wait_beyond(&self, batches: u64, stopping: impl Fn() -> bool) {
        let mut guard = lock(&self.lock);
        while self.count() <= batches && !stopping() {
            guard = self.more.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

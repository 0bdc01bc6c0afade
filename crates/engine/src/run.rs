//! A job that runs: what the planner, the loading threads and the consumer share.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use belady_control::Sizes;
use belady_control::sampler::Step;
use belady_data::SampleId;
use belady_data::source::Source;

use crate::brain::Brain;
use crate::cache::Cache;
use crate::config::{BadSamples, Lend, Retry};
use crate::flights::Flights;
use crate::load::Waiter;
use crate::metrics::{Metrics, Watch};
use crate::parcel::{Extra, Parcel};
use crate::pool::{Pool, lock};
use crate::prefetch::Prefetchers;
use crate::rates::Rates;
use crate::{EngineError, keep};

pub struct Run {
    pub source: Arc<dyn Source>,
    pub sizes: Arc<Sizes>,
    pub cache: Cache,
    pub flights: Flights<Waiter>,
    pub brain: Brain,
    pub pool: Arc<Pool>,
    pub prefetchers: Prefetchers,
    pub rates: Rates,
    pub metrics: Arc<Metrics>,
    pub retry: Retry,
    pub bad_samples: BadSamples,
    pub lend: Lend,
    /// Batches that are not finished, in order.
    pub in_order: Mutex<VecDeque<Arc<Parcel>>>,
    pub extras: Extras,
    /// Batches that the consumer has asked for.
    pub asked: Asked,
    /// Batches that were planned.
    pub planned: AtomicU64,
    fatal: Mutex<Option<EngineError>>,
    stopping: AtomicBool,
    /// Lets the metrics see the source's operations.
    _watch: Watch,
}

/// What a run is made of.
pub struct Parts {
    pub source: Arc<dyn Source>,
    pub sizes: Arc<Sizes>,
    pub cache: Cache,
    pub brain: Brain,
    pub pool: Arc<Pool>,
    pub rates: Rates,
    pub metrics: Arc<Metrics>,
    pub retry: Retry,
    pub bad_samples: BadSamples,
    pub lend: Lend,
}

impl Run {
    pub fn new(parts: Parts) -> Self {
        let Parts { source, sizes, cache, brain, pool, rates, metrics, .. } = parts;
        Self {
            prefetchers: Prefetchers::new(cache.len()),
            _watch: metrics.watch(source.clone()),
            source,
            sizes,
            cache,
            flights: Flights::default(),
            brain,
            pool,
            rates,
            metrics,
            retry: parts.retry,
            bad_samples: parts.bad_samples,
            lend: parts.lend,
            in_order: Mutex::default(),
            extras: Extras::new(),
            asked: Asked::default(),
            planned: AtomicU64::new(0),
            fatal: Mutex::default(),
            stopping: AtomicBool::new(false),
        }
    }

    pub fn size(&self, sample: SampleId) -> u64 {
        self.sizes.get(sample)
    }

    /// A problem that no later batch can get around.
    pub fn fail(&self, error: EngineError) {
        lock(&self.fatal).get_or_insert(error);
        self.stop();
    }

    pub fn take_failure(&self) -> Option<EngineError> {
        lock(&self.fatal).take()
    }

    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.asked.wake();
    }

    /// Lets go of all batches on their way. They refer to this, so somebody has to.
    pub fn abandon(&self) {
        self.stop();
        let in_order = std::mem::take(&mut *lock(&self.in_order));
        drop(in_order);
        self.flights.close();
        self.extras.close();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Some items of a batch are there.
    pub fn loaded(&self, parcel: &Parcel, items: u32) {
        if parcel.loaded(items) {
            keep::advance(self);
        }
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("source", &self.source).finish_non_exhaustive()
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

/// How many batches the consumer has asked for, for policies that load on demand.
#[derive(Debug, Default)]
pub struct Asked {
    count: Mutex<u64>,
    more: Condvar,
    waiting: AtomicBool,
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
    pub fn ask(&self) -> Waiting<'_> {
        *lock(&self.count) += 1;
        self.more.notify_all();
        self.waiting.store(true, Ordering::Release);
        Waiting(self)
    }

    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    pub fn wake(&self) {
        let _count = lock(&self.count);
        self.more.notify_all();
    }

    /// Waits until more than `batches` were asked for.
    pub fn wait_beyond(&self, batches: u64, stopping: impl Fn() -> bool) {
        let mut count = lock(&self.count);
        while *count <= batches && !stopping() {
            count = self.more.wait(count).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

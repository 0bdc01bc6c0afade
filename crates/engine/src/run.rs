//! A job that runs: what the planner, the loading threads and the consumer share.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use belady_control::Sizes;
use belady_data::SampleId;
use belady_data::source::Source;

use crate::brain::Brain;
use crate::cache::Cache;
use crate::config::{BadSamples, Lend, Retry};
use crate::flights::Flights;
use crate::load::Waiter;
use crate::metrics::Metrics;
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
    /// What published batches have beside their blocks, by sequence.
    pub extras: Mutex<HashMap<u64, Extra>>,
    /// Batches that the consumer has asked for.
    pub asked: Asked,
    /// Batches that were planned.
    pub planned: AtomicU64,
    fatal: Mutex<Option<EngineError>>,
    stopping: AtomicBool,
}

impl Run {
    #[allow(clippy::too_many_arguments)]
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

/// How many batches the consumer has asked for, for policies that load on demand.
#[derive(Debug, Default)]
pub struct Asked {
    count: Mutex<u64>,
    more: Condvar,
}

impl Asked {
    pub fn ask(&self) {
        *lock(&self.count) += 1;
        self.more.notify_all();
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

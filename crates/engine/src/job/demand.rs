//! The consumer's demand: how many batches it has asked for, and whether it waits.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belady_base::sync::{Condvar, Mutex, lock};

/// The number of batches that the consumer has asked for.
#[derive(Debug, Default)]
pub struct ConsumerDemand {
    count: AtomicU64,
    /// The time of the last request.
    last: Mutex<Option<Instant>>,
    waiting: AtomicBool,
    lock: Mutex<()>,
    more: Condvar,
}

/// The consumer counts as waiting while this exists.
#[derive(Debug)]
pub struct ConsumerWait<'a>(&'a ConsumerDemand);

impl Drop for ConsumerWait<'_> {
    fn drop(&mut self) {
        self.0.set_waiting(false);
    }
}

impl ConsumerDemand {
    /// Records a request for one more batch.
    pub fn request(&self) {
        *lock(&self.last) = Some(Instant::now());
        self.count.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    /// Counts a batch that the consumer of this node skips.
    pub fn skip(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how long the consumer has waited for a batch, given by its number; zero if it has
    /// not asked for it.
    pub fn waited_for(&self, batch: u64) -> Duration {
        if self.count() < batch {
            return Duration::ZERO;
        }
        lock(&self.last).map_or(Duration::ZERO, |last| last.elapsed())
    }

    /// Marks the consumer as waiting.
    pub fn wait(&self) -> ConsumerWait<'_> {
        self.set_waiting(true);
        ConsumerWait(self)
    }

    pub fn set_waiting(&self, is_waiting: bool) {
        self.waiting.store(is_waiting, Ordering::Release);
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

    /// Waits until the consumer has asked for more than `batches`.
    pub fn wait_beyond(&self, batches: u64, stopping: impl Fn() -> bool) {
        let mut guard = lock(&self.lock);
        while self.count() <= batches && !stopping() {
            guard = self.more.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

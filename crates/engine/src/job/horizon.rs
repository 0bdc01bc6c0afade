//! How far the planner stages beyond the epoch that the consumer has begun.
//!
//! A job without a number of epochs may end after any epoch. To stage all of the next epoch would
//! waste reads if the consumer is done, or does something else between two epochs. So the planner
//! stages only the start of the next epoch before the consumer begins it.

use std::sync::PoisonError;

use belady_base::sync::{Condvar, Mutex, lock};
use belady_control::sampler::Step;

/// Batches of the next epoch that are staged in any case: one to deliver, and one meanwhile.
const LEAST: u32 = 2;
/// The same for a job with peers. Their transform stages take batches ahead of their consumers, and
/// each step waits until this node has filled it, even while this consumer pauses between epochs.
const LEAST_WITH_PEERS: u32 = 8;

/// The limit of what is staged ahead of the consumer.
#[derive(Debug)]
pub struct Horizon {
    /// Bytes of the next epoch; `None` for no limit.
    limit: Option<u64>,
    /// Batches of the next epoch that are always allowed.
    least: u32,
    consumer: Mutex<ConsumerEpoch>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ConsumerEpoch {
    /// The latest epoch that the consumer has begun.
    begun: u32,
    /// The consumer is done with that epoch, and the planner has not acted on it yet.
    is_done: bool,
}

impl Horizon {
    pub fn new(limit: Option<u64>, has_peers: bool) -> Self {
        let least = if has_peers { LEAST_WITH_PEERS } else { LEAST };
        Self { limit, least, consumer: Mutex::default(), changed: Condvar::new() }
    }

    /// The consumer begins an epoch.
    pub fn begin(&self, epoch: u32) {
        let mut consumer = lock(&self.consumer);
        *consumer = ConsumerEpoch { begun: epoch.max(consumer.begun), is_done: false };
        self.changed.notify_all();
    }

    /// The consumer is done with its epoch.
    pub fn end(&self) {
        lock(&self.consumer).is_done = true;
        self.changed.notify_all();
    }

    pub fn wake(&self) {
        let _consumer = lock(&self.consumer);
        self.changed.notify_all();
    }

    /// Waits until a batch may be staged that brings its epoch to `bytes`. Calls `on_end` when the
    /// consumer ends its epoch meanwhile.
    pub fn wait(
        &self,
        step: Step,
        bytes: u64,
        stopping: impl Fn() -> bool,
        mut on_end: impl FnMut(),
    ) {
        let Some(limit) = self.limit else { return };
        let within = step.iteration < self.least || bytes <= limit;
        let mut consumer = lock(&self.consumer);
        while step.epoch > consumer.begun + u32::from(within) && !stopping() {
            if std::mem::take(&mut consumer.is_done) {
                drop(consumer);
                on_end();
                consumer = lock(&self.consumer);
            } else {
                consumer = self.changed.wait(consumer).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// Returns whether the wait returns at once; one that would block is stopped.
    fn passes(horizon: &Horizon, epoch: u32, iteration: u32, bytes: u64) -> bool {
        let waits = AtomicBool::new(false);
        let stop = || {
            waits.store(true, Ordering::Relaxed);
            true
        };
        horizon.wait(Step { epoch, iteration }, bytes, stop, || {});
        !waits.load(Ordering::Relaxed)
    }

    #[test]
    fn the_start_of_the_next_epoch_is_staged_and_no_more() {
        let horizon = Horizon::new(Some(100), false);
        assert!(passes(&horizon, 0, 999, 1 << 40), "the current epoch");
        assert!(passes(&horizon, 1, 0, 1 << 40) && passes(&horizon, 1, 1, 1 << 40), "two batches");
        assert!(passes(&horizon, 1, 2, 100) && !passes(&horizon, 1, 2, 101));
        assert!(!passes(&horizon, 2, 0, 1), "the epoch after it, however small");
        horizon.begin(1);
        assert!(passes(&horizon, 1, 2, 101) && passes(&horizon, 2, 2, 100));
        horizon.begin(0);
        assert!(passes(&horizon, 1, 2, 101), "begun epochs stay begun");
    }

    #[test]
    fn more_batches_are_staged_for_peers() {
        let horizon = Horizon::new(Some(0), true);
        assert!(passes(&horizon, 1, LEAST_WITH_PEERS - 1, 1));
        assert!(!passes(&horizon, 1, LEAST_WITH_PEERS, 1));
    }

    #[test]
    fn without_a_bound_nothing_waits() {
        assert!(passes(&Horizon::new(None, false), 1000, 1000, u64::MAX));
    }

    #[test]
    fn an_ended_epoch_is_reported_once_and_not_after_the_next_has_begun() {
        let horizon = Horizon::new(Some(0), false);
        let (ends, looks) = (Cell::new(0), Cell::new(0));
        // The second check ends the wait.
        let wait = || {
            looks.set(0);
            let stop = || looks.replace(looks.get() + 1) > 0;
            let step = Step { epoch: 9, iteration: 9 };
            horizon.wait(step, 1, stop, || ends.set(ends.get() + 1));
        };
        horizon.end();
        wait();
        assert_eq!(ends.get(), 1);
        horizon.end();
        horizon.begin(1);
        std::thread::scope(|scope| {
            let (horizon, over) = (&horizon, Arc::new(AtomicBool::new(false)));
            let is_over = over.clone();
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    horizon.wake();
                    std::thread::yield_now();
                }
            });
            wait();
            over.store(true, Ordering::Release);
        });
        assert_eq!(ends.get(), 1);
    }

    #[test]
    fn a_wait_ends_when_the_epoch_begins_or_the_job_stops() {
        for stops in [false, true] {
            let horizon = Arc::new(Horizon::new(Some(0), false));
            let stopped = Arc::new(AtomicBool::new(false));
            let waiter = {
                let (horizon, stopped) = (horizon.clone(), stopped.clone());
                std::thread::spawn(move || {
                    let step = Step { epoch: 2, iteration: 5 };
                    horizon.wait(step, 1, || stopped.load(Ordering::Acquire), || {});
                })
            };
            if stops {
                stopped.store(true, Ordering::Release);
                horizon.wake();
            } else {
                horizon.begin(2);
            }
            waiter.join().expect("the wait ends");
        }
    }
}

//! How far a job is staged beyond the epoch that its consumer has begun.
//!
//! Without a number of epochs it is not known whether there will be another one. A consumer that is done,
//! or does something else between two epochs, would have its staging buffer filled in vain. So only
//! the start of the next epoch is staged before the consumer says that it begins.

use std::sync::PoisonError;

use belady_control::sampler::Step;
use belady_data::sync::{Condvar, Mutex, lock};

/// Batches of the next epoch that are staged in any case: one to give out, and one meanwhile.
const LEAST: u32 = 2;
/// The same where there are other nodes. Their stages take batches ahead of their consumers, and each step
/// waits until this node has loaded it, perhaps while its consumer does something else between epochs.
const LEAST_WITH_PEERS: u32 = 8;

#[derive(Debug)]
pub struct Horizon {
    /// Bytes of the next epoch; `None` sets no bound.
    limit: Option<u64>,
    /// Batches of it in any case.
    least: u32,
    consumer: Mutex<Consumer>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Consumer {
    /// The latest epoch that it has begun.
    begun: u32,
    /// It is done with that one, and the wait has not acted on it yet.
    rests: bool,
}

impl Horizon {
    pub fn new(limit: Option<u64>, has_peers: bool) -> Self {
        let least = if has_peers { LEAST_WITH_PEERS } else { LEAST };
        Self { limit, least, consumer: Mutex::default(), changed: Condvar::new() }
    }

    /// The consumer begins an epoch.
    pub fn begin(&self, epoch: u32) {
        let mut consumer = lock(&self.consumer);
        *consumer = Consumer { begun: epoch.max(consumer.begun), rests: false };
        self.changed.notify_all();
    }

    /// The consumer is done with its epoch.
    pub fn rest(&self) {
        lock(&self.consumer).rests = true;
        self.changed.notify_all();
    }

    pub fn wake(&self) {
        let _consumer = lock(&self.consumer);
        self.changed.notify_all();
    }

    /// Waits until a batch may be staged that makes it `bytes` of its epoch. When the consumer comes to rest
    /// meanwhile, `rest` is called.
    pub fn wait(
        &self,
        step: Step,
        bytes: u64,
        stopping: impl Fn() -> bool,
        mut rest: impl FnMut(),
    ) {
        let Some(limit) = self.limit else { return };
        let within = step.iteration < self.least || bytes <= limit;
        let mut consumer = lock(&self.consumer);
        while step.epoch > consumer.begun + u32::from(within) && !stopping() {
            if std::mem::take(&mut consumer.rests) {
                drop(consumer);
                rest();
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

    /// Whether it returns at once. One that would wait is told to stop.
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
        assert!(passes(&horizon, 0, 999, 1 << 40), "the epoch that has begun");
        assert!(passes(&horizon, 1, 0, 1 << 40) && passes(&horizon, 1, 1, 1 << 40), "two batches");
        assert!(passes(&horizon, 1, 2, 100) && !passes(&horizon, 1, 2, 101));
        assert!(!passes(&horizon, 2, 0, 1), "the one after it, however small they are");
        horizon.begin(1);
        assert!(passes(&horizon, 1, 2, 101) && passes(&horizon, 2, 2, 100));
        horizon.begin(0);
        assert!(passes(&horizon, 1, 2, 101), "what has begun stays so");
    }

    #[test]
    fn other_nodes_find_some_more_batches_loaded() {
        let horizon = Horizon::new(Some(0), true);
        assert!(passes(&horizon, 1, LEAST_WITH_PEERS - 1, 1));
        assert!(!passes(&horizon, 1, LEAST_WITH_PEERS, 1));
    }

    #[test]
    fn without_a_bound_nothing_waits() {
        assert!(passes(&Horizon::new(None, false), 1000, 1000, u64::MAX));
    }

    #[test]
    fn a_consumer_that_rests_is_told_of_once_and_not_when_it_has_begun_again() {
        let horizon = Horizon::new(Some(0), false);
        let (rests, looks) = (Cell::new(0), Cell::new(0));
        // The second look ends the wait.
        let wait = || {
            looks.set(0);
            let stop = || looks.replace(looks.get() + 1) > 0;
            let step = Step { epoch: 9, iteration: 9 };
            horizon.wait(step, 1, stop, || rests.set(rests.get() + 1));
        };
        horizon.rest();
        wait();
        assert_eq!(rests.get(), 1);
        horizon.rest();
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
        assert_eq!(rests.get(), 1);
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

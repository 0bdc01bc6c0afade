//! The training loop's end of a ring.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use belady_base::sync::Arc;
use belady_base::sync::atomic::Ordering::SeqCst;
use belady_base::sync::plain::Ordering::Relaxed;

use super::RingError;
use super::batch::RingBatch;
use super::layout::{ending, presence, turn};
use super::liveness::{CHECK_INTERVAL, LivenessCheck};
use super::region::Region;

/// Takes batches in the order in which they were reserved. Dropping it ends the producer's waits;
/// batches taken before stay valid.
#[derive(Debug)]
pub struct RingConsumer {
    region: Arc<Region>,
    /// Sequence number of the next batch.
    next: u64,
    liveness: LivenessCheck,
    /// The producer was killed: only what it had published can still be taken.
    orphaned: bool,
    /// The producer wrote an invalid descriptor: no more is taken.
    broken: bool,
}

/// How a take ended.
#[derive(Clone, Debug)]
pub enum Take {
    /// The next batch.
    Batch(RingBatch),
    /// No further batches; [`RingConsumer::is_complete`] tells whether all were taken.
    Ended,
    /// The timeout passed.
    TimedOut,
}

/// The state of the next batch, from its descriptor and the producer's ending.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RingNext {
    Ready,
    Pending,
    Over,
}

impl RingConsumer {
    pub(super) fn of(region: Arc<Region>) -> Result<Self, RingError> {
        let header = region.header();
        header
            .from_consumer
            .presence
            .compare_exchange(presence::AWAITED, presence::PRESENT, SeqCst, SeqCst)
            .map_err(|_| RingError::Occupied)?;
        header.consumer.store_own();
        Ok(Self { region, next: 0, liveness: LivenessCheck::new(), orphaned: false, broken: false })
    }

    /// Attaches to a ring that another process created and whose file it sent.
    ///
    /// # Errors
    ///
    /// If the file is no ring of this version, or the ring has had a consumer.
    pub fn attach(file: OwnedFd) -> Result<Self, RingError> {
        Self::of(Arc::new(Region::attach(file)?))
    }

    /// Returns the next batch, and waits for it up to the timeout, or without a limit for `None`.
    /// Stops waiting when the producer is dropped or killed.
    pub fn take(&mut self, timeout: Option<Duration>) -> Take {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match self.next_batch() {
                RingNext::Ready => return self.lend(),
                RingNext::Over => return Take::Ended,
                RingNext::Pending => {}
            }
            let producer = &self.region.header().producer;
            if !self.orphaned && self.liveness.is_dead(producer) {
                // Look again: it may have published before it died.
                self.orphaned = true;
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Take::TimedOut;
            }
            let until = deadline.unwrap_or(now + CHECK_INTERVAL).min(now + CHECK_INTERVAL);
            self.region.header().arrivals.wait(until, || self.next_batch() != RingNext::Pending);
        }
    }

    /// Whether a batch can be taken without waiting.
    pub fn is_ready(&self) -> bool {
        self.next_batch() == RingNext::Ready
    }

    /// Whether the producer has finished and every batch was taken. False if the end came because
    /// the producer was dropped or killed, or left a batch unpublished.
    pub fn is_complete(&self) -> bool {
        let from_producer = &self.region.header().from_producer;
        from_producer.ending.load(SeqCst) == ending::FINISHED
            && self.next == from_producer.total.load(SeqCst)
    }

    fn next_batch(&self) -> RingNext {
        if self.broken || !self.region.is_ours() {
            return RingNext::Over;
        }
        // In this order: a batch published before an abort is seen before the abort counts.
        let from_producer = &self.region.header().from_producer;
        let ending = from_producer.ending.load(SeqCst);
        let turn = self.region.descriptor(self.next).turn.load(SeqCst);
        if turn == turn::published(self.next) {
            return RingNext::Ready;
        }
        let over = self.orphaned
            || turn == turn::abandoned(self.next)
            || match ending {
                ending::RUNNING => false,
                ending::FINISHED => self.next >= from_producer.total.load(SeqCst),
                _ => true,
            };
        if over { RingNext::Over } else { RingNext::Pending }
    }

    fn lend(&mut self) -> Take {
        let Some(batch) = RingBatch::lend(&self.region, self.next) else {
            tracing::error!(
                "batch {} of the staging buffer points outside of it; no more batches are taken",
                self.next
            );
            self.broken = true;
            return Take::Ended;
        };
        self.next += 1;
        self.region.header().from_consumer.taken.store(self.next, Relaxed);
        Take::Batch(batch)
    }
}

impl Drop for RingConsumer {
    fn drop(&mut self) {
        if self.region.is_ours() {
            let header = self.region.header();
            header.from_consumer.presence.store(presence::GONE, SeqCst);
            header.returns.notify();
        }
    }
}

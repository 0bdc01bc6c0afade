//! The training loop's end of a ring.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::RingError;
use super::batch::Batch;
use super::layout::{ending, presence, turn};
use super::life::{INTERVAL, Watch};
use super::region::Region;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::plain::Ordering::Relaxed;

/// Takes batches in the order in which they were reserved. Dropping it tells the producer;
/// batches taken before stay valid.
#[derive(Debug)]
pub struct Consumer {
    region: Arc<Region>,
    /// Sequence number of the next batch.
    next: u64,
    watch: Watch,
    /// The producer was killed: what it published before is all there is.
    orphaned: bool,
    /// The producer wrote what cannot be: nothing of it can be trusted.
    broken: bool,
}

/// How a take ended.
#[derive(Clone, Debug)]
pub enum Take {
    Batch(Batch),
    /// No further batches; [`Consumer::is_complete`] tells whether these were all.
    Ended,
    TimedOut,
}

/// What the next batch's descriptor and the producer's ending say together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outlook {
    Ready,
    Pending,
    Over,
}

impl Consumer {
    pub(super) fn of(region: Arc<Region>) -> Result<Self, RingError> {
        let header = region.header();
        header
            .from_consumer
            .presence
            .compare_exchange(presence::AWAITED, presence::PRESENT, SeqCst, SeqCst)
            .map_err(|_| RingError::Occupied)?;
        header.consumer.sign();
        Ok(Self { region, next: 0, watch: Watch::new(), orphaned: false, broken: false })
    }

    /// The consumer of a ring that another process made and sent the file of.
    pub fn attach(file: OwnedFd) -> Result<Self, RingError> {
        Self::of(Arc::new(Region::attach(file)?))
    }

    /// The next batch, waiting for it as long as allowed. Never waits for a producer that is
    /// no more.
    pub fn take(&mut self, timeout: Option<Duration>) -> Take {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match self.outlook() {
                Outlook::Ready => return self.lend(),
                Outlook::Over => return Take::Ended,
                Outlook::Pending => {}
            }
            let producer = &self.region.header().producer;
            if !self.orphaned && self.watch.is_gone(producer) {
                // Once more: it may have published before it died.
                self.orphaned = true;
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Take::TimedOut;
            }
            let until = deadline.unwrap_or(now + INTERVAL).min(now + INTERVAL);
            self.region.header().arrivals.wait(until, || self.outlook() != Outlook::Pending);
        }
    }

    /// Whether a batch is there to be taken without waiting.
    pub fn is_ready(&self) -> bool {
        self.outlook() == Outlook::Ready
    }

    /// Whether the producer has finished and every batch was taken. Not so when the end came
    /// because the producer was dropped or killed, or left a batch unpublished.
    pub fn is_complete(&self) -> bool {
        let from_producer = &self.region.header().from_producer;
        from_producer.ending.load(SeqCst) == ending::FINISHED
            && self.next == from_producer.total.load(SeqCst)
    }

    fn outlook(&self) -> Outlook {
        if self.broken || !self.region.is_ours() {
            return Outlook::Over;
        }
        // In this order: what was published before an abort is seen before the abort counts.
        let from_producer = &self.region.header().from_producer;
        let ending = from_producer.ending.load(SeqCst);
        let turn = self.region.descriptor(self.next).turn.load(SeqCst);
        if turn == turn::published(self.next) {
            return Outlook::Ready;
        }
        let over = self.orphaned
            || turn == turn::abandoned(self.next)
            || match ending {
                ending::RUNNING => false,
                ending::FINISHED => self.next >= from_producer.total.load(SeqCst),
                _ => true,
            };
        if over { Outlook::Over } else { Outlook::Pending }
    }

    fn lend(&mut self) -> Take {
        let Some(batch) = Batch::lend(&self.region, self.next) else {
            tracing::error!(
                "the staging buffer's batch {} points outside of it; no more is taken from it",
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

impl Drop for Consumer {
    fn drop(&mut self) {
        if self.region.is_ours() {
            let header = self.region.header();
            header.from_consumer.presence.store(presence::GONE, SeqCst);
            header.returns.notify();
        }
    }
}

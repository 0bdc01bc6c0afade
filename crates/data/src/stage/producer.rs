//! The engine's end of a ring.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use belady_base::SampleId;
use belady_base::sync::Arc;
use belady_base::sync::atomic::Ordering::SeqCst;
use belady_base::sync::plain::Ordering::Relaxed;
use belady_control::sampler::Step;

use super::RingError;
use super::allocator::BlockAllocator;
use super::block::RingBlock;
use super::layout::{Reservation, SlotRow, SlotState, ending, presence};
use super::liveness::{CHECK_INTERVAL, LivenessCheck};
use super::producer_state::ProducerState;
use super::region::Region;

/// Reserves space for batches, in the order in which the consumer gets them. Dropped before
/// [`RingProducer::finish`], it ends the consumer's wait after the batches published by then.
#[derive(Debug)]
pub struct RingProducer {
    state: Arc<ProducerState>,
    allocator: BlockAllocator,
    /// Batches whose space has not returned, in the order of their sequence numbers.
    outstanding: VecDeque<Outstanding>,
    /// Receipts that no outstanding batch has.
    receipts: Vec<u32>,
    /// Sequence number of the next batch.
    next: u64,
    liveness: LivenessCheck,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    sequence: u64,
    reservation: Reservation,
}

/// How a wait for space ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Some space has returned; [`RingProducer::reserve`] tells whether it is enough.
    Released,
    /// The timeout passed.
    TimedOut,
    /// The consumer was dropped or its process was killed: no further batch will be taken.
    ConsumerGone,
    /// [`ProducerWaker::wake`] was called, now or at any time before.
    Stopped,
}

impl RingProducer {
    pub(super) fn of(region: Arc<Region>) -> Self {
        region.header().producer.store_own();
        let layout = region.layout();
        let allocator = BlockAllocator::new(layout.capacity as usize, layout.block_align());
        // The last one is used first: receipts that are reused soon stay in the processor's cache.
        let receipts = (0..layout.batches as u32).rev().collect();
        Self {
            state: Arc::new(ProducerState::new(region)),
            allocator,
            outstanding: VecDeque::new(),
            receipts,
            next: 0,
            liveness: LivenessCheck::new(),
        }
    }

    /// Reserves space for a whole batch. Returns `None` if there is no space now, and always after
    /// [`RingProducer::finish`].
    ///
    /// # Errors
    ///
    /// [`RingError::BatchTooLarge`] if the batch is larger than the whole ring.
    ///
    /// # Panics
    ///
    /// If there are not as many lengths as samples.
    pub fn reserve(
        &mut self,
        step: Step,
        samples: &[SampleId],
        lengths: &[u64],
    ) -> Result<Option<RingBlock>, RingError> {
        assert_eq!(samples.len(), lengths.len(), "each sample has one length");
        let layout = *self.state.region.layout();
        let bytes = layout.block_bytes(lengths).unwrap_or(u64::MAX);
        let capacity = layout.capacity;
        if bytes > capacity {
            let Step { epoch, iteration } = step;
            return Err(RingError::BatchTooLarge { epoch, iteration, bytes, capacity });
        }
        self.reclaim();
        if self.is_finished() || !self.is_ours() {
            return Ok(None);
        }
        let Some(reservation) = self.allocate(bytes as usize) else { return Ok(None) };
        let row = |(&sample, &length)| Some(SlotRow { sample, state: SlotState::Filled, length });
        let entries = layout
            .entries(reservation.extent.bytes, samples.iter().zip(lengths).map(row))
            .expect("block_bytes has measured these samples");
        let sequence = self.next;
        self.next += 1;
        self.outstanding.push_back(Outstanding { sequence, reservation });
        Ok(Some(RingBlock::new(Arc::clone(&self.state), sequence, step, reservation, entries)))
    }

    /// Waits until space has returned since [`RingProducer::reserve`] last answered `None`, the
    /// consumer is gone, a [`ProducerWaker`] wakes this producer, or the timeout has passed.
    pub fn wait(&mut self, timeout: Duration) -> Wait {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let now = Instant::now();
            let until = deadline.unwrap_or(now + CHECK_INTERVAL).min(now + CHECK_INTERVAL);
            let header = self.state.region.header();
            header.returns.wait(until, || self.outcome().is_some());
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            let present = header.from_consumer.presence.load(SeqCst) == presence::PRESENT;
            if present && self.liveness.is_dead(&header.consumer) {
                return Wait::ConsumerGone;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Wait::TimedOut;
            }
        }
    }

    /// Returns free memory to the system. The next batches cost a page fault for each page, so this
    /// is meant for an idle consumer.
    pub fn trim(&mut self) {
        self.reclaim();
        if !self.is_ours() {
            return;
        }
        for gap in self.allocator.gaps() {
            // SAFETY: no block lies in a gap, and only this producer allocates blocks.
            unsafe { self.state.region.discard(gap.clone()) };
        }
    }

    /// Returns a handle that wakes this producer from other threads.
    pub fn waker(&self) -> ProducerWaker {
        ProducerWaker { state: Arc::clone(&self.state) }
    }

    /// Ends the ring: once the consumer has taken all reserved batches, it gets the end.
    pub fn finish(&self) {
        let from_producer = &self.state.region.header().from_producer;
        from_producer.total.store(self.next, SeqCst);
        self.end(ending::FINISHED);
    }

    /// Returns how many batches the consumer holds.
    pub fn lent(&self) -> u32 {
        let from_consumer = &self.state.region.header().from_consumer;
        let released = from_consumer.released.load(Relaxed);
        let lent = from_consumer.taken.load(Relaxed).saturating_sub(released);
        lent.min(self.outstanding.len() as u64) as u32
    }

    /// Returns how many batches are published and not taken.
    pub fn ready(&self) -> u32 {
        let taken = self.state.region.header().from_consumer.taken.load(Relaxed);
        let ready = self.state.published.load(Relaxed).saturating_sub(taken);
        ready.min(self.outstanding.len() as u64) as u32
    }

    /// Allocates space and a receipt, if there are both. With a free receipt the new batch's
    /// descriptor is free as well: of the batches since the last one it served, at least one has
    /// returned, and the consumer takes batches in order.
    fn allocate(&mut self, bytes: usize) -> Option<Reservation> {
        let &receipt = self.receipts.last()?;
        let extent = self.allocator.allocate(bytes)?;
        self.receipts.pop();
        Some(Reservation { extent, receipt })
    }

    /// Returns the index of the oldest outstanding batch whose space has returned.
    fn returned(&self) -> Option<usize> {
        // Batches that are not taken cannot have returned, and most are not taken.
        let taken = self.state.region.header().from_consumer.taken.load(Relaxed);
        let lent = self.outstanding.iter().take_while(|batch| batch.sequence < taken);
        lent.enumerate().find_map(|(at, batch)| {
            self.state.is_returned(batch.sequence, batch.reservation).then_some(at)
        })
    }

    fn reclaim(&mut self) {
        while let Some(batch) = self.returned().and_then(|at| self.outstanding.remove(at)) {
            self.allocator.free(batch.reservation.extent);
            self.receipts.push(batch.reservation.receipt);
        }
    }

    /// Returns why a wait can end now, if it can.
    fn outcome(&self) -> Option<Wait> {
        let empty = self.outstanding.is_empty();
        let stopped = self.state.stopped.load(SeqCst);
        if stopped || (empty && self.is_finished()) || !self.is_ours() {
            Some(Wait::Stopped)
        } else if self.state.consumer_left() {
            Some(Wait::ConsumerGone)
        } else if empty || self.returned().is_some() {
            Some(Wait::Released)
        } else {
            None
        }
    }

    fn is_finished(&self) -> bool {
        self.state.ended.load(SeqCst)
    }

    fn is_ours(&self) -> bool {
        self.state.region.is_ours()
    }

    /// Ends the ring. The first call counts.
    fn end(&self, how: u32) {
        if !self.state.ended.swap(true, SeqCst) {
            let header = self.state.region.header();
            header.from_producer.ending.store(how, SeqCst);
            header.arrivals.notify();
        }
    }
}

impl Drop for RingProducer {
    fn drop(&mut self) {
        if self.is_ours() {
            self.end(ending::ABORTED);
        }
    }
}

/// Wakes a waiting producer, for good: every later wait returns [`Wait::Stopped`] too.
#[derive(Clone, Debug)]
pub struct ProducerWaker {
    state: Arc<ProducerState>,
}

impl ProducerWaker {
    /// Stops the producer's current wait and all later ones.
    pub fn wake(&self) {
        self.state.stopped.store(true, SeqCst);
        self.state.region.header().returns.notify();
    }
}

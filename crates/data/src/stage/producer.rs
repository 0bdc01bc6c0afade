//! The engine's end of a ring.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use belady_control::sampler::Step;

use super::RingError;
use super::block::Block;
use super::layout::{Place, Row, SlotState, ending, presence, turn};
use super::life::{INTERVAL, Watch};
use super::region::Region;
use super::space::Space;
use crate::SampleId;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use crate::sync::plain::{self, Ordering::Relaxed};

/// Reserves space for batches, in the order in which the consumer will get them. Dropped
/// before [`Producer::finish`], it ends the consumer's wait after what is published by then.
#[derive(Debug)]
pub struct Producer {
    reserved: Arc<Reserved>,
    space: Space,
    /// Batches whose space is not back, in the order of their sequence numbers.
    outstanding: VecDeque<Outstanding>,
    /// Receipts that no such batch has.
    receipts: Vec<u32>,
    /// Sequence number of the next batch.
    next: u64,
    watch: Watch,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    sequence: u64,
    place: Place,
}

/// How a wait for space ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Some space has come back; whether it is enough, [`Producer::reserve`] knows.
    Released,
    TimedOut,
    /// Dropped, or its process was killed: nobody will take another batch.
    ConsumerGone,
    /// [`ProducerWaker::wake`] was called, now or at any time before.
    Stopped,
}

/// What producer, blocks and wakers know in common, in memory the consumer cannot reach.
#[derive(Debug)]
pub(super) struct Reserved {
    pub region: Arc<Region>,
    /// For each receipt one more than the last sequence number whose block is dropped.
    dropped: Box<[AtomicU64]>,
    pub published: plain::AtomicU64,
    stopped: AtomicBool,
    ended: AtomicBool,
}

impl Reserved {
    /// The last clone of a block is gone: nobody can write into its space any more.
    pub fn block_dropped(&self, sequence: u64, receipt: u32) {
        self.dropped[receipt as usize].store(sequence + 1, SeqCst);
        // The consumer notifies when it releases; it matters only if that was before.
        if self.is_released(sequence, receipt) {
            self.region.header().returns.notify();
        }
    }

    fn is_released(&self, sequence: u64, receipt: u32) -> bool {
        self.region.receipt(receipt).turn.load(SeqCst) == turn::released(sequence)
    }

    /// Whether nobody on either side can touch the batch's space any more.
    fn is_back(&self, Outstanding { sequence, place }: Outstanding) -> bool {
        self.is_released(sequence, place.receipt)
            && self.dropped[place.receipt as usize].load(SeqCst) == sequence + 1
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }

    fn consumer_left(&self) -> bool {
        self.region.header().from_consumer.presence.load(SeqCst) == presence::GONE
    }
}

impl Producer {
    pub(super) fn of(region: Arc<Region>) -> Self {
        region.header().producer.sign();
        let layout = region.layout();
        let space = Space::new(layout.capacity as usize, layout.block_align());
        // The last is used first: what is used most stays in the processor's cache.
        let receipts = (0..layout.batches as u32).rev().collect();
        let dropped = (0..layout.batches).map(|_| AtomicU64::new(0)).collect();
        let reserved = Reserved {
            region,
            dropped,
            published: plain::AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        };
        let (outstanding, watch) = (VecDeque::new(), Watch::new());
        Self { reserved: Arc::new(reserved), space, outstanding, receipts, next: 0, watch }
    }

    /// Space for a whole batch, or `None` if there is no room now (nor ever again, after
    /// [`Producer::finish`]). Fails only if the batch is larger than the whole ring.
    pub fn reserve(
        &mut self,
        step: Step,
        samples: &[SampleId],
        lengths: &[u64],
    ) -> Result<Option<Block>, RingError> {
        assert_eq!(samples.len(), lengths.len(), "each sample has one length");
        let layout = *self.reserved.region.layout();
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
        let Some(place) = self.place(bytes as usize) else { return Ok(None) };
        let row = |(&sample, &length)| Some(Row { sample, state: SlotState::Filled, length });
        let entries = layout
            .entries(place.extent.bytes, samples.iter().zip(lengths).map(row))
            .expect("measured to fit above");
        let sequence = self.next;
        self.next += 1;
        self.outstanding.push_back(Outstanding { sequence, place });
        Ok(Some(Block::new(Arc::clone(&self.reserved), sequence, step, place, entries)))
    }

    /// Waits until space has come back since the last [`Producer::reserve`] said `None`, the
    /// consumer has gone, someone wakes us, or the time is over.
    pub fn wait(&mut self, timeout: Duration) -> Wait {
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let now = Instant::now();
            let until = deadline.unwrap_or(now + INTERVAL).min(now + INTERVAL);
            let header = self.reserved.region.header();
            header.returns.wait(until, || self.outcome().is_some());
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            let present = header.from_consumer.presence.load(SeqCst) == presence::PRESENT;
            if present && self.watch.is_gone(&header.consumer) {
                return Wait::ConsumerGone;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Wait::TimedOut;
            }
        }
    }

    /// Gives memory back to the system that no batch lies in. The next batches cost a page fault for each
    /// page, so it is for a consumer that rests.
    pub fn trim(&mut self) {
        self.reclaim();
        if !self.is_ours() {
            return;
        }
        for gap in self.space.gaps() {
            // SAFETY: a gap has no block, and blocks are given by us alone.
            unsafe { self.reserved.region.give_back(gap.clone()) };
        }
    }

    /// Wakes this producer from other threads.
    pub fn waker(&self) -> ProducerWaker {
        ProducerWaker { reserved: Arc::clone(&self.reserved) }
    }

    /// No further batches: once all that were reserved are taken, the consumer gets the end.
    pub fn finish(&self) {
        let from_producer = &self.reserved.region.header().from_producer;
        from_producer.total.store(self.next, SeqCst);
        self.end(ending::FINISHED);
    }

    /// Batches the consumer holds.
    pub fn lent(&self) -> u32 {
        let from_consumer = &self.reserved.region.header().from_consumer;
        let released = from_consumer.released.load(Relaxed);
        let lent = from_consumer.taken.load(Relaxed).saturating_sub(released);
        lent.min(self.outstanding.len() as u64) as u32
    }

    /// Batches published and not taken.
    pub fn ready(&self) -> u32 {
        let taken = self.reserved.region.header().from_consumer.taken.load(Relaxed);
        let ready = self.reserved.published.load(Relaxed).saturating_sub(taken);
        ready.min(self.outstanding.len() as u64) as u32
    }

    /// Space and a receipt, if there are both. A receipt for the new batch means that its
    /// descriptor is free as well: of the batches from the last one it served on, at least one
    /// is back, and the consumer takes them in order.
    fn place(&mut self, bytes: usize) -> Option<Place> {
        let &receipt = self.receipts.last()?;
        let extent = self.space.give(bytes)?;
        self.receipts.pop();
        Some(Place { extent, receipt })
    }

    /// Index of the oldest outstanding batch that is back.
    fn returned(&self) -> Option<usize> {
        // What is not taken cannot be back, and is most of what there is.
        let taken = self.reserved.region.header().from_consumer.taken.load(Relaxed);
        let lent = self.outstanding.iter().take_while(|batch| batch.sequence < taken);
        lent.enumerate().find_map(|(at, batch)| self.reserved.is_back(*batch).then_some(at))
    }

    fn reclaim(&mut self) {
        while let Some(batch) = self.returned().and_then(|at| self.outstanding.remove(at)) {
            self.space.take_back(batch.place.extent);
            self.receipts.push(batch.place.receipt);
        }
    }

    /// Why a wait need not go on, if so.
    fn outcome(&self) -> Option<Wait> {
        let empty = self.outstanding.is_empty();
        if self.reserved.is_stopped() || (empty && self.is_finished()) || !self.is_ours() {
            Some(Wait::Stopped)
        } else if self.reserved.consumer_left() {
            Some(Wait::ConsumerGone)
        } else if empty || self.returned().is_some() {
            Some(Wait::Released)
        } else {
            None
        }
    }

    fn is_finished(&self) -> bool {
        self.reserved.ended.load(SeqCst)
    }

    fn is_ours(&self) -> bool {
        self.reserved.region.is_ours()
    }

    /// The first ending counts.
    fn end(&self, how: u32) {
        if !self.reserved.ended.swap(true, SeqCst) {
            let header = self.reserved.region.header();
            header.from_producer.ending.store(how, SeqCst);
            header.arrivals.notify();
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        if self.is_ours() {
            self.end(ending::ABORTED);
        }
    }
}

/// Wakes a producer that waits, for good: every later wait of its answers
/// [`Wait::Stopped`] too.
#[derive(Clone, Debug)]
pub struct ProducerWaker {
    reserved: Arc<Reserved>,
}

impl ProducerWaker {
    pub fn wake(&self) {
        self.reserved.stopped.store(true, SeqCst);
        self.reserved.region.header().returns.notify();
    }
}

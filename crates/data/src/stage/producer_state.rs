//! What a ring's producer, its blocks and its wakers share, in memory that the consumer cannot
//! reach.

use belady_base::sync::Arc;
use belady_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use belady_base::sync::plain;

use super::layout::{Reservation, presence, turn};
use super::region::Region;

#[derive(Debug)]
pub struct ProducerState {
    pub region: Arc<Region>,
    /// For each receipt, one more than the last sequence number whose block is dropped.
    dropped: Box<[AtomicU64]>,
    pub published: plain::AtomicU64,
    pub stopped: AtomicBool,
    pub ended: AtomicBool,
}

impl ProducerState {
    pub fn new(region: Arc<Region>) -> Self {
        let dropped = (0..region.layout().batches).map(|_| AtomicU64::new(0)).collect();
        Self {
            region,
            dropped,
            published: plain::AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Records that the last clone of a block is gone: no thread here writes to its space any more.
    pub fn block_dropped(&self, sequence: u64, receipt: u32) {
        self.dropped[receipt as usize].store(sequence + 1, SeqCst);
        // If the consumer releases the batch later than this, its release notifies.
        if self.is_released(sequence, receipt) {
            self.region.header().returns.notify();
        }
    }

    /// Whether neither side can touch the batch's space any more.
    pub fn is_returned(&self, sequence: u64, reservation: Reservation) -> bool {
        self.is_released(sequence, reservation.receipt)
            && self.dropped[reservation.receipt as usize].load(SeqCst) == sequence + 1
    }

    pub fn consumer_left(&self) -> bool {
        self.region.header().from_consumer.presence.load(SeqCst) == presence::GONE
    }

    fn is_released(&self, sequence: u64, receipt: u32) -> bool {
        self.region.receipt(receipt).turn.load(SeqCst) == turn::released(sequence)
    }
}

//! A batch on the consumer's side: lent without copying, released when it is dropped.

use std::ops::Range;

use belady_base::SampleId;
use belady_base::sync::Arc;
use belady_base::sync::atomic::Ordering::SeqCst;
use belady_base::sync::plain::Ordering::Relaxed;
use belady_control::sampler::Step;

use super::layout::{Reservation, SlotEntry, SlotState, TableEntry, turn};
use super::region::Region;

/// A published batch. Its bytes stay in place until the last clone is dropped, on any thread.
#[derive(Clone, Debug)]
pub struct RingBatch(Arc<BatchInner>);

#[derive(Debug)]
struct BatchInner {
    region: Arc<Region>,
    sequence: u64,
    step: Step,
    /// Checked against the layout.
    reservation: Reservation,
    /// A checked copy of the table.
    entries: Box<[SlotEntry]>,
}

impl RingBatch {
    /// Takes the batch of a published descriptor; `None` if the descriptor is not valid.
    pub(super) fn lend(region: &Arc<Region>, sequence: u64) -> Option<Self> {
        let descriptor = region.descriptor(sequence);
        let (reservation, samples) = descriptor.reservation(region.layout())?;
        let rows = region.table(reservation.extent, samples).iter().map(TableEntry::load);
        let entries = region.layout().entries(reservation.extent.bytes, rows)?;
        let step = descriptor.step();
        let region = Arc::clone(region);
        Some(Self(Arc::new(BatchInner { region, sequence, step, reservation, entries })))
    }

    /// Returns the step of the batch.
    pub fn step(&self) -> Step {
        self.0.step
    }

    /// Returns how many batches came before it.
    pub fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether the batch has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the id of the sample at this position.
    pub fn sample(&self, index: usize) -> SampleId {
        self.0.entries[index].sample
    }

    /// Returns what the slot at this position holds.
    pub fn state(&self, index: usize) -> SlotState {
        self.0.entries[index].state
    }

    /// Returns a slot's memory: the sample's bytes if its state says so.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let slot = &self.0.entries[index].slot;
        // SAFETY: the slot was checked to lie within the block, the block within the
        // mapping, which lives as long as `self.0.region`. A published block is not written to
        // before it is released, which happens when the last clone of this batch is dropped.
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(slot.start), slot.len()) }
    }

    /// Returns a slot's range, relative to [`RingBatch::as_ptr`].
    pub fn slot_range(&self, index: usize) -> Range<usize> {
        self.0.entries[index].slot.clone()
    }

    /// Returns a slot's offset from the first byte of the ring's memory: where another process that
    /// has mapped the ring finds it.
    pub fn offset(&self, index: usize) -> usize {
        let area = self.0.region.layout().area_at();
        area + self.0.reservation.extent.start + self.0.entries[index].slot.start
    }

    /// Returns the length of the block that holds all slots.
    pub fn block_len(&self) -> usize {
        self.0.reservation.extent.bytes
    }

    /// Returns the first byte of the block that holds all slots.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.region.block(self.0.reservation.extent).as_ptr()
    }
}

impl Drop for BatchInner {
    fn drop(&mut self) {
        // In a forked child: the parent still holds the batch.
        if !self.region.is_ours() {
            return;
        }
        self.region.header().from_consumer.released.fetch_add(1, Relaxed);
        let receipt = self.region.receipt(self.reservation.receipt);
        receipt.turn.store(turn::released(self.sequence), SeqCst);
        self.region.header().returns.notify();
    }
}

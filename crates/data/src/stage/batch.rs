//! A batch on the consumer's side: lent without copying, given back by dropping it.

use std::ops::Range;

use belady_control::sampler::Step;

use super::layout::{Entry, Place, SlotState, TableEntry, turn};
use super::region::Region;
use crate::SampleId;
use crate::sync::Arc;
use crate::sync::atomic::Ordering::SeqCst;
use crate::sync::plain::Ordering::Relaxed;

/// A batch whose bytes stay where they are until the last clone is dropped, on any thread.
#[derive(Clone, Debug)]
pub struct Batch(Arc<Lent>);

#[derive(Debug)]
struct Lent {
    region: Arc<Region>,
    sequence: u64,
    step: Step,
    /// Checked.
    place: Place,
    /// A checked copy of the table.
    entries: Box<[Entry]>,
}

impl Batch {
    /// The batch that a published descriptor speaks of; `None` if what it says cannot be.
    pub(super) fn lend(region: &Arc<Region>, sequence: u64) -> Option<Self> {
        let descriptor = region.descriptor(sequence);
        let (place, samples) = descriptor.place(region.layout())?;
        let rows = region.table(place.extent, samples).iter().map(TableEntry::load);
        let entries = region.layout().entries(place.extent.bytes, rows)?;
        let step = descriptor.step();
        Some(Self(Arc::new(Lent { region: Arc::clone(region), sequence, step, place, entries })))
    }

    pub fn step(&self) -> Step {
        self.0.step
    }

    /// How many batches came before it.
    pub fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// Samples in the batch.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn sample(&self, index: usize) -> SampleId {
        self.0.entries[index].sample
    }

    pub fn state(&self, index: usize) -> SlotState {
        self.0.entries[index].state
    }

    /// A slot's memory: the sample's bytes if its state says so.
    pub fn bytes(&self, index: usize) -> &[u8] {
        let slot = &self.0.entries[index].slot;
        // SAFETY: the slot was checked to lie within the block, the block within the
        // mapping, which lives as long as `self.0.region`. Nobody writes to a published block
        // before it is released, which happens when the last clone of this batch is dropped.
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(slot.start), slot.len()) }
    }

    /// Where a slot lies, counted from [`Batch::as_ptr`].
    pub fn slot_range(&self, index: usize) -> Range<usize> {
        self.0.entries[index].slot.clone()
    }

    /// Where a slot begins, counted from the first byte of the ring's memory: where one who has
    /// mapped that finds it.
    pub fn offset(&self, index: usize) -> usize {
        let area = self.0.region.layout().area_at();
        area + self.0.place.extent.start + self.0.entries[index].slot.start
    }

    /// Length of the block that all slots lie in.
    pub fn block_len(&self) -> usize {
        self.0.place.extent.bytes
    }

    /// First byte of the block that all slots lie in.
    pub fn as_ptr(&self) -> *const u8 {
        self.0.region.block(self.0.place.extent).as_ptr()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // What a fork inherited is still held by the original.
        if !self.region.is_ours() {
            return;
        }
        self.region.header().from_consumer.released.fetch_add(1, Relaxed);
        let receipt = self.region.receipt(self.place.receipt);
        receipt.turn.store(turn::released(self.sequence), SeqCst);
        self.region.header().returns.notify();
    }
}

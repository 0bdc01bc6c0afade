//! A batch on the producer's side: space reserved, being filled by many threads.

use belady_control::sampler::Step;

use super::layout::{Entry, Place, SlotState, turn};
use super::producer::Reserved;
use crate::SampleId;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicBool, Ordering::SeqCst};
use crate::sync::plain::Ordering::Relaxed;

/// Space for one batch. Clones keep the space from being used again, also after the batch
/// was published, taken and let go of. If the last clone is dropped before
/// [`Block::publish`], the consumer gets the batches before this one and then the end.
#[derive(Clone, Debug)]
pub struct Block(Arc<Filling>);

#[derive(Debug)]
struct Filling {
    reserved: Arc<Reserved>,
    sequence: u64,
    step: Step,
    place: Place,
    /// The producer's own record: what the table says can be overwritten by the consumer.
    entries: Box<[Entry]>,
    published: AtomicBool,
}

impl Block {
    pub(super) fn new(
        reserved: Arc<Reserved>,
        sequence: u64,
        step: Step,
        place: Place,
        entries: Box<[Entry]>,
    ) -> Self {
        let region = &reserved.region;
        for (shared, entry) in region.table(place.extent, entries.len()).iter().zip(&entries) {
            shared.store(entry);
        }
        region.descriptor(sequence).describe(place, entries.len() as u32, step);
        let published = AtomicBool::new(false);
        Self(Arc::new(Filling { reserved, sequence, step, place, entries, published }))
    }

    /// Samples in the batch.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn step(&self) -> Step {
        self.0.step
    }

    pub fn sample(&self, index: usize) -> SampleId {
        self.0.entries[index].sample
    }

    pub fn length(&self, index: usize) -> usize {
        self.0.entries[index].slot.len()
    }

    /// The memory that a sample goes into, exactly as long as the sample.
    ///
    /// # Safety
    ///
    /// As long as the answer lives, nothing else reads or writes the slot through another answer of
    /// this or of [`Block::bytes`], and the batch is not published.
    #[allow(clippy::mut_from_ref, reason = "the caller promises to be alone")]
    pub unsafe fn slot(&self, index: usize) -> &mut [u8] {
        // SAFETY: the slot lies within its block, whose space is not given away while this lives;
        // the caller is alone.
        unsafe { std::slice::from_raw_parts_mut(self.start_of(index), self.length(index)) }
    }

    /// What a slot that was filled holds. Any number of callers may look at it at the same time.
    ///
    /// # Safety
    ///
    /// As long as the answer lives, nothing writes to the slot.
    pub unsafe fn bytes(&self, index: usize) -> &[u8] {
        // SAFETY: as above, and the caller promises that nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.start_of(index), self.length(index)) }
    }

    fn start_of(&self, index: usize) -> *mut u8 {
        let block = self.0.reserved.region.block(self.0.place.extent);
        // SAFETY: `entries` was made for a block of this size, so the slot lies within it.
        unsafe { block.add(self.0.entries[index].slot.start) }.as_ptr()
    }

    /// Says how a slot came out; slots are [`SlotState::Filled`] unless told otherwise.
    pub fn mark(&self, index: usize, state: SlotState) {
        let filling = &self.0;
        let table = filling.reserved.region.table(filling.place.extent, filling.entries.len());
        table[index].mark(state);
    }

    /// Hands the batch to the consumer. Only the first call counts.
    pub fn publish(&self) {
        let filling = &self.0;
        if filling.published.swap(true, SeqCst) {
            return;
        }
        filling.reserved.published.fetch_add(1, Relaxed);
        filling.conclude(turn::published(filling.sequence));
    }
}

impl Filling {
    fn conclude(&self, turn: u64) {
        let region = &self.reserved.region;
        region.descriptor(self.sequence).turn.store(turn, SeqCst);
        region.header().arrivals.notify();
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if !self.reserved.region.is_ours() {
            return;
        }
        if !self.published.load(SeqCst) {
            self.conclude(turn::abandoned(self.sequence));
        }
        self.reserved.block_dropped(self.sequence, self.place.receipt);
    }
}

//! A batch on the producer's side: reserved space that many threads fill.

use belady_base::SampleId;
use belady_base::sync::Arc;
use belady_base::sync::atomic::{AtomicBool, Ordering::SeqCst};
use belady_base::sync::plain::Ordering::Relaxed;
use belady_control::sampler::Step;

use super::layout::{Reservation, SlotEntry, SlotState, turn};
use super::producer_state::ProducerState;

/// Reserved space for one batch. The space is not reused while a clone exists, even after the batch
/// was published, taken and released. If the last clone is dropped before [`RingBlock::publish`],
/// the consumer gets the batches before this one and then the end.
#[derive(Clone, Debug)]
pub struct RingBlock(Arc<BlockInner>);

#[derive(Debug)]
struct BlockInner {
    state: Arc<ProducerState>,
    sequence: u64,
    step: Step,
    reservation: Reservation,
    /// The producer's own record: the consumer can overwrite the table in shared memory.
    entries: Box<[SlotEntry]>,
    published: AtomicBool,
}

impl RingBlock {
    pub(super) fn new(
        state: Arc<ProducerState>,
        sequence: u64,
        step: Step,
        reservation: Reservation,
        entries: Box<[SlotEntry]>,
    ) -> Self {
        let region = &state.region;
        let table = region.table(reservation.extent, entries.len());
        for (shared, entry) in table.iter().zip(&entries) {
            shared.store(entry);
        }
        region.descriptor(sequence).describe(reservation, entries.len() as u32, step);
        let published = AtomicBool::new(false);
        Self(Arc::new(BlockInner { state, sequence, step, reservation, entries, published }))
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.0.entries.len()
    }

    /// Whether the batch has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the step of the batch.
    pub fn step(&self) -> Step {
        self.0.step
    }

    /// Returns the id of the sample at this position.
    pub fn sample(&self, index: usize) -> SampleId {
        self.0.entries[index].sample
    }

    /// Returns the length of the slot at this position.
    pub fn length(&self, index: usize) -> usize {
        self.0.entries[index].slot.len()
    }

    /// Returns the memory for a sample, exactly as long as the sample.
    ///
    /// # Safety
    ///
    /// While the returned slice lives, no other slice of the slot from this function or
    /// [`RingBlock::bytes`] exists, and the batch is not published.
    #[allow(clippy::mut_from_ref, reason = "the caller guarantees exclusive access")]
    pub unsafe fn slot(&self, index: usize) -> &mut [u8] {
        // SAFETY: the slot lies within its block, whose space is not reused while this lives; the
        // caller has exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.start_of(index), self.length(index)) }
    }

    /// Returns the bytes of a filled slot.
    ///
    /// # Safety
    ///
    /// While the returned slice lives, nothing writes to the slot.
    pub unsafe fn bytes(&self, index: usize) -> &[u8] {
        // SAFETY: as above, and the caller guarantees that nothing writes to it.
        unsafe { std::slice::from_raw_parts(self.start_of(index), self.length(index)) }
    }

    fn start_of(&self, index: usize) -> *mut u8 {
        let block = self.0.state.region.block(self.0.reservation.extent);
        // SAFETY: `entries` was made for a block of this size, so the slot lies within it.
        unsafe { block.add(self.0.entries[index].slot.start) }.as_ptr()
    }

    /// Sets what a slot holds; slots are [`SlotState::Filled`] by default.
    pub fn mark(&self, index: usize, state: SlotState) {
        let inner = &self.0;
        let table = inner.state.region.table(inner.reservation.extent, inner.entries.len());
        table[index].mark(state);
    }

    /// Publishes the batch to the consumer. Only the first call has an effect.
    pub fn publish(&self) {
        let inner = &self.0;
        if inner.published.swap(true, SeqCst) {
            return;
        }
        inner.state.published.fetch_add(1, Relaxed);
        inner.set_turn(turn::published(inner.sequence));
    }
}

impl BlockInner {
    fn set_turn(&self, turn: u64) {
        let region = &self.state.region;
        region.descriptor(self.sequence).turn.store(turn, SeqCst);
        region.header().arrivals.notify();
    }
}

impl Drop for BlockInner {
    fn drop(&mut self) {
        if !self.state.region.is_ours() {
            return;
        }
        if !self.published.load(SeqCst) {
            self.set_turn(turn::abandoned(self.sequence));
        }
        self.state.block_dropped(self.sequence, self.reservation.receipt);
    }
}

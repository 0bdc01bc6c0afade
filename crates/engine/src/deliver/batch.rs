//! A delivered batch.
//!
//! Other processes can read samples without a copy ([`crate::RingKind::Shared`]): they map the
//! staging buffer, are sent a sample's place, and answer when they have read it. This process holds
//! the batch until then, since nothing else keeps the bytes in their place.

use belady_base::SampleId;
use belady_base::sync::Arc;
use belady_control::sampler::Step;
use belady_data::source::Source;
use belady_data::stage::{self, SlotState};

use crate::job::{BatchExtra, HeldBytes, SkippedSamples};

/// A batch, lent to the consumer: its memory is used again when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Batch {
    block: stage::RingBatch,
    extra: Arc<BatchExtra>,
    source: Arc<dyn Source>,
    /// Other processes can map the staging buffer.
    can_be_mapped: bool,
}

/// A sample of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// The sample's number in the dataset.
    pub id: SampleId,
    bytes: &'a [u8],
    in_slot: bool,
    source: &'a dyn Source,
}

impl<'a> Sample<'a> {
    /// Returns the sample's bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns whether the bytes are in the staging buffer, where a consumer may write to them.
    pub fn is_in_slot(&self) -> bool {
        self.in_slot
    }

    /// Returns the class, if the format has classes.
    pub fn label(&self) -> Option<u32> {
        self.source.catalog().label(self.id)
    }
}

impl Batch {
    pub(crate) fn new(
        block: stage::RingBatch,
        extra: BatchExtra,
        source: Arc<dyn Source>,
        can_be_mapped: bool,
    ) -> Self {
        Self { block, extra: Arc::new(extra), source, can_be_mapped }
    }

    /// Returns the batch's epoch and iteration.
    pub fn step(&self) -> Step {
        self.block.step()
    }

    /// Returns the samples that were skipped or replaced.
    pub(crate) fn skipped(&self) -> &SkippedSamples {
        &self.extra.skipped
    }

    /// Returns the number of samples, skipped ones included.
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Returns whether the batch has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a sample; `None` if it was bad and skipped.
    pub fn get(&self, index: usize) -> Option<Sample<'_>> {
        if self.block.state(index) == SlotState::Skipped {
            return None;
        }
        let mut id = self.block.sample(index);
        let held = self.extra.held(index);
        let in_slot = matches!(held, HeldBytes::Slot);
        let bytes = match held {
            HeldBytes::Slot => self.block.bytes(index),
            HeldBytes::Own(bytes) => bytes,
            HeldBytes::Substitute(other, bytes) => {
                id = *other;
                bytes
            }
            // SAFETY: pinned while `extra` exists, and nothing writes to a lent copy.
            HeldBytes::Lent(_, _, pinned) => unsafe {
                std::slice::from_raw_parts(pinned.start, pinned.length)
            },
        };
        Some(Sample { id, bytes, in_slot, source: self.source.as_ref() })
    }

    /// Returns where another process finds a sample in [`crate::Loader::shared_memory`]: its offset
    /// and length. The bytes stay there until the last clone of this batch is dropped. Returns
    /// `None` if the bytes are elsewhere and have to be sent, because the sample was replaced, a
    /// read or write of it hung, or the staging buffer is not shared; or if the sample was skipped.
    pub fn place(&self, index: usize) -> Option<(usize, usize)> {
        let in_slot = self.block.state(index) == SlotState::Filled
            && matches!(self.extra.held(index), HeldBytes::Slot);
        (self.can_be_mapped && in_slot)
            .then(|| (self.block.offset(index), self.block.bytes(index).len()))
    }

    /// Iterates over the samples that were not skipped, in order.
    pub fn iter(&self) -> impl Iterator<Item = Sample<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

//! A delivered batch.
//!
//! Other processes can read samples without a copy ([`crate::RingKind`]): they map the staging
//! buffer, are sent a sample's place, and answer when they have read it. The process that holds the
//! batch keeps the bytes in their place until then.

use std::fmt;

use belady_base::SampleId;
use belady_base::sync::Arc;
use belady_control::policy::TierId;
use belady_control::sampler::Step;
use belady_data::source::Source;
use belady_data::stage::{RingBatch, SlotState};

use crate::job::{BatchExtra, HeldBytes, SkippedSamples};

/// A batch, lent to the consumer: its memory is used again when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Batch {
    step: Step,
    samples: Arc<[Option<DeliveredBytes>]>,
    skipped: SkippedSamples,
    source: Arc<dyn Source>,
    _owner: Arc<dyn BatchOwner>,
}

/// Keeps the bytes of a batch in their place.
pub trait BatchOwner: fmt::Debug + Send + Sync {}

/// Where the bytes of a sample are in this process.
#[derive(Clone, Copy, Debug)]
pub struct DeliveredBytes {
    /// The sample's number in the dataset.
    pub id: SampleId,
    /// The first byte.
    pub start: *const u8,
    /// The number of bytes.
    pub length: usize,
    /// Whether they are in the staging buffer, where a consumer may write to them.
    pub is_in_slot: bool,
    /// Where other processes that map that memory find the bytes.
    pub mapped: Option<MappedPlace>,
}

/// A place in memory that other processes can map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedPlace {
    /// Which memory.
    pub memory: MappedMemory,
    /// The offset of the first byte.
    pub offset: usize,
}

/// Memory that other processes can map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedMemory {
    /// The staging buffer ([`crate::Loader::shared_memory`]).
    Ring,
    /// A tier ([`crate::Loader::shared_tiers`]).
    Tier(TierId),
}

// SAFETY: an address into memory that the batch's owner holds, which may be sent and shared.
unsafe impl Send for DeliveredBytes {}
// SAFETY: as above; only shared references to the bytes are made.
unsafe impl Sync for DeliveredBytes {}

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

/// A batch of this process's own ring.
#[derive(Debug)]
struct RingOwner {
    _block: RingBatch,
    _extra: BatchExtra,
}

impl BatchOwner for RingOwner {}

impl Batch {
    pub(crate) fn of_ring(
        block: RingBatch,
        mut extra: BatchExtra,
        source: Arc<dyn Source>,
        can_be_mapped: bool,
    ) -> Self {
        let place = |index| place(&block, &extra, index, can_be_mapped);
        let samples = (0..block.len()).map(place).collect();
        let (step, skipped) = (block.step(), std::mem::take(&mut extra.skipped));
        let owner = Arc::new(RingOwner { _block: block, _extra: extra });
        Self { step, samples, skipped, source, _owner: owner }
    }

    /// Makes a batch whose bytes another process has lent; `None` for samples that were skipped.
    ///
    /// # Safety
    /// The bytes of all samples stay in place, and nothing but this batch's consumer writes to
    /// them, while the owner exists.
    pub unsafe fn of_owner(
        step: Step,
        samples: Vec<Option<DeliveredBytes>>,
        skipped: SkippedSamples,
        source: Arc<dyn Source>,
        owner: Arc<dyn BatchOwner>,
    ) -> Self {
        Self { step, samples: samples.into(), skipped, source, _owner: owner }
    }

    /// Returns the batch's epoch and iteration.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Returns the samples that were skipped or replaced.
    pub fn skipped(&self) -> &SkippedSamples {
        &self.skipped
    }

    /// Returns the number of samples, skipped ones included.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns whether the batch has no samples.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns where each sample is; `None` for those that were skipped.
    pub fn places(&self) -> &[Option<DeliveredBytes>] {
        &self.samples
    }

    /// Returns a sample; `None` if it was bad and skipped.
    pub fn get(&self, index: usize) -> Option<Sample<'_>> {
        let DeliveredBytes { id, start, length, is_in_slot, .. } = self.samples[index]?;
        // SAFETY: the owner keeps the bytes in their place, and nothing writes to a lent copy.
        let bytes = unsafe { std::slice::from_raw_parts(start, length) };
        Some(Sample { id, bytes, in_slot: is_in_slot, source: self.source.as_ref() })
    }

    /// Returns where another process finds a sample in [`crate::Loader::shared_memory`]: its offset
    /// and length. The bytes stay there until the last clone of this batch is dropped. Returns
    /// `None` if the bytes are elsewhere and have to be sent, because the sample was replaced, a
    /// read or write of it hung, or the staging buffer is not shared; or if the sample was skipped.
    pub fn place(&self, index: usize) -> Option<(usize, usize)> {
        let sample = self.samples[index]?;
        let MappedPlace { memory, offset } = sample.mapped?;
        (memory == MappedMemory::Ring).then_some((offset, sample.length))
    }

    /// Iterates over the samples that were not skipped, in order.
    pub fn iter(&self) -> impl Iterator<Item = Sample<'_>> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

/// Returns where a sample of a ring's batch is.
fn place(
    block: &RingBatch,
    extra: &BatchExtra,
    index: usize,
    can_be_mapped: bool,
) -> Option<DeliveredBytes> {
    if block.state(index) == SlotState::Skipped {
        return None;
    }
    let held = extra.held(index);
    let id = match held {
        HeldBytes::Substitute(other, _) => *other,
        _ => block.sample(index),
    };
    let (start, length) = match held {
        HeldBytes::Slot => (block.bytes(index).as_ptr(), block.bytes(index).len()),
        HeldBytes::Own(bytes) => (bytes.as_ptr(), bytes.len()),
        HeldBytes::Substitute(_, bytes) => (bytes.as_ptr(), bytes.len()),
        HeldBytes::Lent(_, _, pinned) => (pinned.start, pinned.length),
    };
    let is_in_slot = matches!(held, HeldBytes::Slot);
    let is_mapped = can_be_mapped && is_in_slot && block.state(index) == SlotState::Filled;
    let mapped = match held {
        HeldBytes::Lent(tier, _, pinned) => {
            let memory = MappedMemory::Tier(*tier);
            pinned.offset.map(|offset| MappedPlace { memory, offset })
        }
        _ => is_mapped
            .then(|| MappedPlace { memory: MappedMemory::Ring, offset: block.offset(index) }),
    };
    Some(DeliveredBytes { id, start, length, is_in_slot, mapped })
}

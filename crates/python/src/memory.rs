//! Bytes that are lent to Python, and their owners.
//!
//! A [`LentBytes`] holds the owner of its memory: a batch's slots in the staging buffer, a pinned
//! entry of a RAM tier, or its own memory. Python gets plain addresses, so this module makes no
//! Rust reference to bytes that Python may write to.

use std::cell::UnsafeCell;
use std::sync::Arc;

use belady_base::SampleId;
use belady_engine as engine;

use crate::open_dataset::OpenDataset;
use crate::process::Home;

/// A batch and the addresses of its samples, shared by all objects that refer to it.
#[derive(Debug)]
pub struct LentBatch {
    pub batch: Home<engine::Batch>,
    pub dataset: Arc<OpenDataset>,
    /// Whether the consumer may write to slots.
    pub writable: bool,
    /// The delivered samples.
    pub places: Box<[SampleBytes]>,
}

/// The memory of a sample of a batch.
#[derive(Clone, Copy, Debug)]
pub struct SampleBytes {
    pub id: SampleId,
    /// The position in the batch, with skipped samples.
    pub index: u32,
    pub start: *const u8,
    pub length: usize,
    /// Whether it is in the staging buffer, and not in a cache.
    pub in_slot: bool,
}

// SAFETY: an address into memory that `LentBatch::batch` holds, which may be sent and shared.
unsafe impl Send for SampleBytes {}
// SAFETY: as above; the users of the buffer synchronise their writes.
unsafe impl Sync for SampleBytes {}

impl LentBatch {
    pub fn new(batch: engine::Batch, dataset: Arc<OpenDataset>, writable: bool) -> Self {
        let place = |index| {
            let sample = batch.get(index)?;
            let (start, length) = (sample.bytes().as_ptr(), sample.bytes().len());
            let in_slot = sample.is_in_slot();
            Some(SampleBytes { id: sample.id, index: index as u32, start, length, in_slot })
        };
        let places = (0..batch.len()).filter_map(place).collect();
        Self { batch: Home::new(batch), dataset, writable, places }
    }
}

/// A sample in its own, writable memory.
#[derive(Debug)]
pub struct OwnedSample {
    memory: Box<[UnsafeCell<u8>]>,
    id: SampleId,
    dataset: Arc<OpenDataset>,
}

// SAFETY: only addresses are exposed; the users of the buffer synchronise their writes.
unsafe impl Sync for OwnedSample {}

impl OwnedSample {
    pub fn new(bytes: Vec<u8>, id: SampleId, dataset: Arc<OpenDataset>) -> Self {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        // SAFETY: `UnsafeCell<u8>` has the layout of `u8`.
        let memory = unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) };
        Self { memory, id, dataset }
    }
}

/// The bytes of a sample and their owner.
#[derive(Clone, Debug)]
pub enum LentBytes {
    Lent { lent: Arc<LentBatch>, at: u32 },
    Owned(Arc<OwnedSample>),
}

impl LentBytes {
    pub fn own(bytes: Vec<u8>, id: SampleId, dataset: Arc<OpenDataset>) -> Self {
        Self::Owned(Arc::new(OwnedSample::new(bytes, id, dataset)))
    }

    pub fn id(&self) -> SampleId {
        match self {
            Self::Lent { lent, at } => lent.places[*at as usize].id,
            Self::Owned(own) => own.id,
        }
    }

    pub fn dataset(&self) -> &Arc<OpenDataset> {
        match self {
            Self::Lent { lent, .. } => &lent.dataset,
            Self::Owned(own) => &own.dataset,
        }
    }

    /// Returns a copy.
    pub fn copied(&self) -> Self {
        Self::own(self.copy(), self.id(), self.dataset().clone())
    }

    pub fn start(&self) -> *const u8 {
        match self {
            Self::Lent { lent, at } => lent.places[*at as usize].start,
            Self::Owned(own) => own.memory.as_ptr().cast(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Lent { lent, at } => lent.places[*at as usize].length,
            Self::Owned(own) => own.memory.len(),
        }
    }

    pub fn is_writable(&self) -> bool {
        match self {
            Self::Lent { lent, at } => lent.writable && lent.places[*at as usize].in_slot,
            Self::Owned(_) => true,
        }
    }

    /// Returns whether the bytes belong to a cache, which a write would change.
    pub fn is_cached(&self) -> bool {
        match self {
            Self::Lent { lent, at } => !lent.places[*at as usize].in_slot,
            Self::Owned(_) => false,
        }
    }

    /// Returns whether the bytes were lent to this process.
    pub fn is_here(&self) -> bool {
        match self {
            Self::Lent { lent, .. } => lent.batch.is_here(),
            Self::Owned(_) => true,
        }
    }

    fn copy(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len());
        // SAFETY: `start` is valid for `len` bytes while `self` exists. A program that writes to
        // them at the same time gets an undefined mix of bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start(), copy.as_mut_ptr(), self.len());
            copy.set_len(self.len());
        }
        copy
    }
}

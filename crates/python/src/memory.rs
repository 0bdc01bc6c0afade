//! Bytes that Python looks at, and what keeps them there.
//!
//! Whoever holds a [`Bytes`] holds what they lie in: a batch's slots in the staging buffer, a
//! pinned place in a RAM tier, or memory of their own. Python gets plain addresses, so nothing
//! here makes a Rust reference to bytes that Python may write to.

use std::cell::UnsafeCell;
use std::sync::Arc;

use belady_data::SampleId;
use belady_engine as engine;

use crate::dataset::Listed;
use crate::process::Home;

/// A batch and where its samples lie, shared by everyone who has a part of it.
#[derive(Debug)]
pub struct Lent {
    pub batch: Home<engine::Batch>,
    pub dataset: Arc<Listed>,
    /// The consumer may write to slots.
    pub writable: bool,
    /// The samples that are there.
    pub places: Box<[Place]>,
}

/// Where a sample of a batch lies.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub id: SampleId,
    /// Among the samples of the batch, skipped ones included.
    pub index: u32,
    pub start: *const u8,
    pub length: usize,
    /// In the staging buffer, and so in no cache.
    pub in_slot: bool,
}

// SAFETY: an address into memory that `Lent::batch` holds, which may be sent and shared.
unsafe impl Send for Place {}
// SAFETY: as above; what is written there is between the users of the buffer.
unsafe impl Sync for Place {}

impl Lent {
    pub fn new(batch: engine::Batch, dataset: Arc<Listed>, writable: bool) -> Self {
        let place = |index| {
            let sample = batch.get(index)?;
            let (start, length) = (sample.bytes().as_ptr(), sample.bytes().len());
            let in_slot = sample.is_in_slot();
            Some(Place { id: sample.id, index: index as u32, start, length, in_slot })
        };
        let places = (0..batch.len()).filter_map(place).collect();
        Self { batch: Home::new(batch), dataset, writable, places }
    }
}

/// A sample in memory of its own, which whoever has it may write to.
#[derive(Debug)]
pub struct Own {
    memory: Box<[UnsafeCell<u8>]>,
    id: SampleId,
    dataset: Arc<Listed>,
}

// SAFETY: only addresses are given out; who writes when is between the users of the buffer.
unsafe impl Sync for Own {}

impl Own {
    pub fn new(bytes: Vec<u8>, id: SampleId, dataset: Arc<Listed>) -> Self {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        // SAFETY: `UnsafeCell<u8>` lies in memory as `u8` does.
        let memory = unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) };
        Self { memory, id, dataset }
    }
}

/// The bytes of a sample and their owner.
#[derive(Clone, Debug)]
pub enum Bytes {
    Lent { lent: Arc<Lent>, at: u32 },
    Own(Arc<Own>),
}

impl Bytes {
    pub fn own(bytes: Vec<u8>, id: SampleId, dataset: Arc<Listed>) -> Self {
        Self::Own(Arc::new(Own::new(bytes, id, dataset)))
    }

    pub fn id(&self) -> SampleId {
        match self {
            Self::Lent { lent, at } => lent.places[*at as usize].id,
            Self::Own(own) => own.id,
        }
    }

    pub fn dataset(&self) -> &Arc<Listed> {
        match self {
            Self::Lent { lent, .. } => &lent.dataset,
            Self::Own(own) => &own.dataset,
        }
    }

    /// The same bytes in memory of their own.
    pub fn copied(&self) -> Self {
        Self::own(self.copy(), self.id(), self.dataset().clone())
    }

    pub fn start(&self) -> *const u8 {
        match self {
            Self::Lent { lent, at } => lent.places[*at as usize].start,
            Self::Own(own) => own.memory.as_ptr().cast(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Lent { lent, at } => lent.places[*at as usize].length,
            Self::Own(own) => own.memory.len(),
        }
    }

    pub fn is_writable(&self) -> bool {
        match self {
            Self::Lent { lent, at } => lent.writable && lent.places[*at as usize].in_slot,
            Self::Own(_) => true,
        }
    }

    /// Whether writing to it would change what a cache holds.
    pub fn is_cached(&self) -> bool {
        match self {
            Self::Lent { lent, at } => !lent.places[*at as usize].in_slot,
            Self::Own(_) => false,
        }
    }

    /// Whether the process is the one that was lent it.
    pub fn is_here(&self) -> bool {
        match self {
            Self::Lent { lent, .. } => lent.batch.is_here(),
            Self::Own(_) => true,
        }
    }

    fn copy(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len());
        // SAFETY: `start` is good for `len` bytes as long as `self`; a program that writes to
        // them at the same time gets what it deserves, but bytes are bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start(), copy.as_mut_ptr(), self.len());
            copy.set_len(self.len());
        }
        copy
    }
}

//! The layout of a ring's memory.
//!
//! ```text
//! | RingHeader | Descriptor × batches | Receipt × batches | padding to a page | area for blocks |
//! block:  | TableEntry × samples | slot | slot | ...
//! ```
//!
//! Only the producer writes descriptors; the consumer finds its next batch's descriptor by the
//! sequence number. Only the consumer writes receipts; each batch has a receipt to itself from its
//! reservation until its space returns, and its descriptor names the receipt.
//!
//! Two processes that do not trust each other may map everything here.

use std::ops::Range;

use belady_base::SampleId;
use belady_base::sync::atomic::{AtomicU32, AtomicU64};
use belady_base::sync::plain::{self, Ordering::Relaxed};
use belady_control::sampler::Step;

use super::event_count::EventCount;
use super::process::ProcessIdentity;
use super::{RingConfig, RingError};

/// "beladyst" in ASCII.
pub const MAGIC: u64 = 0x6265_6c61_6479_7374;
/// Raised with every change of the layout.
pub const VERSION: u32 = 2;
/// Blocks start on cache lines, so that neighbours do not share one.
const CACHE_LINE: usize = 64;
/// Mappings start on pages, so nothing can be aligned to more.
const PAGE: usize = 4096;

/// How the producer ended, if it has.
pub mod ending {
    pub const RUNNING: u32 = 0;
    /// All batches are reserved; there will be no others.
    pub const FINISHED: u32 = 1;
    /// The producer was dropped before it finished.
    pub const ABORTED: u32 = 2;
}

/// Whether the ring has a consumer.
pub mod presence {
    pub const AWAITED: u32 = 0;
    pub const PRESENT: u32 = 1;
    pub const GONE: u32 = 2;
}

/// The state of the batch with a given sequence number, as one word in its descriptor or its
/// receipt. Both serve one batch after another; the number tells which batch the word belongs to.
pub mod turn {
    pub const fn published(sequence: u64) -> u64 {
        sequence * 4 + 1
    }
    /// The block was dropped unpublished: neither this nor any later batch will be taken.
    pub const fn abandoned(sequence: u64) -> u64 {
        sequence * 4 + 2
    }
    /// The consumer has released it.
    pub const fn released(sequence: u64) -> u64 {
        sequence * 4 + 3
    }
}

/// The dimensions of a ring, fixed when it is created.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    pub capacity: u64,
    pub align: u64,
    pub batches: u64,
}

impl RingLayout {
    pub fn of(config: &RingConfig) -> Result<Self, RingError> {
        let layout = Self {
            capacity: config.capacity as u64,
            align: config.align as u64,
            batches: u64::from(config.batches),
        };
        layout.total().map_err(|reason| RingError::Config { reason })?;
        Ok(layout)
    }

    /// Returns the bytes of the whole mapping, or why the dimensions cannot be used.
    pub fn total(&self) -> Result<usize, String> {
        if !self.align.is_power_of_two() || self.align > PAGE as u64 {
            return Err(format!(
                "slots cannot be aligned to {} bytes; choose a power of two up to {PAGE}",
                self.align
            ));
        }
        if self.batches < 2 {
            return Err(format!(
                "{} outstanding batches are too few; allow at least 2",
                self.batches
            ));
        }
        let limit = isize::MAX as u64;
        let a_batch = (size_of::<Descriptor>() + size_of::<Receipt>()) as u64;
        let total = self.batches.saturating_mul(a_batch);
        let total = total.saturating_add((size_of::<RingHeader>() + PAGE) as u64);
        if total.saturating_add(self.capacity) > limit || self.batches > u64::from(u32::MAX) {
            return Err(format!(
                "{} batches in {} bytes exceed the address space",
                self.batches, self.capacity
            ));
        }
        Ok(self.area_at() + self.capacity as usize)
    }

    /// Returns where the receipts begin.
    pub fn receipts_at(&self) -> usize {
        size_of::<RingHeader>() + self.batches as usize * size_of::<Descriptor>()
    }

    /// Returns where the area for blocks begins.
    pub fn area_at(&self) -> usize {
        (self.receipts_at() + self.batches as usize * size_of::<Receipt>()).next_multiple_of(PAGE)
    }

    /// Returns the alignment of blocks.
    pub fn block_align(&self) -> usize {
        block_align(self.align as usize)
    }

    /// Returns the exact size of a block with these samples; `None` if it overflows.
    pub fn block_bytes(&self, lengths: &[u64]) -> Option<u64> {
        let mut end = table_bytes(lengths.len());
        for &length in lengths {
            end = self.slot_after(end, length)?.end;
        }
        end.max(1).checked_next_multiple_of(self.block_align() as u64)
    }

    /// Returns the range of a slot that follows what ends at `end`.
    fn slot_after(&self, end: u64, length: u64) -> Option<Range<u64>> {
        let start = end.checked_next_multiple_of(self.align)?;
        Some(start..start.checked_add(length)?)
    }

    /// Computes where the slots of a block lie, if they end within `bytes`.
    pub fn entries(
        &self,
        bytes: usize,
        rows: impl ExactSizeIterator<Item = Option<SlotRow>>,
    ) -> Option<Box<[SlotEntry]>> {
        let mut end = table_bytes(rows.len());
        let entries = rows.map(|row| {
            let SlotRow { sample, state, length } = row?;
            let slot = self.slot_after(end, length).filter(|slot| slot.end <= bytes as u64)?;
            end = slot.end;
            Some(SlotEntry { sample, state, slot: slot.start as usize..slot.end as usize })
        });
        entries.collect()
    }
}

fn table_bytes(samples: usize) -> u64 {
    (samples * size_of::<TableEntry>()) as u64
}

/// Returns the alignment of blocks. Blocks whose slots are written by direct reads share no page: a
/// forked child may inherit the pages of a lent batch, and old kernels may then lose a disk's
/// writes to them.
fn block_align(align: usize) -> usize {
    if align >= crate::file::BLOCK { PAGE } else { CACHE_LINE.max(align) }
}

/// Returns the most bytes that a block of this many samples and bytes can need.
pub fn largest_block(bytes: u64, samples: u32, align: usize) -> u64 {
    let samples = u64::from(samples);
    let align = align.max(1) as u64;
    let unaligned = table_bytes(1)
        .saturating_add(align - 1)
        .saturating_mul(samples)
        .saturating_add(bytes)
        .max(1);
    unaligned.checked_next_multiple_of(block_align(align as usize) as u64).unwrap_or(u64::MAX)
}

/// The start of the mapping. The two sides write to different cache lines.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct RingHeader {
    pub magic: plain::AtomicU64,
    pub version: plain::AtomicU32,
    pub shape: [plain::AtomicU64; 3],
    pub producer: ProcessIdentity,
    pub consumer: ProcessIdentity,
    pub from_producer: FromProducer,
    pub from_consumer: FromConsumer,
    /// The consumer sleeps on this.
    pub arrivals: EventCount,
    /// The producer sleeps on this.
    pub returns: EventCount,
}

/// Written by the producer.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct FromProducer {
    /// One of [`ending`].
    pub ending: AtomicU32,
    /// The number of all batches, once finished.
    pub total: AtomicU64,
}

/// Written by the consumer.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct FromConsumer {
    /// One of [`presence`].
    pub presence: AtomicU32,
    /// Batches taken so far.
    pub taken: plain::AtomicU64,
    /// Batches released so far.
    pub released: plain::AtomicU64,
}

impl RingHeader {
    pub fn new(layout: RingLayout) -> Self {
        Self {
            magic: plain::AtomicU64::new(MAGIC),
            version: plain::AtomicU32::new(VERSION),
            shape: [layout.capacity, layout.align, layout.batches].map(plain::AtomicU64::new),
            producer: ProcessIdentity::default(),
            consumer: ProcessIdentity::default(),
            from_producer: FromProducer::default(),
            from_consumer: FromConsumer::default(),
            arrivals: EventCount::default(),
            returns: EventCount::default(),
        }
    }

    /// Returns the dimensions that the header claims, if this version wrote it.
    pub fn layout(&self) -> Result<RingLayout, String> {
        let (magic, version) = (self.magic.load(Relaxed), self.version.load(Relaxed));
        if magic != MAGIC {
            return Err("it does not begin with the magic number".into());
        }
        if version != VERSION {
            return Err(format!(
                "it has version {version} and this program uses {VERSION}; run the same \
                 version of Belady on both sides"
            ));
        }
        let [capacity, align, batches] = self.shape.each_ref().map(|word| word.load(Relaxed));
        Ok(RingLayout { capacity, align, batches })
    }
}

/// Describes one batch that the consumer has not taken yet.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Descriptor {
    /// Published or abandoned, see [`turn`]; orders all other fields and the block.
    pub turn: AtomicU64,
    start: plain::AtomicU64,
    bytes: plain::AtomicU64,
    receipt: plain::AtomicU32,
    samples: plain::AtomicU32,
    epoch: plain::AtomicU32,
    iteration: plain::AtomicU32,
}

/// Tells the producer that the consumer has released a batch.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Receipt {
    /// Released, see [`turn`].
    pub turn: AtomicU64,
}

/// The range of a block in the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockExtent {
    pub start: usize,
    pub bytes: usize,
}

/// What a batch occupies from its reservation until its space returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub extent: BlockExtent,
    /// Index of its receipt.
    pub receipt: u32,
}

impl Descriptor {
    pub fn describe(&self, reservation: Reservation, samples: u32, step: Step) {
        self.start.store(reservation.extent.start as u64, Relaxed);
        self.bytes.store(reservation.extent.bytes as u64, Relaxed);
        self.receipt.store(reservation.receipt, Relaxed);
        self.samples.store(samples, Relaxed);
        self.epoch.store(step.epoch, Relaxed);
        self.iteration.store(step.iteration, Relaxed);
    }

    pub fn step(&self) -> Step {
        Step { epoch: self.epoch.load(Relaxed), iteration: self.iteration.load(Relaxed) }
    }

    /// Returns the reservation and the number of samples, if both are valid in this layout.
    pub fn reservation(&self, layout: &RingLayout) -> Option<(Reservation, usize)> {
        let (start, bytes) = (self.start.load(Relaxed), self.bytes.load(Relaxed));
        let receipt = self.receipt.load(Relaxed);
        let samples = self.samples.load(Relaxed) as usize;
        let inside =
            start.checked_add(bytes)? <= layout.capacity && u64::from(receipt) < layout.batches;
        let aligned = start.is_multiple_of(layout.block_align() as u64);
        let extent = BlockExtent { start: start as usize, bytes: bytes as usize };
        let reservation = Reservation { extent, receipt };
        (inside && aligned && table_bytes(samples) <= bytes).then_some((reservation, samples))
    }
}

/// What a slot holds.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// The slot holds the sample's bytes.
    Filled = 0,
    /// The sample could not be read, and the user chose to skip such samples.
    Skipped = 1,
    /// The bytes are lent from a tier; the slot was not written.
    Elsewhere = 2,
    /// The slot holds another sample's bytes as a replacement.
    Replaced = 3,
}

impl SlotState {
    fn from_word(word: u32) -> Option<Self> {
        match word {
            0 => Some(Self::Filled),
            1 => Some(Self::Skipped),
            2 => Some(Self::Elsewhere),
            3 => Some(Self::Replaced),
            _ => None,
        }
    }
}

/// A checked copy of one row of a block's table.
#[derive(Clone, Copy, Debug)]
pub struct SlotRow {
    pub sample: SampleId,
    pub state: SlotState,
    pub length: u64,
}

/// One side's own record of a sample in a block; the slot is relative to the block's start.
#[derive(Clone, Debug)]
pub struct SlotEntry {
    pub sample: SampleId,
    pub state: SlotState,
    pub slot: Range<usize>,
}

/// One row of a block's table in shared memory. The slot's offset follows from the lengths before
/// it.
#[repr(C)]
#[derive(Debug)]
pub struct TableEntry {
    sample: plain::AtomicU32,
    state: plain::AtomicU32,
    length: plain::AtomicU64,
}

impl TableEntry {
    pub fn store(&self, entry: &SlotEntry) {
        self.sample.store(entry.sample, Relaxed);
        self.mark(entry.state);
        self.length.store(entry.slot.len() as u64, Relaxed);
    }

    pub fn mark(&self, state: SlotState) {
        self.state.store(state as u32, Relaxed);
    }

    /// Returns a copy, if [`Self::store`] can have written it.
    pub fn load(&self) -> Option<SlotRow> {
        let state = SlotState::from_word(self.state.load(Relaxed))?;
        Some(SlotRow {
            sample: self.sample.load(Relaxed),
            state,
            length: self.length.load(Relaxed),
        })
    }
}

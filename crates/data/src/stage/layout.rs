//! What lies where in a ring's memory.
//!
//! ```text
//! | Header | Descriptor × batches | Receipt × batches | padding to a page | area for blocks |
//! block:  | TableEntry × samples | slot | slot | ...
//! ```
//!
//! The producer alone writes descriptors, and the consumer finds the one of its next batch by
//! the sequence number. The consumer alone writes receipts; each batch has one to itself from
//! when it is reserved until its space is back, and its descriptor says which.
//!
//! Everything here may be mapped by two processes, of which neither trusts the other.

use std::ops::Range;

use belady_control::sampler::Step;

use super::gate::Gate;
use super::life::Identity;
use super::{RingConfig, RingError};
use crate::SampleId;
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::plain::{self, Ordering::Relaxed};

/// "beladyst" in ASCII.
pub const MAGIC: u64 = 0x6265_6c61_6479_7374;
/// Raised with every change of what lies where.
pub const VERSION: u32 = 2;
/// Blocks start on cache lines, so that neighbours do not share one.
const CACHE_LINE: usize = 64;
/// Mappings start on pages, so nothing can be aligned to more.
const PAGE: usize = 4096;

/// How far the producer has come.
pub mod ending {
    pub const RUNNING: u32 = 0;
    /// Every batch that will ever come is reserved.
    pub const FINISHED: u32 = 1;
    /// The producer went away in the middle.
    pub const ABORTED: u32 = 2;
}

/// Whether there is a consumer.
pub mod presence {
    pub const AWAITED: u32 = 0;
    pub const PRESENT: u32 = 1;
    pub const GONE: u32 = 2;
}

/// What became of the batch with a given sequence number, as one word in its descriptor or
/// its receipt. Both serve one batch after another; the number tells whose word it is.
pub mod turn {
    pub const fn published(sequence: u64) -> u64 {
        sequence * 4 + 1
    }
    /// Its block was dropped unpublished: neither it nor any later batch will be taken.
    pub const fn abandoned(sequence: u64) -> u64 {
        sequence * 4 + 2
    }
    /// The consumer has let go of it.
    pub const fn released(sequence: u64) -> u64 {
        sequence * 4 + 3
    }
}

/// Shape of a ring; fixed when it is made.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub capacity: u64,
    pub align: u64,
    pub batches: u64,
}

impl Layout {
    pub fn of(config: &RingConfig) -> Result<Self, RingError> {
        let layout = Self {
            capacity: config.capacity as u64,
            align: config.align as u64,
            batches: u64::from(config.batches),
        };
        layout.total().map_err(|reason| RingError::Config { reason })?;
        Ok(layout)
    }

    /// Bytes of the whole mapping, if the shape is sound.
    pub fn total(&self) -> Result<usize, String> {
        if !self.align.is_power_of_two() || self.align > PAGE as u64 {
            return Err(format!(
                "slots cannot be aligned to {}; choose a power of two up to {PAGE}",
                self.align
            ));
        }
        if self.batches < 2 {
            return Err(format!("{} batches outstanding are too few; allow 2", self.batches));
        }
        let limit = isize::MAX as u64;
        let a_batch = (size_of::<Descriptor>() + size_of::<Receipt>()) as u64;
        let total = self.batches.saturating_mul(a_batch);
        let total = total.saturating_add((size_of::<Header>() + PAGE) as u64);
        if total.saturating_add(self.capacity) > limit || self.batches > u64::from(u32::MAX) {
            return Err(format!(
                "{} batches in {} bytes are more than can be addressed",
                self.batches, self.capacity
            ));
        }
        Ok(self.area_at() + self.capacity as usize)
    }

    /// Where the receipts begin.
    pub fn receipts_at(&self) -> usize {
        size_of::<Header>() + self.batches as usize * size_of::<Descriptor>()
    }

    /// Where the area for blocks begins.
    pub fn area_at(&self) -> usize {
        (self.receipts_at() + self.batches as usize * size_of::<Receipt>()).next_multiple_of(PAGE)
    }

    /// What block starts are multiples of.
    pub fn block_align(&self) -> usize {
        block_align(self.align as usize)
    }

    /// Exact bytes of a block with these samples; `None` if no memory could hold it.
    pub fn block_bytes(&self, lengths: &[u64]) -> Option<u64> {
        let mut end = table_bytes(lengths.len());
        for &length in lengths {
            end = self.slot_after(end, length)?.end;
        }
        end.max(1).checked_next_multiple_of(self.block_align() as u64)
    }

    /// Where a slot lies that follows what ends at `end`.
    fn slot_after(&self, end: u64, length: u64) -> Option<Range<u64>> {
        let start = end.checked_next_multiple_of(self.align)?;
        Some(start..start.checked_add(length)?)
    }

    /// The table of a block, if its slots end within `bytes`.
    pub fn entries(
        &self,
        bytes: usize,
        rows: impl ExactSizeIterator<Item = Option<Row>>,
    ) -> Option<Box<[Entry]>> {
        let mut end = table_bytes(rows.len());
        let entries = rows.map(|row| {
            let Row { sample, state, length } = row?;
            let slot = self.slot_after(end, length).filter(|slot| slot.end <= bytes as u64)?;
            end = slot.end;
            Some(Entry { sample, state, slot: slot.start as usize..slot.end as usize })
        });
        entries.collect()
    }
}

fn table_bytes(samples: usize) -> u64 {
    (samples * size_of::<TableEntry>()) as u64
}

/// Blocks whose slots disks write to straight share no page: the pages of a batch that is lent may be
/// inherited by a forked child, and from then on a disk's writes to them might be lost on old kernels.
fn block_align(align: usize) -> usize {
    if align >= crate::file::BLOCK { PAGE } else { CACHE_LINE.max(align) }
}

/// Most bytes that a block of this many samples and bytes can need.
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

/// Start of the mapping. Lines that different sides write are kept apart.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Header {
    pub magic: plain::AtomicU64,
    pub version: plain::AtomicU32,
    pub shape: [plain::AtomicU64; 3],
    pub producer: Identity,
    pub consumer: Identity,
    pub from_producer: FromProducer,
    pub from_consumer: FromConsumer,
    /// Where the consumer sleeps.
    pub arrivals: Gate,
    /// Where the producer sleeps.
    pub returns: Gate,
}

/// What the producer tells.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct FromProducer {
    /// One of [`ending`].
    pub ending: AtomicU32,
    /// Batches there will ever be, once finished.
    pub total: AtomicU64,
}

/// What the consumer tells.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct FromConsumer {
    /// One of [`presence`].
    pub presence: AtomicU32,
    /// Batches taken so far.
    pub taken: plain::AtomicU64,
    /// Batches let go of so far.
    pub released: plain::AtomicU64,
}

impl Header {
    pub fn new(layout: Layout) -> Self {
        Self {
            magic: plain::AtomicU64::new(MAGIC),
            version: plain::AtomicU32::new(VERSION),
            shape: [layout.capacity, layout.align, layout.batches].map(plain::AtomicU64::new),
            producer: Identity::default(),
            consumer: Identity::default(),
            from_producer: FromProducer::default(),
            from_consumer: FromConsumer::default(),
            arrivals: Gate::default(),
            returns: Gate::default(),
        }
    }

    /// The shape it claims to have, if it is a header of ours.
    pub fn layout(&self) -> Result<Layout, String> {
        let (magic, version) = (self.magic.load(Relaxed), self.version.load(Relaxed));
        if magic != MAGIC {
            return Err("it does not begin like one".into());
        }
        if version != VERSION {
            return Err(format!(
                "it has version {version} and this program knows {VERSION}; run the same \
                 version of Belady on both sides"
            ));
        }
        let [capacity, align, batches] = self.shape.each_ref().map(|word| word.load(Relaxed));
        Ok(Layout { capacity, align, batches })
    }
}

/// One batch that the consumer has not taken yet.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Descriptor {
    /// Published or abandoned, see [`turn`]; orders all else in the descriptor and the block.
    pub turn: AtomicU64,
    start: plain::AtomicU64,
    bytes: plain::AtomicU64,
    receipt: plain::AtomicU32,
    samples: plain::AtomicU32,
    epoch: plain::AtomicU32,
    iteration: plain::AtomicU32,
}

/// Where the consumer says that it has let go of a batch.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Receipt {
    /// Released, see [`turn`].
    pub turn: AtomicU64,
}

/// Where a batch's block lies in the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub start: usize,
    pub bytes: usize,
}

/// What a batch occupies from when it is reserved until its space is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub extent: Extent,
    /// Index of its receipt.
    pub receipt: u32,
}

impl Descriptor {
    pub fn describe(&self, place: Place, samples: u32, step: Step) {
        self.start.store(place.extent.start as u64, Relaxed);
        self.bytes.store(place.extent.bytes as u64, Relaxed);
        self.receipt.store(place.receipt, Relaxed);
        self.samples.store(samples, Relaxed);
        self.epoch.store(step.epoch, Relaxed);
        self.iteration.store(step.iteration, Relaxed);
    }

    pub fn step(&self) -> Step {
        Step { epoch: self.epoch.load(Relaxed), iteration: self.iteration.load(Relaxed) }
    }

    /// Where the block and its receipt lie, if that is within a ring of this layout, and how
    /// many samples its table has.
    pub fn place(&self, layout: &Layout) -> Option<(Place, usize)> {
        let (start, bytes) = (self.start.load(Relaxed), self.bytes.load(Relaxed));
        let receipt = self.receipt.load(Relaxed);
        let samples = self.samples.load(Relaxed) as usize;
        let inside =
            start.checked_add(bytes)? <= layout.capacity && u64::from(receipt) < layout.batches;
        let aligned = start.is_multiple_of(layout.block_align() as u64);
        let extent = Extent { start: start as usize, bytes: bytes as usize };
        let place = Place { extent, receipt };
        (inside && aligned && table_bytes(samples) <= bytes).then_some((place, samples))
    }
}

/// How a slot came out.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// The slot holds the sample's bytes.
    Filled = 0,
    /// The sample could not be had and the user chose to go on without it.
    Skipped = 1,
    /// The bytes are lent from elsewhere; the slot was left as it was.
    Elsewhere = 2,
    /// Another sample's bytes stand in for it.
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

/// What the table says of one sample.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub sample: SampleId,
    pub state: SlotState,
    pub length: u64,
}

/// A side's own record of one sample in a block; the slot is counted from the block's start.
#[derive(Clone, Debug)]
pub struct Entry {
    pub sample: SampleId,
    pub state: SlotState,
    pub slot: Range<usize>,
}

/// One row in shared memory. Where the slot lies follows from the lengths before it.
#[repr(C)]
#[derive(Debug)]
pub struct TableEntry {
    sample: plain::AtomicU32,
    state: plain::AtomicU32,
    length: plain::AtomicU64,
}

impl TableEntry {
    pub fn store(&self, entry: &Entry) {
        self.sample.store(entry.sample, Relaxed);
        self.mark(entry.state);
        self.length.store(entry.slot.len() as u64, Relaxed);
    }

    pub fn mark(&self, state: SlotState) {
        self.state.store(state as u32, Relaxed);
    }

    /// A copy, if it is one that [`Self::store`] can have written.
    pub fn load(&self) -> Option<Row> {
        let state = SlotState::from_word(self.state.load(Relaxed))?;
        Some(Row { sample: self.sample.load(Relaxed), state, length: self.length.load(Relaxed) })
    }
}

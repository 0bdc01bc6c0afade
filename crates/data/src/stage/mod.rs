//! The stage: an ordered ring of batches per consumer.
//!
//! The producer reserves a batch's space as a whole and many threads fill its slots. The batch is
//! published, taken in order by the consumer and lent without copying, and its space returns when
//! the last reference to it is dropped. Another process can map the ring's memory and be its
//! consumer, or several can map it and only read the batches that a consumer here has taken.
//!
//! ```text
//! RingProducer::reserve -> RingBlock ..fill.. RingBlock::publish
//!                       -> RingConsumer::take -> RingBatch ..drop.. -> reuse
//! ```
//!
//! One mapped `region` holds a header, a descriptor and a receipt for each batch that may be
//! outstanding, and the area for blocks (`layout`). The `allocator` puts a block into the lowest
//! gap of the area. Each side sleeps on an `event_count`. `liveness` notices that the other side
//! was killed; [`fork`](belady_base::fork), that this process is a forked copy of the ring's owner.
//!
//! The two sides need not trust each other. The producer keeps its own record of the blocks and
//! reads from shared memory only whether a batch was released. The consumer checks every offset
//! once, on a copy, before it uses it.
//!
//! A block's space is reused only when the consumer has released the batch *and* every clone of the
//! [`RingBlock`] is dropped, since a hung read may still write to it. Batches are taken in order,
//! but their space returns in any order: a read that never returns costs the bytes of its batch and
//! one of the outstanding batches, and no more.

mod allocator;
mod batch;
mod block;
mod consumer;
mod event_count;
mod layout;
mod liveness;
mod process;
mod producer;
mod producer_state;
mod region;

use std::os::fd::OwnedFd;

use belady_base::sync::Arc;

pub use batch::RingBatch;
pub use block::RingBlock;
pub use consumer::{RingConsumer, Take};
pub use layout::SlotState;
pub use producer::{ProducerWaker, RingProducer, Wait};

use layout::RingLayout;
use region::{OtherProcesses, Region};

/// The size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Bytes for blocks: the samples, their padding and their tables.
    pub capacity: usize,
    /// The most batches that may be reserved, published or lent at one time.
    pub batches: u32,
    /// Alignment of each slot, a power of two up to a page; 1 packs them.
    pub align: usize,
}

impl RingConfig {
    /// Returns the smallest capacity with which a consumer that holds one batch always gets the
    /// next: two of the largest batches. If the consumer or hung reads hold `k` > 1 batches for
    /// good, `2k + 2` of the largest are enough.
    pub fn needed(largest_batch_bytes: u64, samples_per_batch: u32, align: usize) -> u64 {
        layout::largest_block(largest_batch_bytes, samples_per_batch, align).saturating_mul(2)
    }

    /// Checks that the capacity is at least [`Self::needed`].
    ///
    /// # Errors
    ///
    /// [`RingError::TooSmall`] if it is not.
    pub fn check(&self, largest_batch_bytes: u64, samples_per_batch: u32) -> Result<(), RingError> {
        let needed = Self::needed(largest_batch_bytes, samples_per_batch, self.align);
        let capacity = self.capacity as u64;
        if capacity < needed { Err(RingError::TooSmall { capacity, needed }) } else { Ok(()) }
    }
}

/// Why a ring cannot be created or attached to, or a batch never fits into it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum RingError {
    /// The capacity is below [`RingConfig::needed`].
    #[error(
        "a staging buffer of {capacity} bytes is too small: two of the largest batches need \
         {needed} bytes; enlarge the buffer or make batches smaller"
    )]
    TooSmall { capacity: u64, needed: u64 },
    /// A batch is larger than the whole ring.
    #[error(
        "the batch of epoch {epoch}, iteration {iteration} needs {bytes} bytes and can never \
         fit into a staging buffer of {capacity} bytes; enlarge the buffer or make batches \
         smaller"
    )]
    BatchTooLarge { epoch: u32, iteration: u32, bytes: u64, capacity: u64 },
    /// The configuration is not valid.
    #[error("cannot create the staging buffer: {reason}")]
    Config { reason: String },
    /// The system has no memory for the ring.
    #[error("cannot allocate {bytes} bytes of memory for the staging buffer: {error}")]
    Memory { bytes: u64, error: std::io::Error },
    /// The file is not a ring that this version can use.
    #[error("cannot use the file as a staging buffer: {reason}")]
    NotARing { reason: String },
    /// The ring has had a consumer.
    #[error("the staging buffer has or had a consumer already; create one for each consumer")]
    Occupied,
}

/// Creates a ring in memory of this process.
///
/// # Errors
///
/// If the configuration is not valid or the system has no memory.
pub fn ring(config: &RingConfig) -> Result<(RingProducer, RingConsumer), RingError> {
    let region = Arc::new(Region::private(RingLayout::of(config)?)?);
    let consumer = RingConsumer::of(Arc::clone(&region))?;
    Ok((RingProducer::of(region), consumer))
}

/// Creates a ring in memory that another process can map: send it the file, so that it can call
/// [`RingConsumer::attach`].
///
/// # Errors
///
/// As [`ring`].
pub fn shared_ring(config: &RingConfig) -> Result<(RingProducer, OwnedFd), RingError> {
    let (region, file) = Region::shared(RingLayout::of(config)?, OtherProcesses::Write)?;
    Ok((RingProducer::of(Arc::new(region)), file))
}

/// The memory of a ring that other processes can map and read ([`mapped_ring`]).
#[derive(Debug)]
pub struct SharedMemory {
    /// An unnamed file that is closed on `exec`.
    pub file: OwnedFd,
    /// Bytes to map, from the file's start.
    pub length: usize,
}

/// Creates a ring of this process whose bytes other processes can read: they map the file and find
/// a sample at its [`RingBatch::offset`], as long as this process holds its batch. The file is
/// sealed: its size is fixed and, unless it is `writable`, from Linux 5.1 on no other process can
/// map it for writing.
///
/// # Errors
///
/// As [`ring`].
pub fn mapped_ring(
    config: &RingConfig,
    writable: bool,
) -> Result<(RingProducer, RingConsumer, SharedMemory), RingError> {
    let others = if writable { OtherProcesses::Write } else { OtherProcesses::Read };
    let (region, file) = Region::shared(RingLayout::of(config)?, others)?;
    let region = Arc::new(region);
    let memory = SharedMemory { file, length: region.bytes() };
    let consumer = RingConsumer::of(Arc::clone(&region))?;
    Ok((RingProducer::of(region), consumer, memory))
}

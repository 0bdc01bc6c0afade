//! The stage: an ordered ring of batches per consumer.
//!
//! The engine reserves a batch's space as a whole, before any of its samples is claimed;
//! many threads fill its slots; it is published, taken in order by the consumer, lent
//! without copying, and its space comes back when the last reference to it is dropped.
//! The ring's memory may be shared with another process, where the consumer then lives, or
//! with several that only look at the bytes of batches which a consumer here has taken.
//!
//! ```text
//! Producer::reserve -> Block ..fill.. Block::publish -> Consumer::take -> Batch ..drop.. -> reuse
//! ```
//!
//! One mapped `region` holds a header, one descriptor and one receipt for each batch that may
//! be outstanding, and the area the blocks lie in (`layout`). `space` decides where in the
//! area a block goes: the lowest gap. Both sides sleep at a `gate` each. `life` notices that the other
//! side was killed; [`fork`](crate::fork), that we are a forked copy of the process the ring belongs to.
//!
//! The two sides need not trust each other: the producer keeps its own record of what lies
//! where and takes from the shared memory only whether a batch was released; the consumer
//! checks every offset before it uses it, once, on a copy.
//!
//! A block's space is used again only when the consumer has let go of the batch *and* every
//! clone of the [`Block`] is dropped, since a hung read may still write into it. Batches are
//! taken in order, but their space comes back in any order: a read that never returns costs
//! the bytes of its batch and one of the batches that may be outstanding, and no more.

mod batch;
mod block;
mod consumer;
mod gate;
mod layout;
mod life;
mod producer;
mod region;
mod space;

use std::os::fd::OwnedFd;

pub use batch::Batch;
pub use block::Block;
pub use consumer::{Consumer, Take};
pub use layout::SlotState;
pub use producer::{Producer, ProducerWaker, Wait};

use layout::Layout;
use region::{Others, Region};

use crate::sync::Arc;

/// How large a ring is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Bytes for blocks: the samples, their padding and their tables.
    pub capacity: usize,
    /// Most batches that may be reserved, published or lent at one time.
    pub batches: u32,
    /// Alignment of each slot, a power of two up to a page; 1 packs them.
    pub align: usize,
}

impl RingConfig {
    /// The smallest capacity with which a consumer that holds on to one batch can always
    /// get the next: two of the largest batches. Where two or more
    /// may be held for ever, by the consumer or by hung reads, twice as many and two more are
    /// surely enough.
    pub fn needed(largest_batch_bytes: u64, samples_per_batch: u32, align: usize) -> u64 {
        layout::largest_block(largest_batch_bytes, samples_per_batch, align).saturating_mul(2)
    }

    /// Refuses a capacity below [`Self::needed`].
    pub fn check(&self, largest_batch_bytes: u64, samples_per_batch: u32) -> Result<(), RingError> {
        let needed = Self::needed(largest_batch_bytes, samples_per_batch, self.align);
        let capacity = self.capacity as u64;
        if capacity < needed { Err(RingError::TooSmall { capacity, needed }) } else { Ok(()) }
    }
}

/// Why there is no ring, or why a batch can never go through it.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error(
        "a staging buffer of {capacity} bytes is too small: two of the largest batches need \
         {needed} bytes; enlarge the buffer or make batches smaller"
    )]
    TooSmall { capacity: u64, needed: u64 },
    #[error(
        "the batch of epoch {epoch}, iteration {iteration} needs {bytes} bytes and can never \
         fit into a staging buffer of {capacity} bytes; enlarge the buffer or make batches \
         smaller"
    )]
    BatchTooLarge { epoch: u32, iteration: u32, bytes: u64, capacity: u64 },
    #[error("the staging buffer cannot be made as asked: {reason}")]
    Config { reason: String },
    #[error("cannot get {bytes} bytes of memory for the staging buffer: {error}")]
    Memory { bytes: u64, error: std::io::Error },
    #[error("the file handed over is not a staging buffer that can be used: {reason}")]
    NotARing { reason: String },
    #[error("the staging buffer has or had a consumer already; each consumer needs its own")]
    Occupied,
}

/// A ring in memory of this process.
pub fn ring(config: &RingConfig) -> Result<(Producer, Consumer), RingError> {
    let region = Arc::new(Region::private(Layout::of(config)?)?);
    let consumer = Consumer::of(Arc::clone(&region))?;
    Ok((Producer::of(region), consumer))
}

/// A ring in memory that another process can map: hand it the file, and let it call
/// [`Consumer::attach`].
pub fn shared_ring(config: &RingConfig) -> Result<(Producer, OwnedFd), RingError> {
    let (region, file) = Region::shared(Layout::of(config)?, Others::Consume)?;
    Ok((Producer::of(Arc::new(region)), file))
}

/// The memory of a ring that other processes may map and read ([`readable_ring`]).
#[derive(Debug)]
pub struct SharedMemory {
    /// A file without a name, closed in programs that are started unless they are given it.
    pub file: OwnedFd,
    /// Bytes to map, from the file's start.
    pub length: usize,
}

/// A ring of this process whose bytes others can look at: they map the file, read-only, and
/// are told where a sample lies ([`Batch::offset`]). A sample stays there as long as this
/// process holds its batch. The file is sealed: it keeps its size, and nobody else can get a
/// mapping to write to (from Linux 5.1 on).
pub fn readable_ring(config: &RingConfig) -> Result<(Producer, Consumer, SharedMemory), RingError> {
    let (region, file) = Region::shared(Layout::of(config)?, Others::Read)?;
    let region = Arc::new(region);
    let memory = SharedMemory { file, length: region.bytes() };
    let consumer = Consumer::of(Arc::clone(&region))?;
    Ok((Producer::of(region), consumer, memory))
}

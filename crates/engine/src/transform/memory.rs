//! Memory for output batches, used again and again.
//!
//! An [`OutputBlock`] returns to its pool when its last holder drops it. All blocks are as large as
//! the largest batch so far, so that any of them fits. Mostly there are exactly as many as are in
//! use; if the consumer has held many at once, the pool frees those beyond what the queue needs.
//!
//! A caller may do something with a block once, such as to pin it for a GPU:
//! [`OutputBlock::announce`] returns whether a block is new. An announced block lives as long as
//! the pool, which reports when it is freed.

use std::fmt;
use std::ptr::NonNull;
use std::sync::OnceLock;

use belady_base::fork::Loan;
use belady_base::memory::Memory;
use belady_base::shared_memory::SharedMapping;
use belady_base::sync::atomic::{AtomicBool, Ordering};
use belady_base::sync::{Arc, Mutex, lock};

use super::OnGone;

/// RowArray begin at a cache line.
pub const ALIGN: usize = 64;

/// The free blocks of a stage.
#[derive(Debug)]
pub struct BlockPool {
    free: Mutex<Free>,
    /// The number of free blocks that are kept.
    keep: usize,
    /// Other processes can map the blocks.
    is_shared: bool,
    on_gone: Option<OnGone>,
}

#[derive(Debug, Default)]
struct Free {
    areas: Vec<BlockMemory>,
    /// The size of the largest batch so far.
    largest: usize,
}

impl BlockPool {
    /// Returns a pool for a queue of `depth` batches.
    pub fn new(depth: usize, is_shared: bool, on_gone: Option<OnGone>) -> Self {
        // A consumer that works on one batch often still has the one before.
        // Another process has mapped each block, so blocks stay until the stage ends.
        let keep = if is_shared { usize::MAX } else { depth + 2 };
        Self { free: Mutex::default(), keep, is_shared, on_gone }
    }

    /// Returns a block of at least so many bytes; `None` if there is no memory.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<OutputBlock> {
        let mut free = lock(&self.free);
        free.largest = free.largest.max(bytes);
        let largest = free.largest;
        let fits = free.areas.iter().rposition(|area| area.length >= bytes);
        let found = fits.map(|at| free.areas.swap_remove(at));
        drop(free);
        let area = match found {
            Some(area) => area,
            None => BlockMemory::new(largest, self.is_shared)?,
        };
        Some(OutputBlock::new(area, self.clone()))
    }

    fn report_gone(&self, area: &BlockMemory) {
        if let Some(OnGone(tell)) = &self.on_gone
            && area.is_announced()
        {
            tell(area.start.as_ptr() as usize, area.length);
        }
    }
}

impl BlockHome for BlockPool {
    fn give_back(&self, area: BlockMemory) {
        let mut free = lock(&self.free);
        free.areas.push(area);
        let mut surplus = None;
        if free.areas.len() > self.keep {
            let unknown = (0..free.areas.len()).filter(|&at| !free.areas[at].is_announced());
            let smallest = unknown.min_by_key(|&at| free.areas[at].length);
            surplus = smallest.map(|at| free.areas.swap_remove(at));
        }
        drop(free);
        drop(surplus);
    }
}

impl Drop for BlockPool {
    fn drop(&mut self) {
        let areas = std::mem::take(&mut lock(&self.free).areas);
        for area in &areas {
            self.report_gone(area);
        }
    }
}

/// Takes back the memory of blocks that are dropped.
pub trait BlockHome: fmt::Debug + Send + Sync {
    /// Takes memory back; it may be used again at once.
    fn give_back(&self, memory: BlockMemory);
}

/// Memory that is accessed by address only, since several threads and Python write to it at once.
#[derive(Debug)]
pub struct BlockMemory {
    start: NonNull<u8>,
    length: usize,
    announced: AtomicBool,
    memory: AreaMemory,
}

#[derive(Debug)]
enum AreaMemory {
    Own(NonNull<Memory>),
    Shared(SharedMapping),
}

// SAFETY: it owns its memory; the holders of the block agree on which bytes each accesses.
unsafe impl Send for BlockMemory {}
// SAFETY: as above.
unsafe impl Sync for BlockMemory {}

impl BlockMemory {
    /// Returns memory that another process can map too.
    pub fn of(memory: SharedMapping) -> Self {
        Self {
            start: memory.start(),
            length: memory.len(),
            announced: AtomicBool::new(false),
            memory: AreaMemory::Shared(memory),
        }
    }

    fn new(length: usize, is_shared: bool) -> Option<Self> {
        if is_shared {
            let memory = SharedMapping::create("belady-output", length.max(1)).ok()?;
            return Some(Self::of(memory));
        }
        let mut memory = Box::new(Memory::try_zeroed(length.checked_add(ALIGN)?)?);
        let start = memory.as_mut_ptr();
        // SAFETY: there are `ALIGN` bytes more than `length`.
        let start = unsafe { start.add(start.align_offset(ALIGN)) };
        Some(Self {
            start: NonNull::new(start)?,
            length,
            announced: AtomicBool::new(false),
            // No reference to it is made from here on, since that would invalidate the addresses.
            memory: AreaMemory::Own(NonNull::new(Box::into_raw(memory))?),
        })
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether a caller has announced it ([`OutputBlock::announce`]).
    pub fn is_announced(&self) -> bool {
        self.announced.load(Ordering::Acquire)
    }
}

impl Drop for BlockMemory {
    fn drop(&mut self) {
        if let AreaMemory::Own(memory) = self.memory {
            // SAFETY: it came from a box, and is freed once.
            drop(unsafe { Box::from_raw(memory.as_ptr()) });
        }
    }
}

/// Memory that is borrowed from a pool.
#[derive(Debug)]
pub struct OutputBlock {
    /// `Some` until it is dropped.
    area: Option<BlockMemory>,
    home: Arc<dyn BlockHome>,
    /// Covers the memory that the consumer was given.
    loan: OnceLock<Loan>,
}

impl OutputBlock {
    /// Borrows memory, which returns to `home` when this is dropped.
    pub fn new(area: BlockMemory, home: Arc<dyn BlockHome>) -> Self {
        Self { area: Some(area), home, loan: OnceLock::new() }
    }

    fn area(&self) -> &BlockMemory {
        self.area.as_ref().expect("a block has its memory until it is dropped")
    }

    /// Returns the address of the first byte, a multiple of 64.
    pub fn start(&self) -> NonNull<u8> {
        self.area().start
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.area().length
    }

    /// Returns the memory that other processes map to read the block, if it is shared. It is the
    /// same object whenever the memory is used again.
    pub fn shared_memory(&self) -> Option<&SharedMapping> {
        match &self.area().memory {
            AreaMemory::Shared(memory) => Some(memory),
            AreaMemory::Own(_) => None,
        }
    }

    /// Returns whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes that the consumer has the block: a process that it forks inherits these bytes.
    pub fn lend(&self) {
        let area = self.area();
        self.loan.get_or_init(|| Loan::of([(area.start.as_ptr().cast_const(), area.length)]));
    }

    /// Marks the memory as announced: it is reported when it is freed. Returns whether that is new.
    pub fn announce(&self) -> bool {
        !self.area().announced.swap(true, Ordering::AcqRel)
    }

    /// Returns a part of the block.
    ///
    /// # Panics
    /// Panics if the part exceeds the block.
    ///
    /// # Safety
    /// No other code accesses these bytes while the returned slice exists.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, offset: usize, length: usize) -> &mut [u8] {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.len()),
            "the part exceeds the block"
        );
        // SAFETY: within the block, whose bytes were zeroed; the caller has them alone.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr().add(offset), length) }
    }
}

impl Drop for OutputBlock {
    fn drop(&mut self) {
        drop(self.loan.take());
        if let Some(area) = self.area.take() {
            self.home.give_back(area);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(block: &OutputBlock) -> usize {
        block.start().as_ptr() as usize
    }

    #[test]
    fn blocks_are_used_again_and_aligned() {
        let pool = Arc::new(BlockPool::new(1, false, None));
        for bytes in [0, 1, 63, 1000, 200_000] {
            let block = pool.take(bytes).unwrap();
            assert_eq!((address(&block) % ALIGN, block.len()), (0, bytes));
            let first = address(&block);
            drop(block);
            assert_eq!(address(&pool.take(bytes / 2).unwrap()), first);
        }
        let smaller = pool.take(5).unwrap();
        assert!(smaller.len() >= 5);
        assert!(pool.take(usize::MAX - 100).is_none(), "no memory is a value");
    }

    #[test]
    fn surplus_blocks_are_freed_and_only_announced_ones_are_reported() {
        let gone = Arc::new(Mutex::new(Vec::new()));
        let told = gone.clone();
        let on_gone = OnGone(Box::new(move |start, length| lock(&told).push((start, length))));
        let pool = Arc::new(BlockPool::new(1, false, Some(on_gone)));
        let mut blocks: Vec<OutputBlock> = (0..6).map(|_| pool.take(100).unwrap()).collect();
        assert!(blocks[0].announce() && !blocks[0].announce());
        let announced = address(&blocks[0]);
        blocks.drain(1..).for_each(drop);
        assert!(lock(&gone).is_empty());
        assert_eq!(lock(&pool.free).areas.len(), 3);
        drop(pool);
        assert!(lock(&gone).is_empty(), "as long as it is held it is there");
        drop(blocks);
        assert_eq!(*lock(&gone), [(announced, 100)]);
    }
}

//! The mapped memory of a ring, and the only place that turns its addresses into references.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::RingError;
use super::layout::{Descriptor, Extent, Header, Layout, Receipt, TableEntry};
use crate::fork::{self, Loan, Mapping};

/// What other processes do with a ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// One of them takes batches, and says in the ring when it lets go of them.
    Consume,
    /// They only look at bytes.
    Read,
}

/// A ring's memory, mapped for as long as anyone holds a part of it.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    layout: Layout,
    total: usize,
    /// Forks before the mapping was made.
    generation: u32,
    memory: Memory,
}

/// Whose the memory is.
#[derive(Debug)]
enum Memory {
    /// Of this process. A forked child has a copy of what precedes the area for blocks, so that the
    /// ends of the ring can say there that they are not its own.
    Private { mapping: Mapping, _head: Loan },
    /// Mapped by others too, or to be: a forked child shares it.
    Shared,
}

// SAFETY: the mapping belongs to the process, not to a thread. Everything reached through
// safe functions of this module is atomic or a lock.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A fresh ring in memory of this process alone.
    pub fn private(layout: Layout) -> Result<Self, RingError> {
        let total = size(&layout)?;
        let mapping = Mapping::new(total)
            .map_err(|error| RingError::Memory { bytes: total as u64, error })?;
        // The same memory is written again and again, by disks too: they pin one large page
        // faster than many small ones.
        mapping.wish_for_huge_pages();
        let base = mapping.start();
        let head = Loan::of([(base.as_ptr().cast_const(), layout.area_at())]);
        let memory = Memory::Private { mapping, _head: head };
        let region = Self { base, layout, total, generation: fork::generation(), memory };
        region.initialise();
        Ok(region)
    }

    /// A fresh ring in memory that others can map through the file, whose size is sealed: a
    /// mapping of it can never lose its pages. `others` says what they may do with it.
    pub fn shared(layout: Layout, others: Others) -> Result<(Self, OwnedFd), RingError> {
        let total = size(&layout)?;
        let failed = |error| no_memory(total, error);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("belady-stage", flags).map_err(failed)?;
        ftruncate(&file, total as u64).map_err(failed)?;
        // Before the seals, of which one forbids later mappings like this one.
        let region = Self::over(map(&file, total)?, layout, total)?;
        let seals = SIZE_SEALS | SealFlags::SEAL;
        let sealed = match others {
            Others::Consume => fcntl_add_seals(&file, seals),
            // Kernels before 5.1 do not know that seal: others are trusted to read only.
            Others::Read => fcntl_add_seals(&file, seals | SealFlags::FUTURE_WRITE)
                .or_else(|_| fcntl_add_seals(&file, seals)),
        };
        sealed.map_err(failed)?;
        region.initialise();
        Ok((region, file))
    }

    /// A ring that another process made.
    pub fn attach(file: OwnedFd) -> Result<Self, RingError> {
        if cfg!(feature = "shuttle") {
            return Err(unusable("the explorer's locks cannot be shared".into()));
        }
        let seals = fcntl_get_seals(&file).map_err(|error| unusable(error.to_string()))?;
        if !seals.contains(SIZE_SEALS) {
            return Err(unusable("its size is not sealed".into()));
        }
        let file = File::from(file);
        let found = file.metadata().map_err(|error| unusable(error.to_string()))?.len();
        if found < size_of::<Header>() as u64 || found > isize::MAX as u64 {
            return Err(unusable(format!("its size is {found} bytes")));
        }
        let total = found as usize;
        let base = map(&file.into(), total)?;
        // Only to look at the header, which lies within the file whatever it says.
        let unknown = Layout { capacity: 0, align: 1, batches: 0 };
        let mut region = Self::over(base, unknown, total)?;
        let layout = region.header().layout().map_err(unusable)?;
        let claimed = layout.total().map_err(unusable)?;
        if claimed != total {
            return Err(unusable(format!("it has {total} bytes and claims {claimed}")));
        }
        region.layout = layout;
        Ok(region)
    }

    fn over(base: *mut std::ffi::c_void, layout: Layout, total: usize) -> Result<Self, RingError> {
        let base = NonNull::new(base.cast())
            .ok_or_else(|| unusable("it was mapped at address zero".into()))?;
        let memory = Memory::Shared;
        Ok(Self { base, layout, total, generation: fork::generation(), memory })
    }

    fn initialise(&self) {
        // SAFETY: the mapping is new, writable, aligned to pages, and large enough for the
        // header and `batches` descriptors and receipts; nobody else knows of it yet.
        unsafe {
            self.base.cast::<Header>().write(Header::new(self.layout));
            for index in 0..self.layout.batches as usize {
                self.descriptors().add(index).write(Descriptor::default());
                self.receipts().add(index).write(Receipt::default());
            }
        }
    }

    fn descriptors(&self) -> NonNull<Descriptor> {
        // SAFETY: every mapping is at least as long as the header.
        unsafe { self.base.add(size_of::<Header>()) }.cast()
    }

    fn receipts(&self) -> NonNull<Receipt> {
        // SAFETY: the layout was checked against the mapping's length.
        unsafe { self.base.add(self.layout.receipts_at()) }.cast()
    }

    /// Whether this is the process that made the mapping, and not a fork of it.
    pub fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn header(&self) -> &Header {
        // SAFETY: the mapping is aligned to pages, at least as long as the header, and lives
        // as long as `self`; every bit pattern is a valid header.
        unsafe { self.base.cast().as_ref() }
    }

    /// The descriptor that serves a sequence number.
    pub fn descriptor(&self, sequence: u64) -> &Descriptor {
        let index = (sequence % self.layout.batches) as usize;
        // SAFETY: the layout was checked against the mapping's length and `index` is below
        // `batches`; otherwise as for the header.
        unsafe { self.descriptors().add(index).as_ref() }
    }

    pub fn receipt(&self, index: u32) -> &Receipt {
        assert!(u64::from(index) < self.layout.batches);
        // SAFETY: as for descriptors; `index` is below `batches`.
        unsafe { self.receipts().add(index as usize).as_ref() }
    }

    /// Bytes of the whole mapping.
    pub fn bytes(&self) -> usize {
        self.total
    }

    /// First byte of a block.
    pub fn block(&self, extent: Extent) -> NonNull<u8> {
        assert!(extent.start + extent.bytes <= self.layout.capacity as usize);
        // SAFETY: the area has `capacity` bytes, and lies in the mapping.
        unsafe { self.base.add(self.layout.area_at() + extent.start) }
    }

    /// Gives the memory of a part of the area back to the system, whole pages of it; it is zero when it is
    /// next used. Memory that others map stays as it is.
    ///
    /// # Safety
    /// No block lies there.
    pub unsafe fn give_back(&self, free: Range<usize>) {
        assert!(free.end <= self.layout.capacity as usize);
        if let Memory::Private { mapping, .. } = &self.memory {
            let area = self.layout.area_at();
            // SAFETY: as the caller promises: nothing there is used before it is written again.
            unsafe { mapping.discard(area + free.start..area + free.end) };
        }
    }

    /// The table of a block, `samples` entries long.
    pub fn table(&self, extent: Extent, samples: usize) -> &[TableEntry] {
        assert!(samples * size_of::<TableEntry>() <= extent.bytes);
        assert!(extent.start.is_multiple_of(self.layout.block_align()));
        // SAFETY: the entries lie in the block, which lies in the mapping; blocks start at
        // multiples of at least 64 in an area that starts on a page; entries are atomics, so
        // every bit pattern is valid and a stranger's write is no data race.
        unsafe { std::slice::from_raw_parts(self.block(extent).cast().as_ptr(), samples) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // The explorer's atomics own memory; ours do not.
        if std::mem::needs_drop::<Header>() {
            // SAFETY: initialised by us, since the explorer never attaches, and not used again.
            unsafe {
                for index in 0..self.layout.batches as usize {
                    self.descriptors().add(index).drop_in_place();
                    self.receipts().add(index).drop_in_place();
                }
                self.base.cast::<Header>().drop_in_place();
            }
        }
        if let Memory::Shared = self.memory {
            // SAFETY: our own mapping; all that point into it hold a reference to this region.
            let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.total) };
            debug_assert!(unmapped.is_ok());
        }
    }
}

const SIZE_SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK);

fn map(file: &OwnedFd, total: usize) -> Result<*mut std::ffi::c_void, RingError> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory, and
    // the file's size is sealed.
    unsafe { mmap(ptr::null_mut(), total, access, MapFlags::SHARED, file, 0) }
        .map_err(|error| no_memory(total, error))
}

fn size(layout: &Layout) -> Result<usize, RingError> {
    layout.total().map_err(|reason| RingError::Config { reason })
}

fn no_memory(total: usize, error: rustix::io::Errno) -> RingError {
    RingError::Memory { bytes: total as u64, error: error.into() }
}

fn unusable(reason: String) -> RingError {
    RingError::NotARing { reason }
}

//! The mapped memory of a ring. Only this module turns its addresses into references.

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use belady_base::fork::{self, Loan, Mapping, whole_pages};
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::RingError;
use super::layout::{BlockExtent, Descriptor, Receipt, RingHeader, RingLayout, TableEntry};

/// What other processes may do with a ring's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherProcesses {
    /// They read and write: one of them is the consumer.
    Write,
    /// They only read bytes.
    Read,
}

/// A ring's memory, mapped as long as any part of it is referenced.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    layout: RingLayout,
    total: usize,
    /// The fork generation in which the mapping was made.
    generation: u32,
    memory: RegionMemory,
}

/// Which processes have the memory.
#[derive(Debug)]
enum RegionMemory {
    /// Only this process. A forked child gets a copy of the part before the area for blocks, so
    /// that its copies of the ring's ends can tell that the ring is not theirs.
    Private { mapping: Mapping, _head: Loan },
    /// Other processes can map it, and a forked child shares it.
    Shared,
}

// SAFETY: the mapping belongs to the process, not to a thread. Everything reached through
// safe functions of this module is atomic or a lock.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a ring in memory of this process alone.
    pub fn private(layout: RingLayout) -> Result<Self, RingError> {
        let total = size(&layout)?;
        let mapping = Mapping::new(total)
            .map_err(|error| RingError::Memory { bytes: total as u64, error })?;
        // Direct reads write to this memory again and again, and the kernel pins one large page
        // faster than many small ones.
        mapping.advise_huge_pages();
        let base = mapping.start();
        let head = Loan::of([(base.as_ptr().cast_const(), layout.area_at())]);
        let memory = RegionMemory::Private { mapping, _head: head };
        let region = Self { base, layout, total, generation: fork::generation(), memory };
        region.initialise();
        Ok(region)
    }

    /// Creates a ring in memory that other processes can map through the file. The file's size is
    /// sealed, so a mapping never loses its pages.
    pub fn shared(
        layout: RingLayout,
        others: OtherProcesses,
    ) -> Result<(Self, OwnedFd), RingError> {
        let total = size(&layout)?;
        let failed = |error| no_memory(total, error);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("belady-stage", flags).map_err(failed)?;
        ftruncate(&file, total as u64).map_err(failed)?;
        // Mapped before it is sealed: one of the seals forbids later writable mappings.
        let region = Self::over(map(&file, total)?, layout, total)?;
        let seals = SIZE_SEALS | SealFlags::SEAL;
        let sealed = match others {
            OtherProcesses::Write => fcntl_add_seals(&file, seals),
            // Kernels before 5.1 lack that seal: there, other processes are trusted to read only.
            OtherProcesses::Read => fcntl_add_seals(&file, seals | SealFlags::FUTURE_WRITE)
                .or_else(|_| fcntl_add_seals(&file, seals)),
        };
        sealed.map_err(failed)?;
        region.initialise();
        Ok((region, file))
    }

    /// Maps a ring that another process created.
    pub fn attach(file: OwnedFd) -> Result<Self, RingError> {
        if cfg!(feature = "shuttle") {
            return Err(unusable("shuttle's locks cannot be shared".into()));
        }
        let seals = fcntl_get_seals(&file).map_err(|error| unusable(error.to_string()))?;
        if !seals.contains(SIZE_SEALS) {
            return Err(unusable("its size is not sealed".into()));
        }
        let file = File::from(file);
        let found = file.metadata().map_err(|error| unusable(error.to_string()))?.len();
        if found < size_of::<RingHeader>() as u64 || found > isize::MAX as u64 {
            return Err(unusable(format!("its size is {found} bytes")));
        }
        let total = found as usize;
        let base = map(&file.into(), total)?;
        // An empty layout, to read the header: it lies within the file whatever it claims.
        let unknown = RingLayout { capacity: 0, align: 1, batches: 0 };
        let mut region = Self::over(base, unknown, total)?;
        let layout = region.header().layout().map_err(unusable)?;
        let claimed = layout.total().map_err(unusable)?;
        if claimed != total {
            return Err(unusable(format!("it has {total} bytes and claims {claimed}")));
        }
        region.layout = layout;
        Ok(region)
    }

    fn over(
        base: *mut std::ffi::c_void,
        layout: RingLayout,
        total: usize,
    ) -> Result<Self, RingError> {
        let base = NonNull::new(base.cast())
            .ok_or_else(|| unusable("it was mapped at address zero".into()))?;
        let memory = RegionMemory::Shared;
        Ok(Self { base, layout, total, generation: fork::generation(), memory })
    }

    fn initialise(&self) {
        // SAFETY: the mapping is new, writable, aligned to pages, and large enough for the
        // header and `batches` descriptors and receipts; no other thread or process has it yet.
        unsafe {
            self.base.cast::<RingHeader>().write(RingHeader::new(self.layout));
            for index in 0..self.layout.batches as usize {
                self.descriptors().add(index).write(Descriptor::default());
                self.receipts().add(index).write(Receipt::default());
            }
        }
    }

    fn descriptors(&self) -> NonNull<Descriptor> {
        // SAFETY: every mapping is at least as long as the header.
        unsafe { self.base.add(size_of::<RingHeader>()) }.cast()
    }

    fn receipts(&self) -> NonNull<Receipt> {
        // SAFETY: the layout was checked against the mapping's length.
        unsafe { self.base.add(self.layout.receipts_at()) }.cast()
    }

    /// Whether this is the process that made the mapping, and not a forked child.
    pub fn is_ours(&self) -> bool {
        self.generation == fork::generation()
    }

    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    pub fn header(&self) -> &RingHeader {
        // SAFETY: the mapping is aligned to pages, at least as long as the header, and lives
        // as long as `self`; every bit pattern is a valid header.
        unsafe { self.base.cast().as_ref() }
    }

    /// Returns the descriptor that serves a sequence number.
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

    /// Returns the bytes of the whole mapping.
    pub fn bytes(&self) -> usize {
        self.total
    }

    /// Returns the address of a block's first byte.
    pub fn block(&self, extent: BlockExtent) -> NonNull<u8> {
        assert!(extent.start + extent.bytes <= self.layout.capacity as usize);
        // SAFETY: the area has `capacity` bytes, and lies in the mapping.
        unsafe { self.base.add(self.layout.area_at() + extent.start) }
    }

    /// Returns the whole pages in a part of the area to the system; they are zero when next used.
    /// Memory that other processes may only read is left as it is: its seal forbids this.
    ///
    /// # Safety
    /// No block lies there.
    pub unsafe fn discard(&self, free: Range<usize>) {
        assert!(free.end <= self.layout.capacity as usize);
        let area = self.layout.area_at();
        let range = area + free.start..area + free.end;
        match &self.memory {
            // SAFETY: the caller guarantees that nothing there is used before it is written again.
            RegionMemory::Private { mapping, .. } => unsafe { mapping.discard(range) },
            RegionMemory::Shared => {
                let Some(pages) = whole_pages(range) else { return };
                // SAFETY: within the mapping, whose length the layout was checked against; else as
                // above. On failure the memory stays, which is only a waste.
                let _ = unsafe {
                    madvise(
                        self.base.add(pages.start).as_ptr().cast(),
                        pages.len(),
                        Advice::LinuxRemove,
                    )
                };
            }
        }
    }

    /// Returns the table of a block, `samples` entries long.
    pub fn table(&self, extent: BlockExtent, samples: usize) -> &[TableEntry] {
        assert!(samples * size_of::<TableEntry>() <= extent.bytes);
        assert!(extent.start.is_multiple_of(self.layout.block_align()));
        // SAFETY: the entries lie in the block, which lies in the mapping; blocks start at
        // multiples of at least 64 in an area that starts on a page; entries are atomics, so
        // every bit pattern is valid and a write by the other process is no data race.
        unsafe { std::slice::from_raw_parts(self.block(extent).cast().as_ptr(), samples) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // Shuttle's atomics own memory; the standard ones do not.
        if std::mem::needs_drop::<RingHeader>() {
            // SAFETY: initialised here, since a build for shuttle never attaches, and not used
            // again.
            unsafe {
                for index in 0..self.layout.batches as usize {
                    self.descriptors().add(index).drop_in_place();
                    self.receipts().add(index).drop_in_place();
                }
                self.base.cast::<RingHeader>().drop_in_place();
            }
        }
        if let RegionMemory::Shared = self.memory {
            // SAFETY: our own mapping; every pointer into it holds a reference to this region.
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

fn size(layout: &RingLayout) -> Result<usize, RingError> {
    layout.total().map_err(|reason| RingError::Config { reason })
}

fn no_memory(total: usize, error: rustix::io::Errno) -> RingError {
    RingError::Memory { bytes: total as u64, error: error.into() }
}

fn unusable(reason: String) -> RingError {
    RingError::NotARing { reason }
}

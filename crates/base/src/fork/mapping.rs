//! Memory that forked children do not inherit, except for loans.

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

use super::{Registry, generation, registry};

/// Anonymous memory from the system, initially zero.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
    made_in: u32,
}

// SAFETY: it belongs to the process, not to a thread, and is only reached by address.
unsafe impl Send for Mapping {}
// SAFETY: as above; which thread may touch which bytes is up to the holders of the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps memory.
    pub fn new(length: usize) -> io::Result<Self> {
        Self::map(length, MapFlags::PRIVATE)
    }

    /// Maps memory without reserving it: pages count when they are written.
    pub fn unreserved(length: usize) -> io::Result<Self> {
        Self::map(length, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn map(length: usize, flags: MapFlags) -> io::Result<Self> {
        let made_in = generation();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, access, flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { start, length, made_in };
        mapping.advise(Advice::LinuxDontFork);
        registry().mappings.insert(start.as_ptr() as usize, length);
        Ok(mapping)
    }

    /// Asks for huge pages. This is a hint, so its failure is ignored.
    pub fn advise_huge_pages(&self) {
        self.advise(Advice::LinuxHugepage);
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the whole pages within a range of bytes to the system. They read as zero afterwards.
    ///
    /// # Safety
    /// The bytes are no longer needed, and no reference to them is left.
    pub unsafe fn discard(&self, range: Range<usize>) {
        let Some(pages) = whole_pages(range) else { return };
        if self.made_in != generation() || pages.end > self.length {
            return;
        }
        let start = self.start.as_ptr().wrapping_add(pages.start);
        // SAFETY: within the mapping, and free as the caller promises. On failure the memory stays,
        // which is only a waste.
        let _ = unsafe { madvise(start.cast(), pages.len(), Advice::LinuxDontNeed) };
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: our own mapping, and this advice does not change what it holds.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.length, advice) };
    }
}

/// Returns the pages that lie wholly within a range of a mapping's bytes, if there are any.
pub fn whole_pages(range: Range<usize>) -> Option<Range<usize>> {
    let page = page_size();
    let pages = range.start.next_multiple_of(page)..range.end / page * page;
    (!pages.is_empty()).then_some(pages)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child does not have the mapping, and may have another at its address.
        if self.made_in != generation() {
            return;
        }
        // First: a fork must not advise the kernel on the next mapping at this address.
        registry().mappings.remove(&(self.start.as_ptr() as usize));
        // SAFETY: our own mapping; all that point into it hold a reference to this.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Parts of mappings that forked children inherit as long as this exists.
#[derive(Debug)]
pub struct Loan(u64);

impl Loan {
    /// Lends parts, given as addresses and lengths. Memory outside of a [`Mapping`] is inherited
    /// anyway.
    pub fn of(parts: impl IntoIterator<Item = (*const u8, usize)>) -> Self {
        let range = |(start, length): (*const u8, usize)| start as usize..start as usize + length;
        let parts = parts.into_iter().filter(|(_, length)| *length > 0).map(range).collect();
        let mut registry = registry();
        registry.loans_so_far += 1;
        let number = registry.loans_so_far;
        registry.loans.insert(number, parts);
        Self(number)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let ended = registry().loans.remove(&self.0);
        // Outside of the lock, for which a fork would wait.
        drop(ended);
    }
}

impl Registry {
    /// Lets a child inherit the loans, before a fork, in whole pages.
    ///
    /// A part of a mapping counts as a separate mapping, and `vm.max_map_count` limits their
    /// number. At that limit the child inherits the whole mapping: it may take more memory, but
    /// does not crash at the first byte of a batch. If even that fails, it does.
    pub(super) fn hand_on_loans(&self) {
        for part in self.loans.values().flatten() {
            let Some((mapping, pages)) = self.pages_of(part) else { continue };
            // SAFETY: within a mapping that exists, since it is registered.
            unsafe {
                if advise(pages, Advice::LinuxDoFork).is_err() {
                    let _ = advise(mapping, Advice::LinuxDoFork);
                }
            }
        }
    }

    /// Undoes `hand_on_loans` in the parent, after a fork. On failure, later children inherit more
    /// than is lent.
    pub(super) fn withdraw_loans(&self) {
        if self.loans.is_empty() {
            return;
        }
        for (&start, &length) in &self.mappings {
            // SAFETY: the mapping exists, since it is registered.
            let _ = unsafe { advise(start..start + length, Advice::LinuxDontFork) };
        }
    }

    /// Returns the mapping that a part lies in, and the part's pages.
    fn pages_of(&self, part: &Range<usize>) -> Option<(Range<usize>, Range<usize>)> {
        let (&start, length) = self.mappings.range(..=part.start).next_back()?;
        let page = page_size();
        let pages = part.start / page * page..part.end.next_multiple_of(page);
        (part.end <= start + length).then_some((start..start + length, pages))
    }
}

/// # Safety
/// The pages belong to one mapping of ours.
unsafe fn advise(pages: Range<usize>, advice: Advice) -> rustix::io::Result<()> {
    let start = ptr::with_exposed_provenance_mut(pages.start);
    // SAFETY: as the caller promises; whether children inherit them changes nothing here.
    unsafe { madvise(start, pages.len(), advice) }
}

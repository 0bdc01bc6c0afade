//! Memory that forked children do not inherit, but for what is lent.

use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::param::page_size;

use super::{Registry, generation, registry};

/// Memory straight from the system, zeroed at first.
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
    pub fn new(length: usize) -> io::Result<Self> {
        Self::map(length, MapFlags::PRIVATE)
    }

    /// Memory that the system need not have yet: pages count when they are written.
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

    /// Asks for large pages. A wish only, so its outcome does not matter.
    pub fn wish_for_huge_pages(&self) {
        self.advise(Advice::LinuxHugepage);
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Gives whole pages within a range of bytes back to the system. They are zero when next touched.
    ///
    /// # Safety
    /// What lies there is not needed any more, and no reference to it is left.
    pub unsafe fn discard(&self, range: Range<usize>) {
        let page = page_size();
        let (start, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if self.made_in != generation() || start >= end || end > self.length {
            return;
        }
        // SAFETY: within the mapping, and free as the caller promises. It is a saving only: where it fails,
        // the memory stays.
        let _ = unsafe {
            madvise(self.start.as_ptr().add(start).cast(), end - start, Advice::LinuxDontNeed)
        };
    }

    fn advise(&self, advice: Advice) {
        // SAFETY: our own mapping, and this advice does not change what it holds.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.length, advice) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child it is not there, and something else may be in its place.
        if self.made_in != generation() {
            return;
        }
        // First: a fork must not give advice on what the kernel puts there next.
        registry().mappings.remove(&(self.start.as_ptr() as usize));
        // SAFETY: our own mapping; all that point into it hold a reference to this.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Parts of mappings that a child inherits if it is forked as long as this is there.
#[derive(Debug)]
pub struct Loan(u64);

impl Loan {
    /// Addresses and lengths. Memory that is not in a [`Mapping`] is inherited in any case.
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
        // Not under the lock, for which a fork would have to wait.
        drop(ended);
    }
}

impl Registry {
    /// Before a fork: whole pages, so that a little more is inherited than was lent.
    ///
    /// A part of a mapping counts as a mapping of its own, and a process may have so many only
    /// (`vm.max_map_count`). At that limit the child inherits the whole mapping: it may then take
    /// more memory, but does not end at the first byte of a batch. If even that fails, it does.
    pub(super) fn hand_on_loans(&self) {
        for part in self.loans.values().flatten() {
            let Some((mapping, pages)) = self.pages_of(part) else { continue };
            // SAFETY: within a mapping that is there, since it is registered.
            unsafe {
                if advise(pages, Advice::LinuxDoFork).is_err() {
                    let _ = advise(mapping, Advice::LinuxDoFork);
                }
            }
        }
    }

    /// After a fork, in the parent. Where it fails, children of later forks inherit more than is lent.
    pub(super) fn withdraw_loans(&self) {
        if self.loans.is_empty() {
            return;
        }
        for (&start, &length) in &self.mappings {
            // SAFETY: a mapping that is there, since it is registered.
            let _ = unsafe { advise(start..start + length, Advice::LinuxDontFork) };
        }
    }

    /// The mapping that a part lies in, if it lies in one, and the part's pages.
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

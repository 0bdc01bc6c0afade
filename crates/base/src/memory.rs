//! Memory for samples outside of the ring and the tiers, returned to the system when dropped.
//!
//! An allocator retains large blocks that were freed, for later requests. With many threads and
//! blocks of many sizes, retained blocks would exceed a quota. Forked children do not inherit large
//! pieces, unless they are lent ([`Loan`](crate::fork::Loan)).

use std::ops::{Deref, DerefMut};
use std::slice;

use rustix::mm::{Advice, madvise};

use crate::fork::Mapping;

/// Pieces of this size and more are mapped: the initial threshold of glibc's allocator.
const LARGE: usize = 128 << 10;

/// Asks for huge pages in untouched memory. This is a hint, so its failure is ignored.
pub fn advise_huge_pages(memory: &mut [u8]) {
    let page = rustix::param::page_size();
    let start = memory.as_mut_ptr().align_offset(page);
    let length = memory.len().saturating_sub(start) / page * page;
    if let Some(pages) = memory.get_mut(start..start + length).filter(|pages| !pages.is_empty()) {
        // SAFETY: the caller borrows the memory exclusively; the advice does not change its
        // contents.
        let _ = unsafe { madvise(pages.as_mut_ptr().cast(), pages.len(), Advice::LinuxHugepage) };
    }
}

/// Bytes, initially zero.
#[derive(Debug)]
pub struct Memory(MemoryKind);

#[derive(Debug)]
enum MemoryKind {
    Small(Box<[u8]>),
    Large(Mapping),
}

impl Memory {
    /// Allocates zeroed memory.
    ///
    /// # Panics
    /// If there is no memory, as the allocator does.
    pub fn zeroed(length: usize) -> Self {
        let mapped = if length >= LARGE { Mapping::new(length).ok() } else { None };
        // At the limit of mappings the allocator may still have memory.
        Self(mapped.map_or_else(|| MemoryKind::Small(vec![0; length].into()), MemoryKind::Large))
    }

    /// Allocates zeroed memory; `None` if there is none.
    pub fn try_zeroed(length: usize) -> Option<Self> {
        if length >= LARGE {
            return Mapping::new(length).ok().map(|mapped| Self(MemoryKind::Large(mapped)));
        }
        Some(Self::zeroed(length))
    }
}

impl From<&[u8]> for Memory {
    fn from(bytes: &[u8]) -> Self {
        let mut memory = Self::zeroed(bytes.len());
        memory.copy_from_slice(bytes);
        memory
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            MemoryKind::Small(bytes) => bytes,
            // SAFETY: the mapping has `len` initialised bytes and one owner.
            MemoryKind::Large(mapped) => unsafe {
                slice::from_raw_parts(mapped.start().as_ptr(), mapped.len())
            },
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            MemoryKind::Small(bytes) => bytes,
            // SAFETY: as above, and borrowed for writing.
            MemoryKind::Large(mapped) => unsafe {
                slice::from_raw_parts_mut(mapped.start().as_ptr(), mapped.len())
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_any_size_is_zeroed_and_holds_a_copy() {
        for length in [0, 1, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert!(Memory::zeroed(length).iter().all(|&byte| byte == 0));
            assert!(*Memory::from(&bytes[..]) == bytes[..]);
            assert!(Memory::try_zeroed(length).unwrap().iter().all(|&byte| byte == 0));
        }
        assert!(Memory::try_zeroed(usize::MAX / 2).is_none());
    }
}

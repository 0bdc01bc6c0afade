//! Memory for samples outside of ring and tiers, which goes back to the system when it is dropped.
//!
//! An allocator keeps large blocks that were given back, in case somebody wants them again. With
//! many threads and blocks of many sizes that adds up to more than a quota with a promise allows.
//! Large pieces are not inherited by forked children, unless they are lent ([`Loan`](crate::fork::Loan)).

use std::ops::{Deref, DerefMut};
use std::slice;

use rustix::mm::{Advice, madvise};

use crate::fork::Mapping;

/// From here on memory comes from the system: where glibc's allocator begins to do so too, until
/// it learns better.
const LARGE: usize = 128 << 10;

/// Asks for large pages in memory that is not touched yet. A wish only, so its outcome does not matter.
pub fn wish_for_huge_pages(memory: &mut [u8]) {
    let page = rustix::param::page_size();
    let start = memory.as_mut_ptr().align_offset(page);
    let length = memory.len().saturating_sub(start) / page * page;
    if let Some(pages) = memory.get_mut(start..start + length).filter(|pages| !pages.is_empty()) {
        // SAFETY: memory that the caller has for itself, and this advice does not change what it holds.
        let _ = unsafe { madvise(pages.as_mut_ptr().cast(), pages.len(), Advice::LinuxHugepage) };
    }
}

/// Bytes, zeroed at first.
#[derive(Debug)]
pub struct Memory(Kind);

#[derive(Debug)]
enum Kind {
    Small(Box<[u8]>),
    Large(Mapping),
}

impl Memory {
    pub fn zeroed(length: usize) -> Self {
        let mapped = if length >= LARGE { Mapping::new(length).ok() } else { None };
        // Where the system has no more mappings, the allocator may still have memory.
        Self(mapped.map_or_else(|| Kind::Small(vec![0; length].into()), Kind::Large))
    }

    /// `None` where there is no memory.
    pub fn try_zeroed(length: usize) -> Option<Self> {
        if length >= LARGE {
            return Mapping::new(length).ok().map(|mapped| Self(Kind::Large(mapped)));
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
            Kind::Small(bytes) => bytes,
            // SAFETY: so many bytes, zeroed at first, that only this has.
            Kind::Large(mapped) => unsafe {
                slice::from_raw_parts(mapped.start().as_ptr(), mapped.len())
            },
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Kind::Small(bytes) => bytes,
            // SAFETY: as above, and borrowed for writing.
            Kind::Large(mapped) => unsafe {
                slice::from_raw_parts_mut(mapped.start().as_ptr(), mapped.len())
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_it_is_given_whatever_the_size() {
        for length in [0, 1, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert!(Memory::zeroed(length).iter().all(|&byte| byte == 0));
            assert!(*Memory::from(&bytes[..]) == bytes[..]);
            assert!(Memory::try_zeroed(length).unwrap().iter().all(|&byte| byte == 0));
        }
        assert!(Memory::try_zeroed(usize::MAX / 2).is_none());
    }
}

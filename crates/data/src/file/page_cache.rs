//! Asks the kernel what the page cache holds, and reads only that.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;

use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use super::{MOST_PIECES, Pieces};

const PAGE: u64 = 4096;

/// What the page cache holds of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Residency {
    Whole,
    /// A part or nothing.
    Partial,
    /// The kernel has no `cachestat` (before 6.5).
    Unknown,
    /// The kernel does not say, since the file belongs to another user.
    Denied,
}

pub(super) fn residency(file: &File, offset: u64, length: u64) -> Residency {
    /// The same number on all architectures with unified system call numbers.
    const CACHESTAT: libc::c_long = 451;
    let range = [offset, length];
    // Pages cached, dirty, written back, evicted, evicted lately.
    let mut counts = [0_u64; 5];
    // SAFETY: the descriptor is open; the kernel reads two words and writes five.
    let asked = unsafe {
        libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    if asked != 0 {
        let error = io::Error::last_os_error();
        let denied = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
        return if denied { Residency::Denied } else { Residency::Unknown };
    }
    // Pages beyond the end of the file are never cached: such a range counts as partial.
    let pages = (offset + length).div_ceil(PAGE) - offset / PAGE;
    if counts[0] >= pages { Residency::Whole } else { Residency::Partial }
}

/// Reads what the page cache holds of the start of the range, without waiting for the disk.
pub(super) fn read_cached(
    file: &File,
    offset: u64,
    into: &mut Pieces<'_, '_>,
) -> io::Result<usize> {
    let count = into.len().min(MOST_PIECES);
    let batch = &mut into[..count];
    match retry_on_intr(|| rustix::io::preadv2(file, batch, offset, ReadWriteFlags::NOWAIT)) {
        Ok(got) => {
            IoSliceMut::advance_slices(into, got);
            Ok(got)
        }
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

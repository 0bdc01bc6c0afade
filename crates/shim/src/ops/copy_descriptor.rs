//! Descriptors of copies: the source behind one.

use std::ffi::{CStr, c_int};
use std::io::Write as _;

use belady_board::path::PathBuffer;
use belady_board::{FileId, FileStat};
use rustix::fd::AsRawFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use super::borrow;
use super::kernel_path::{DELETED, EMPTY, raw_path_of};
use crate::attached_job::AttachedJob;

const KIND_AND_STICKY: u32 = libc::S_IFMT | libc::S_ISVTX;
const STICKY_FILE: u32 = libc::S_IFREG | libc::S_ISVTX;

/// Returns whether a file with this mode and device may be a copy. Copies have the sticky bit,
/// which hardly any other file has.
#[inline]
pub fn may_be_copy(job: &AttachedJob, mode: u32, dev: u64) -> bool {
    mode & KIND_AND_STICKY == STICKY_FILE
        && job.board.header().levels().iter().any(|level| level.dev == dev)
}

/// Returns the source's stat for a descriptor that may be a copy's.
#[inline(never)]
pub fn source_stat(
    job: &AttachedJob,
    descriptor: c_int,
    copy: FileId,
    size: u64,
) -> Option<FileStat> {
    if let Some(entry) = job.board.find_copy(copy) {
        return Some(*entry.stat());
    }
    // The copy was dropped while it was open.
    let mut buffer = PathBuffer::default();
    let source = source_by_name(job, descriptor, &mut buffer)?;
    let stat = FileStat::of(CWD, source, AtFlags::empty()).ok()?;
    // The copy's size: the source may have grown, and mapping beyond the end raises SIGBUS.
    Some(FileStat { size, ..stat })
}

/// Returns the path of the source, if the descriptor is a copy's.
pub fn source<'b>(
    job: &AttachedJob,
    descriptor: c_int,
    buffer: &'b mut PathBuffer,
) -> Option<&'b CStr> {
    let stat = rustix::fs::fstat(borrow(descriptor)?).ok()?;
    if !may_be_copy(job, stat.st_mode, stat.st_dev) {
        return None;
    }
    source_by_name(job, descriptor, buffer)
}

#[inline(never)]
fn source_by_name<'b>(
    job: &AttachedJob,
    descriptor: c_int,
    buffer: &'b mut PathBuffer,
) -> Option<&'b CStr> {
    let mut kernel_path = EMPTY;
    let path = raw_path_of(descriptor, &mut kernel_path)?;
    let path = path.strip_suffix(DELETED).unwrap_or(path);
    let header = job.board.header();
    let below = |files: &[u8]| path.strip_prefix(files)?.strip_prefix(b"/");
    let relative = header.levels().iter().find_map(|level| below(level.files.get()))?;
    buffer.join(header.dataset().real, relative)
}

/// Returns a path to an open file that is valid in this process only.
pub fn own_name(descriptor: c_int, buffer: &mut [u8; 32]) -> &CStr {
    *buffer = [0; 32];
    let _ = write!(&mut buffer[..31], "/proc/self/fd/{descriptor}");
    CStr::from_bytes_until_nul(buffer).unwrap_or(c"/dev/null")
}

/// Opens the source with `O_PATH` and passes the descriptor on.
pub fn with_handle<T>(source: &CStr, then: impl FnOnce(Option<c_int>) -> T) -> T {
    let handle = rustix::fs::open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    then(handle.as_ref().ok().map(AsRawFd::as_raw_fd))
}

//! Descriptors of copies: which file they stand for.

use std::ffi::{CStr, c_int};
use std::io::Write as _;

use belady_board::path::Buffer;
use belady_board::{Facts, FileId};
use rustix::fd::AsRawFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use super::borrow;
use super::place::{DELETED, ROOM, kernel_name_of};
use crate::job::Job;

const KIND_AND_STICKY: u32 = libc::S_IFMT | libc::S_ISVTX;
const STICKY_FILE: u32 = libc::S_IFREG | libc::S_ISVTX;

/// Whether what `fstat` says may be of a copy: they have the sticky bit, which hardly any file has.
#[inline]
pub fn may_be_copy(job: &Job, mode: u32, dev: u64) -> bool {
    mode & KIND_AND_STICKY == STICKY_FILE
        && job.board.head().levels().iter().any(|level| level.dev == dev)
}

/// What the program is to hear of a descriptor that may be a copy's.
#[inline(never)]
pub fn facts_of_source(job: &Job, descriptor: c_int, copy: FileId, size: u64) -> Option<Facts> {
    if let Some(entry) = job.board.find_copy(copy) {
        return Some(*entry.facts());
    }
    // It was dropped while it was open.
    let mut buffer = Buffer::default();
    let source = source_by_name(job, descriptor, &mut buffer)?;
    let facts = Facts::of(CWD, source, AtFlags::empty()).ok()?;
    // The source may have grown. Who maps what is not there gets a signal.
    Some(Facts { size, ..facts })
}

/// The path of the source, if the descriptor is that of a copy.
pub fn source<'b>(job: &Job, descriptor: c_int, buffer: &'b mut Buffer) -> Option<&'b CStr> {
    let stat = rustix::fs::fstat(borrow(descriptor)?).ok()?;
    if !may_be_copy(job, stat.st_mode, stat.st_dev) {
        return None;
    }
    source_by_name(job, descriptor, buffer)
}

#[inline(never)]
fn source_by_name<'b>(job: &Job, descriptor: c_int, buffer: &'b mut Buffer) -> Option<&'b CStr> {
    let mut room = ROOM;
    let name = kernel_name_of(descriptor, &mut room)?;
    let name = name.strip_suffix(DELETED).unwrap_or(name);
    let head = job.board.head();
    let below = |files: &[u8]| name.strip_prefix(files)?.strip_prefix(b"/");
    let relative = head.levels().iter().find_map(|level| below(level.files.get()))?;
    buffer.joined(head.dataset().real, relative)
}

/// A path to an open file that is only good in this process.
pub fn own_name(descriptor: c_int, room: &mut [u8; 32]) -> &CStr {
    *room = [0; 32];
    let _ = write!(&mut room[..31], "/proc/self/fd/{descriptor}");
    CStr::from_bytes_until_nul(room).unwrap_or(c"/dev/null")
}

/// Opens the source only to speak of it.
pub fn with_handle<T>(source: &CStr, then: impl FnOnce(Option<c_int>) -> T) -> T {
    let handle = rustix::fs::open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    then(handle.as_ref().ok().map(AsRawFd::as_raw_fd))
}

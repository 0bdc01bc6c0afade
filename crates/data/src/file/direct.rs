//! Direct reads (`O_DIRECT`) of a file, past the page cache.
//!
//! A read whose offset and memory are aligned goes straight into the memory. Otherwise the aligned
//! bytes around the range go into a buffer of the thread and are copied from there.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;

use belady_base::memory::Memory;
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};

use super::Pieces;
use super::per_process::PerProcess;

/// The alignment of offset, length and address of a direct read through the buffer: the largest
/// block of local disks.
pub(super) const ALIGNMENT: usize = 4096;

/// The alignment that most disks accept: enough for a read straight into memory.
pub(crate) const BLOCK: usize = 512;

/// The size of the buffer: enough for a disk's full rate, and small enough to stay in a core's
/// cache until it is copied.
const BOUNCE: usize = 512 << 10;

/// A second descriptor of a file for direct reads, opened when first needed. Other threads read
/// through the first descriptor at the same time, so its flags cannot be changed.
#[derive(Debug, Default)]
pub(crate) struct DirectFile(OnceLock<Option<File>>);

impl DirectFile {
    /// Returns a direct descriptor of this file, even if its path now leads to another; `None` if
    /// the file system has no direct reads.
    pub(super) fn of(&self, file: &File) -> Option<BorrowedFd<'_>> {
        let reopen = || {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = OFlags::DIRECT.bits().cast_signed();
            OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
        };
        self.0.get_or_init(reopen).as_ref().map(AsFd::as_fd)
    }
}

thread_local! {
    static BUFFER: RefCell<Option<PerProcess<Memory>>> = const { RefCell::new(None) };
}

/// Whether a direct read can go straight into the memory.
pub(super) fn is_aligned(offset: u64, into: &[u8]) -> bool {
    offset.is_multiple_of(BLOCK as u64) && into.as_ptr().addr().is_multiple_of(BLOCK)
}

/// Reads a range directly. Returns early, without an error, if the file system turns out to have no
/// direct reads.
pub(super) fn read_direct(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut Pieces<'_, '_>,
) -> io::Result<usize> {
    BUFFER.with_borrow_mut(|buffer| {
        let make = || Memory::zeroed(BOUNCE + ALIGNMENT);
        let buffer = PerProcess::get_or_make(buffer, make);
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        let buffer = &mut buffer[start..start + BOUNCE];
        if let [piece] = &mut **into
            && let Some(got) = read_straight(file, offset, piece, buffer)?
        {
            IoSliceMut::advance_slices(into, got);
            return Ok(got);
        }
        bounce(file, offset, into, buffer)
    })
}

/// Reads straight into aligned memory; a partial last block goes through the buffer. Returns `None`
/// if the memory is not aligned.
fn read_straight(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut [u8],
    buffer: &mut [u8],
) -> io::Result<Option<usize>> {
    if !is_aligned(offset, into) {
        return Ok(None);
    }
    let (whole, rest) = into.split_at_mut(into.len() / BLOCK * BLOCK);
    let last = &mut buffer[..if rest.is_empty() { 0 } else { BLOCK }];
    let came = {
        let mut pieces = [IoSliceMut::new(whole), IoSliceMut::new(last)];
        let pieces = &mut pieces[..if rest.is_empty() { 1 } else { 2 }];
        match retry_on_intr(|| rustix::io::preadv(file, pieces, offset)) {
            Ok(came) => came,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    Ok(Some(copy_last_block(into, last, came)))
}

/// Copies the wanted part of the last block, after a read of `came` bytes into the whole blocks of
/// `into` and into `last`. Returns how many of the wanted bytes came.
pub(super) fn copy_last_block(into: &mut [u8], last: &[u8], came: usize) -> usize {
    let (whole, rest) = into.split_at_mut(into.len() / BLOCK * BLOCK);
    let of_rest = came.saturating_sub(whole.len()).min(rest.len());
    rest[..of_rest].copy_from_slice(&last[..of_rest]);
    came.min(whole.len()) + of_rest
}

/// Reads the aligned bytes around a range into the buffer and copies the range.
fn bounce(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut Pieces<'_, '_>,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let wanted: usize = into.iter().map(|piece| piece.len()).sum();
    let mut got = 0;
    while got < wanted {
        let at = offset + got as u64;
        let skip = (at % ALIGNMENT as u64) as usize;
        let length = (skip + wanted - got).next_multiple_of(ALIGNMENT).min(buffer.len());
        let came = match retry_on_intr(|| {
            rustix::io::pread(file, &mut buffer[..length], at - skip as u64)
        }) {
            Ok(came) => came,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
            Err(error) => return Err(error.into()),
        };
        if came <= skip {
            break;
        }
        let useful = (came - skip).min(wanted - got);
        scatter(&buffer[skip..skip + useful], into);
        got += useful;
        if !came.is_multiple_of(ALIGNMENT) {
            break; // The file ends here.
        }
    }
    Ok(got)
}

/// Copies bytes into the first pieces and advances past the filled part.
fn scatter(mut bytes: &[u8], into: &mut Pieces<'_, '_>) {
    while !bytes.is_empty() {
        let count = bytes.len().min(into[0].len());
        into[0][..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        IoSliceMut::advance_slices(into, count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::cold_file;
    use super::*;

    #[test]
    fn a_forked_child_reads_directly_with_its_own_buffer() {
        let (file, bytes) = cold_file(40_000);
        let read = || {
            let mut memory = vec![0; bytes.len()];
            let mut pieces = [IoSliceMut::new(&mut memory)];
            let got = read_direct(file.as_file().as_fd(), 0, &mut &mut pieces[..]);
            got.is_ok_and(|got| got == bytes.len()) && memory == bytes
        };
        assert!(read());
        // SAFETY: the child reads, which takes no lock but the allocator's, and exits.
        let child = match unsafe { libc::fork() } {
            // SAFETY: ends the child without the parent's exit handlers.
            0 => unsafe { libc::_exit(i32::from(!read())) },
            child => child,
        };
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has read other bytes, or none");
        assert!(read());
    }
}

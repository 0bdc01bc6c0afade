//! Reads and writes a segment file.
//!
//! Samples that were put lately are in the page cache and are read from there. Larger samples that
//! are not are read directly from the disk, past the page cache ([`crate::file`]): the tier below
//! RAM should not fill RAM a second time. Small samples are read through the page cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::file::{self, Cold, DirectFile};

/// Zeros are written in chunks of this size.
const CHUNK: usize = 1 << 20;

/// A segment file, open for reading and, by its writer, for writing.
#[derive(Debug)]
pub(super) struct SegmentFile {
    file: File,
    direct: DirectFile,
}

impl SegmentFile {
    pub fn open(path: &Path, writable: bool, create: bool) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .create(create)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        // Samples are read in random order, so reading ahead is of no use.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        Ok(Self { file, direct: DirectFile::default() })
    }

    /// Fills `into` from `offset`, or fails.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let cold = Cold::Direct(&self.direct);
        if file::read_exact_at(&self.file, offset, into, cold)? < into.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Starts writing dirty pages to the disk without waiting, so that they do not accumulate until
    /// the kernel throttles all writers.
    pub fn start_write_back(&self) {
        // SAFETY: the descriptor is open and the call accesses no memory. Its result does not
        // matter: the kernel writes back eventually.
        unsafe {
            libc::sync_file_range(self.file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE);
        }
    }

    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    /// Extends the file to `to` bytes, and reserves disk space if the file system can.
    pub fn extend(&self, from: u64, to: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), from, to - from) {
            Err(Errno::OPNOTSUPP) => self.file.set_len(to),
            result => Ok(result?),
        }
    }
}

/// Reserves disk space for a file, by writing zeros if the file system cannot.
pub(super) fn reserve(file: &File, from: u64, to: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), from, to - from) {
        Err(Errno::OPNOTSUPP) => {
            let zeros = vec![0; CHUNK];
            let mut at = from;
            while at < to {
                let part = (to - at).min(CHUNK as u64);
                file.write_all_at(&zeros[..part as usize], at)?;
                at += part;
            }
            Ok(())
        }
        result => Ok(result?),
    }
}

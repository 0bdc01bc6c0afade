//! How segments are read and written.
//!
//! What was put lately is in the page cache and is read from there. What is not there comes
//! straight from the disk, past the page cache, into a bounce buffer of the thread: the tier
//! below RAM must not fill RAM a second time. Which of the two it is, `mincore` tells
//! without moving anything. A read that must not wait (`RWF_NOWAIT`) would tell as well, but
//! newer kernels then start reading the pages in, and every cold sample is read twice.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::index::PAGE;

/// Long samples are read by chunks: enough to keep a disk busy, little memory a thread.
const CHUNK: usize = 1 << 20;

/// A file of the cache, open for reading and, by its writer, for writing.
#[derive(Debug)]
pub(super) struct SegmentFile {
    path: PathBuf,
    file: File,
    /// The same file past the page cache, opened at the first read that needs it.
    direct: OnceLock<Option<File>>,
    /// The same file in address space, to ask which of its pages are cached.
    window: Option<MmapRaw>,
}

impl SegmentFile {
    /// `length` is what the file will have at most.
    pub fn open(path: PathBuf, length: u64, writable: bool, create: bool) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .create(create)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        // Samples are read in random order: pages beside them are of no use.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        let window = MmapOptions::new().len(length as usize).map_raw_read_only(&file).ok();
        Ok(Self { path, file, direct: OnceLock::new(), window })
    }

    /// Fills `into` from `offset`, or fails.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        for part in into.chunks_mut(CHUNK) {
            self.read_chunk(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn read_chunk(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        if !self.is_cached(offset, into.len())
            && let Some(direct) = self.direct()
        {
            match read_direct(direct, offset, into) {
                // The file system opens such files and then cannot read them.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                result => return result,
            }
        }
        self.file.read_exact_at(into, offset)
    }

    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    /// Starts writing dirty pages to the disk without waiting for them, so that they do not
    /// pile up until the kernel stops everyone.
    pub fn start_write_back(&self) {
        // SAFETY: the descriptor is open; the call touches no memory of ours. Its outcome
        // does not matter: the kernel writes back on its own in time.
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

    /// Makes the file `to` bytes long, with room on the disk if the file system can.
    pub fn extend(&self, from: u64, to: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), from, to - from) {
            Err(Errno::OPNOTSUPP) => self.file.set_len(to),
            result => Ok(result?),
        }
    }

    /// Whether all pages of a chunk are in the page cache.
    fn is_cached(&self, offset: u64, length: usize) -> bool {
        let first = offset - offset % PAGE;
        let bytes = (offset + length as u64).next_multiple_of(PAGE) - first;
        let Some(window) = self.window.as_ref().filter(|map| first + bytes <= map.len() as u64)
        else {
            return false;
        };
        // A chunk that begins within a page ends in one more.
        let mut resident = [0_u8; CHUNK / PAGE as usize + 1];
        // SAFETY: the range lies in the mapping, which is not touched, only asked about, and
        // has no more pages than the array has bytes.
        let asked = unsafe {
            let start = window.as_mut_ptr().add(first as usize);
            libc::mincore(start.cast(), bytes as usize, resident.as_mut_ptr())
        };
        asked == 0 && resident[..(bytes / PAGE) as usize].iter().all(|page| page & 1 == 1)
    }

    fn direct(&self) -> Option<&File> {
        self.direct.get_or_init(|| open_direct(&self.path).ok()).as_ref()
    }
}

fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT | libc::O_NOFOLLOW).open(path)
}

/// Reads the pages around a chunk and copies the wanted bytes out.
fn read_direct(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    thread_local! {
        static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BOUNCE.with_borrow_mut(|bounce| {
        let first = offset - offset % PAGE;
        let end = (offset + into.len() as u64).next_multiple_of(PAGE);
        let pages = aligned(bounce, (end - first) as usize);
        file.read_exact_at(pages, first)?;
        into.copy_from_slice(&pages[(offset - first) as usize..][..into.len()]);
        Ok(())
    })
}

/// Part of the buffer that begins on a page, as direct reads demand.
fn aligned(buffer: &mut Vec<u8>, length: usize) -> &mut [u8] {
    let needed = length + PAGE as usize;
    if buffer.len() < needed {
        buffer.resize(needed, 0);
    }
    let skip = buffer.as_ptr().align_offset(PAGE as usize);
    &mut buffer[skip..skip + length]
}

/// Gives a file room on the disk, by writing zeros if the file system has no other way.
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

//! How segments are read and written.
//!
//! Reads try the page cache first and do not wait for it: what was put lately is there.
//! What is not there comes straight from the disk, past the page cache, into a bounce
//! buffer of the thread: the tier below RAM must not fill RAM a second time. Where a file
//! system cannot do either, a plain read does.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::index::PAGE;

/// Most bytes of one direct read: enough to keep a disk busy, little memory a thread.
const CHUNK: u64 = 1 << 20;

/// A file of the cache, open for reading and, by its writer, for writing.
#[derive(Debug)]
pub(super) struct SegmentFile {
    path: PathBuf,
    file: File,
    /// The same file past the page cache, opened at the first read that needs it.
    direct: OnceLock<Option<File>>,
    can_ask_cache: AtomicBool,
}

impl SegmentFile {
    pub fn open(path: PathBuf, writable: bool, create: bool) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(writable)
            .create(create)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)?;
        Ok(Self { path, file, direct: OnceLock::new(), can_ask_cache: AtomicBool::new(true) })
    }

    /// Fills `into` from `offset`, or fails.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let cached = self.read_cached(offset, into)?;
        if cached == into.len() {
            return Ok(());
        }
        let (offset, into) = (offset + cached as u64, &mut into[cached..]);
        match self.direct() {
            Some(direct) => match read_direct(direct, offset, into) {
                // The file system opens such files and then cannot read them.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.file.read_exact_at(into, offset)
                }
                result => result,
            },
            None => self.file.read_exact_at(into, offset),
        }
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

    /// How many of the bytes the page cache gave at once.
    fn read_cached(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        if !self.can_ask_cache.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let mut read = 0;
        while read < into.len() {
            let mut rest = [IoSliceMut::new(&mut into[read..])];
            let at = offset + read as u64;
            match rustix::io::preadv2(&self.file, &mut rest, at, ReadWriteFlags::NOWAIT) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => read += bytes,
                Err(Errno::AGAIN) => break,
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.can_ask_cache.store(false, Ordering::Relaxed);
                    break;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(read)
    }

    fn direct(&self) -> Option<&File> {
        self.direct.get_or_init(|| open_direct(&self.path).ok()).as_ref()
    }
}

fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT | libc::O_NOFOLLOW).open(path)
}

/// Reads the pages around the wanted bytes and copies those out.
fn read_direct(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    thread_local! {
        static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    BOUNCE.with_borrow_mut(|bounce| {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let first = at - at % PAGE;
            let end = (offset + into.len() as u64).next_multiple_of(PAGE).min(first + CHUNK);
            let pages = aligned(bounce, (end - first) as usize);
            let read = read_some(file, first, pages)?;
            let useful = pages[..read].get((at - first) as usize..).unwrap_or(&[]);
            let useful = &useful[..useful.len().min(into.len() - done)];
            if useful.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into[done..done + useful.len()].copy_from_slice(useful);
            done += useful.len();
        }
        Ok(())
    })
}

fn read_some(file: &File, at: u64, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read_at(into, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
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
            let zeros = vec![0; CHUNK as usize];
            let mut at = from;
            while at < to {
                let part = (to - at).min(CHUNK);
                file.write_all_at(&zeros[..part as usize], at)?;
                at += part;
            }
            Ok(())
        }
        result => Ok(result?),
    }
}

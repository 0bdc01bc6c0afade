//! The mapped memory.

use std::ffi::{CStr, c_void};
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::head::{Head, MAGIC, Revalidate};
use crate::index::{self, Key};
use crate::message::Message;
use crate::path::{LONGEST, PathKey};
use crate::record::{Entry, FileId, Record, Seen};
use crate::{MOST_LEVELS, written};

/// What a board is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The dataset's directory as it was given, absolute and clean.
    pub given: Vec<u8>,
    /// The same without symbolic links.
    pub real: Vec<u8>,
    pub levels: Vec<LevelConfig>,
    pub revalidate: Revalidate,
    /// Files that it has room for, as a power of two. Memory is used for those that come.
    pub records_log2: u32,
}

#[derive(Clone, Debug)]
pub struct LevelConfig {
    /// The directory below which copies lie, absolute and clean.
    pub files: Vec<u8>,
    /// The device that the directory is on.
    pub dev: u64,
}

/// Where the parts are, in bytes.
#[derive(Clone, Copy, Debug)]
struct Layout {
    records_log2: u32,
    written: usize,
    index: usize,
    records: usize,
    end: usize,
}

impl Layout {
    fn of(records_log2: u32) -> Self {
        let page = |at: usize| at.next_multiple_of(4096);
        let written = page(size_of::<Head>());
        let index = page(written + written::SLOTS * 8);
        let tables = index::slots_before(index::last_table(records_log2) + 1);
        let records = page(index + tables * 8);
        let end = page(records + (size_of::<Record>() << records_log2));
        Self { records_log2, written, index, records, end }
    }
}

/// The board, mapped. It stays mapped as long as the process lives: who looks something up may do
/// so at any time, also while the process ends.
#[derive(Debug)]
pub struct Board {
    base: *mut c_void,
    layout: Layout,
}

// SAFETY: all memory behind `base` is either written before anybody else sees it and never again, or
// atomic.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// A new board, and the file by which others find it.
    ///
    /// # Errors
    /// If there is no memory for it, or a path is too long.
    pub fn create(config: &Config) -> std::io::Result<(Self, OwnedFd)> {
        let layout = Layout::of(config.records_log2);
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"belady-board", flags)?;
        rustix::fs::ftruncate(&file, layout.end as u64)?;
        // What is mapped stays there.
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK)?;
        let base = map(&file, layout.end)?;
        // SAFETY: the file is new, large enough, zero (which is a valid head), and nobody else's yet.
        let head = unsafe { &mut *base.cast::<Head>() };
        let mut token = [0; 8];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())?;
        head.token = u64::from_ne_bytes(token);
        head.records_log2 = config.records_log2;
        head.revalidate = config.revalidate as u32;
        head.owner = rustix::process::geteuid().as_raw();
        head.dev = rustix::fs::stat(&config.real[..]).map_or(0, |stat| stat.st_dev);
        fill(head, config).ok_or_else(|| {
            std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "paths or levels are too many for a board",
            )
        })?;
        head.generation.store(1, SeqCst);
        head.magic = MAGIC;
        Ok((Self { base, layout }, file))
    }

    fn map(file: &OwnedFd, token: u64) -> Option<Self> {
        let size = usize::try_from(rustix::fs::fstat(file).ok()?.st_size).ok()?;
        if size < size_of::<Head>() {
            return None;
        }
        let base = map(file, size).ok()?;
        // SAFETY: the mapping is at least as large as a head, for which any bytes are valid.
        let head = unsafe { &*base.cast::<Head>() };
        let known = head.magic == MAGIC && head.token == token && head.records_log2 <= 32;
        let layout = Layout::of(head.records_log2.min(32));
        if known && layout.end == size {
            return Some(Self { base, layout });
        }
        // SAFETY: it was mapped just now, and nothing borrowed from it is left.
        let _ = unsafe { rustix::mm::munmap(base, size) };
        None
    }

    pub fn head(&self) -> &Head {
        // SAFETY: a head lies at the start of the mapping, which is never unmapped.
        unsafe { &*self.base.cast::<Head>() }
    }

    pub(crate) fn records_log2(&self) -> u32 {
        self.layout.records_log2
    }

    fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        // SAFETY: callers name words that lie inside of the mapping, at a multiple of 8; it is only
        // ever used as atomic words.
        unsafe { std::slice::from_raw_parts(self.base.byte_add(offset).cast(), count) }
    }

    fn written(&self) -> &[AtomicU64] {
        self.words(self.layout.written, written::SLOTS)
    }

    pub(crate) fn slots(&self, table: u32) -> &[AtomicU64] {
        let table = table.min(index::last_table(self.layout.records_log2));
        self.words(self.layout.index + index::slots_before(table) * 8, index::slots_of(table))
    }

    /// Gives the memory of a table back that is no longer in use. Who still reads it finds zeros.
    pub(crate) fn forget(&self, table: u32) {
        let slots = self.slots(table);
        let start = slots.as_ptr().cast_mut().cast();
        // SAFETY: whole pages of our own mapping, which stay readable and hold zeros from then on.
        // They are atomics, so it is as if somebody had stored zeros.
        let _ = unsafe {
            rustix::mm::madvise(start, size_of_val(slots), rustix::mm::Advice::LinuxRemove)
        };
    }

    pub(crate) fn record_at(&self, number: u32) -> *mut Record {
        let number = (number as usize).min((1 << self.layout.records_log2) - 1);
        // SAFETY: the number is below what the mapping has room for.
        unsafe { self.base.byte_add(self.layout.records).cast::<Record>().add(number) }
    }

    /// The record of this number, which has to have been published.
    pub fn entry(&self, number: u32) -> Entry<'_> {
        // SAFETY: it lies inside of the mapping; any bytes are a valid record, and all but its
        // atomics were written before it was published.
        Entry { head: self.head(), record: unsafe { &*self.record_at(number) }, number }
    }

    fn look_up<T>(&self, key: Key, mut found: impl FnMut(Entry<'_>) -> Option<T>) -> Option<T> {
        let in_use = || self.head().index.load(SeqCst);
        index::look_up(
            in_use,
            |table| self.slots(table),
            key.hash(),
            |number| {
                let entry = self.entry(number);
                let same = match key {
                    Key::Path(path) => entry.path() == path,
                    Key::Source(file) => entry.record.source_id() == file,
                    Key::Copy(file) => entry.kind().copy_is(file),
                };
                if same && entry.is_live() { found(entry) } else { None }
            },
        )
    }

    /// The file of this name, unless its copy was dropped.
    pub fn find(&self, path: PathKey) -> Option<Entry<'_>> {
        self.look_up(Key::Path(path), |entry| Some(entry.number)).map(|number| self.entry(number))
    }

    /// The file that this one is the copy of.
    pub fn find_copy(&self, copy: FileId) -> Option<Entry<'_>> {
        self.look_up(Key::Copy(copy), |entry| Some(entry.number)).map(|number| self.entry(number))
    }

    /// Drops all copies of this source file, which may have several names; how many there were.
    pub fn drop_source(&self, file: FileId) -> usize {
        let mut dropped = 0;
        let _: Option<()> = self.look_up(Key::Source(file), |entry| {
            dropped += usize::from(entry.drop_copy());
            None
        });
        dropped
    }

    /// This source file may change from now on: it has no copies, and gets none. How many it had.
    pub fn source_is_written(&self, file: FileId) -> usize {
        // In this order: the launcher publishes first and looks here then, so one of us sees the other.
        written::add(self.written(), file);
        self.drop_source(file)
    }

    pub fn was_written(&self, file: FileId) -> bool {
        written::contains(self.written(), file)
    }

    /// Names may lead elsewhere now: each copy is compared with its source before it is used again.
    pub fn doubt_all(&self) {
        self.head().generation.fetch_add(1, SeqCst);
    }

    /// A file has changed, perhaps one that is being copied: to be told before copies are dropped.
    pub fn note_change(&self) {
        self.head().changes.fetch_add(1, SeqCst);
    }

    /// To be asked before a source is looked at, and given with its record: what changes from here on is
    /// found out by whoever made the change, or by the publisher.
    pub fn seen(&self) -> Seen {
        let head = self.head();
        Seen { generation: head.generation.load(SeqCst), changes: head.changes.load(SeqCst) }
    }

    pub fn key(&self, relative: &[u8]) -> PathKey {
        PathKey::of(relative, self.head().token)
    }
}

impl crate::Kind {
    fn copy_is(self, file: FileId) -> bool {
        matches!(self, Self::Copy { copy, .. } if copy == file)
    }
}

fn fill(head: &mut Head, config: &Config) -> Option<()> {
    head.given.set(&config.given)?;
    head.real.set(&config.real)?;
    if config.levels.len() > MOST_LEVELS {
        return None;
    }
    for (level, config) in head.levels.iter_mut().zip(&config.levels) {
        level.files.set(&config.files)?;
        level.dev = config.dev;
    }
    head.level_count = config.levels.len() as u32;
    Some(())
}

fn map(file: &OwnedFd, length: usize) -> rustix::io::Result<*mut c_void> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at a place of the kernel's choice. The file cannot shrink.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, flags, file, 0)? };
    // SAFETY: of this mapping only its place in a core dump changes.
    let _ = unsafe { rustix::mm::madvise(base, length, rustix::mm::Advice::LinuxDontDump) };
    Ok(base)
}

/// Where a process finds the board, and the pipe to the launcher: files of the launcher's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    pub launcher: u32,
    pub board: u32,
    pub pipe: u32,
    pub token: u64,
    /// The pipe's number in the kernel: another process may have the launcher's once it has gone.
    pub pipe_ino: u64,
}

impl Attach {
    pub fn new(board: &Board, file: &OwnedFd, pipe: &OwnedFd) -> Self {
        Self {
            launcher: std::process::id(),
            board: file.as_raw_fd() as u32,
            pipe: pipe.as_raw_fd() as u32,
            token: board.head().token,
            pipe_ino: rustix::fs::fstat(pipe).map_or(0, |stat| stat.st_ino),
        }
    }

    /// The value of [`crate::VARIABLE`].
    pub fn to_text(&self) -> String {
        let Self { launcher, board, pipe, token, pipe_ino } = self;
        format!("{launcher}:{board}:{pipe}:{token}:{pipe_ino}")
    }

    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut numbers = text.split(|&byte| byte == b':').map(number);
        let mut small = || u32::try_from(numbers.next()??).ok();
        let (launcher, board, pipe) = (small()?, small()?, small()?);
        let (token, pipe_ino) = (numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(Self { launcher, board, pipe, token, pipe_ino })
    }

    /// None if the launcher has gone.
    pub fn board(&self) -> Option<Board> {
        Board::map(&self.open(self.board, OFlags::RDWR)?, self.token)
    }

    /// Tells the launcher; whether it was told.
    pub fn post(&self, message: Message<'_>) -> bool {
        let mut room = [0; LONGEST];
        let Some(bytes) = message.encode(&mut room) else { return false };
        let Some(pipe) = self.open(self.pipe, OFlags::WRONLY | OFlags::NONBLOCK) else {
            return false;
        };
        if !self.is_pipe(&pipe) {
            return false;
        }
        rustix::io::write(&pipe, bytes).is_ok_and(|written| written == bytes.len())
    }

    fn is_pipe(&self, file: &OwnedFd) -> bool {
        rustix::fs::fstat(file).is_ok_and(|stat| {
            let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            kind == rustix::fs::FileType::Fifo && stat.st_ino == self.pipe_ino
        })
    }

    fn open(&self, number: u32, flags: OFlags) -> Option<OwnedFd> {
        let mut room = [0u8; 64];
        let mut rest = &mut room[..];
        write!(rest, "/proc/{}/fd/{number}\0", self.launcher).ok()?;
        let path = CStr::from_bytes_until_nul(&room).ok()?;
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
    }
}

fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &digit| {
        let digit = digit.checked_sub(b'0').filter(|&digit| digit < 10)?;
        sum.checked_mul(10)?.checked_add(digit.into())
    })
}

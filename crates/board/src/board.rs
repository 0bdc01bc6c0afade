//! The mapped memory of the board.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use rustix::mm::{MapFlags, ProtFlags};

use crate::file_stat::FileId;
use crate::header::{BoardHeader, MAGIC, Revalidate};
use crate::index::{self, IndexKey};
use crate::path::PathKey;
use crate::record::{ChangeSnapshot, FileRecord, RecordRef};
use crate::{MOST_LEVELS, written_files};

/// What a board is created with.
#[derive(Clone, Debug)]
pub struct BoardConfig {
    /// The dataset's directory as the user gave it, absolute and normalised.
    pub given: Vec<u8>,
    /// The same directory without symbolic links.
    pub real: Vec<u8>,
    /// Fastest first.
    pub levels: Vec<BoardLevelConfig>,
    /// When copies are compared with their sources.
    pub revalidate: Revalidate,
    /// The most records, as a power of two. Memory is used for published records only.
    pub records_log2: u32,
}

/// A level of copies, as a board knows it.
#[derive(Clone, Debug)]
pub struct BoardLevelConfig {
    /// The directory that contains the copies, absolute and normalised.
    pub files: Vec<u8>,
    /// The device of the directory.
    pub dev: u64,
}

/// The byte offsets of the board's parts.
#[derive(Clone, Copy, Debug)]
struct BoardLayout {
    records_log2: u32,
    written: usize,
    index: usize,
    records: usize,
    end: usize,
}

impl BoardLayout {
    fn of(records_log2: u32) -> Self {
        let page = |at: usize| at.next_multiple_of(4096);
        let written = page(size_of::<BoardHeader>());
        let index = page(written + written_files::SLOTS * 8);
        let tables = index::slots_before(index::last_table(records_log2) + 1);
        let records = page(index + tables * 8);
        let end = page(records + (size_of::<FileRecord>() << records_log2));
        Self { records_log2, written, index, records, end }
    }
}

/// The mapped board.
///
/// It is never unmapped, because lookups may happen until the process has ended.
#[derive(Debug)]
pub struct Board {
    base: *mut c_void,
    layout: BoardLayout,
}

// SAFETY: all memory behind `base` is either written once before it is published, or atomic.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Creates a board, and the file that other processes map.
    ///
    /// # Errors
    /// If the memory cannot be allocated, or a path is too long.
    pub fn create(config: &BoardConfig) -> std::io::Result<(Self, OwnedFd)> {
        let layout = BoardLayout::of(config.records_log2);
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"belady-board", flags)?;
        rustix::fs::ftruncate(&file, layout.end as u64)?;
        // Other processes rely on mapped pages to exist.
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK)?;
        let base = map(&file, layout.end)?;
        // SAFETY: the file is new, large enough, zero (a valid header) and not yet shared.
        let header = unsafe { &mut *base.cast::<BoardHeader>() };
        let mut token = [0; 8];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())?;
        header.token = u64::from_ne_bytes(token);
        header.records_log2 = config.records_log2;
        header.revalidate = config.revalidate as u32;
        header.owner = rustix::process::geteuid().as_raw();
        header.dev = rustix::fs::stat(&config.real[..]).map_or(0, |stat| stat.st_dev);
        fill(header, config).ok_or_else(|| {
            std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "the board has too many levels, or a path is too long",
            )
        })?;
        header.generation.store(1, SeqCst);
        header.magic = MAGIC;
        Ok((Self { base, layout }, file))
    }

    pub(crate) fn map(file: &OwnedFd, token: u64) -> Option<Self> {
        let size = usize::try_from(rustix::fs::fstat(file).ok()?.st_size).ok()?;
        if size < size_of::<BoardHeader>() {
            return None;
        }
        let base = map(file, size).ok()?;
        // SAFETY: the mapping is at least as large as a header, for which any bytes are valid.
        let header = unsafe { &*base.cast::<BoardHeader>() };
        let known = header.magic == MAGIC && header.token == token && header.records_log2 <= 32;
        let layout = BoardLayout::of(header.records_log2.min(32));
        if known && layout.end == size {
            return Some(Self { base, layout });
        }
        // SAFETY: the mapping was made above, and no borrow of it is left.
        let _ = unsafe { rustix::mm::munmap(base, size) };
        None
    }

    /// Returns the header.
    pub fn header(&self) -> &BoardHeader {
        // SAFETY: the mapping starts with a header and is never unmapped.
        unsafe { &*self.base.cast::<BoardHeader>() }
    }

    pub(crate) fn records_log2(&self) -> u32 {
        self.layout.records_log2
    }

    fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        // SAFETY: callers pass a range inside the mapping at a multiple of 8, which is only ever
        // used as atomic words.
        unsafe { std::slice::from_raw_parts(self.base.byte_add(offset).cast(), count) }
    }

    fn written(&self) -> &[AtomicU64] {
        self.words(self.layout.written, written_files::SLOTS)
    }

    pub(crate) fn slots(&self, table: u32) -> &[AtomicU64] {
        let table = table.min(index::last_table(self.layout.records_log2));
        self.words(self.layout.index + index::slots_before(table) * 8, index::slots_of(table))
    }

    /// Frees the memory of a table that is no longer in use. A concurrent reader finds zeros.
    pub(crate) fn free_table(&self, table: u32) {
        let slots = self.slots(table);
        let start = slots.as_ptr().cast_mut().cast();
        // SAFETY: whole pages of our own mapping, which stay readable and read as zeros afterwards.
        // They are atomics, so this equals storing zeros.
        let _ = unsafe {
            rustix::mm::madvise(start, size_of_val(slots), rustix::mm::Advice::LinuxRemove)
        };
    }

    pub(crate) fn record_at(&self, number: u32) -> *mut FileRecord {
        let number = (number as usize).min((1 << self.layout.records_log2) - 1);
        // SAFETY: the number is below the number of records in the mapping.
        unsafe { self.base.byte_add(self.layout.records).cast::<FileRecord>().add(number) }
    }

    /// Returns the record of this number, which must have been published.
    pub fn entry(&self, number: u32) -> RecordRef<'_> {
        // SAFETY: the record is inside the mapping. Any bytes are a valid record, and all but its
        // atomics were written before it was published.
        RecordRef { header: self.header(), record: unsafe { &*self.record_at(number) }, number }
    }

    fn look_up<T>(
        &self,
        key: IndexKey,
        mut found: impl FnMut(RecordRef<'_>) -> Option<T>,
    ) -> Option<T> {
        let in_use = || self.header().index.load(SeqCst);
        index::look_up(
            in_use,
            |table| self.slots(table),
            key.hash(),
            |number| {
                let entry = self.entry(number);
                let same = match key {
                    IndexKey::Path(path) => entry.path() == path,
                    IndexKey::Source(file) => entry.record.source_id() == file,
                    IndexKey::Copy(file) => entry.kind().copy_is(file),
                };
                if same && entry.is_live() { found(entry) } else { None }
            },
        )
    }

    /// Finds the live record of a path.
    pub fn find(&self, path: PathKey) -> Option<RecordRef<'_>> {
        self.look_up(IndexKey::Path(path), |entry| Some(entry.number))
            .map(|number| self.entry(number))
    }

    /// Finds the live record whose copy is this file.
    pub fn find_copy(&self, copy: FileId) -> Option<RecordRef<'_>> {
        self.look_up(IndexKey::Copy(copy), |entry| Some(entry.number))
            .map(|number| self.entry(number))
    }

    /// Drops all copies of a source file, which may have several names. Returns how many it
    /// dropped.
    pub fn drop_source(&self, file: FileId) -> usize {
        let mut dropped = 0;
        let _: Option<()> = self.look_up(IndexKey::Source(file), |entry| {
            dropped += usize::from(entry.drop_copy());
            None
        });
        dropped
    }

    /// Marks a source file as written: its copies are dropped, and it gets none in this run.
    /// Returns how many copies were dropped.
    pub fn mark_written(&self, file: FileId) -> usize {
        // In this order: the launcher publishes first and then checks the written files, so one of
        // the two sees the other (`no_copy_outlives_a_writer`).
        written_files::add(self.written(), file);
        self.drop_source(file)
    }

    /// Returns whether the job has opened this file for writing.
    pub fn was_written(&self, file: FileId) -> bool {
        written_files::contains(self.written(), file)
    }

    /// Requires that each copy is compared with its source before its next use, because names may
    /// now lead to other files.
    pub fn require_revalidation(&self) {
        self.header().generation.fetch_add(1, SeqCst);
    }

    /// Counts a change of a file that may be being copied. Call this before its copies are dropped.
    pub fn count_change(&self) {
        self.header().changes.fetch_add(1, SeqCst);
    }

    /// Returns a snapshot to take before a source is read and to publish with its record. A change
    /// after the snapshot is noticed by the process that makes it or by the publisher.
    pub fn change_snapshot(&self) -> ChangeSnapshot {
        let header = self.header();
        ChangeSnapshot {
            generation: header.generation.load(SeqCst),
            changes: header.changes.load(SeqCst),
        }
    }

    /// Returns the key of a path below the dataset.
    pub fn key(&self, relative: &[u8]) -> PathKey {
        PathKey::of(relative, self.header().token)
    }
}

impl crate::RecordKind {
    fn copy_is(self, file: FileId) -> bool {
        matches!(self, Self::Copy { copy, .. } if copy == file)
    }
}

fn fill(header: &mut BoardHeader, config: &BoardConfig) -> Option<()> {
    header.given.set(&config.given)?;
    header.real.set(&config.real)?;
    if config.levels.len() > MOST_LEVELS {
        return None;
    }
    for (level, config) in header.levels.iter_mut().zip(&config.levels) {
        level.files.set(&config.files)?;
        level.dev = config.dev;
    }
    header.level_count = config.levels.len() as u32;
    Some(())
}

fn map(file: &OwnedFd, length: usize) -> rustix::io::Result<*mut c_void> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses. The file cannot shrink.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, flags, file, 0)? };
    // SAFETY: this only excludes the mapping from core dumps.
    let _ = unsafe { rustix::mm::madvise(base, length, rustix::mm::Advice::LinuxDontDump) };
    Ok(base)
}

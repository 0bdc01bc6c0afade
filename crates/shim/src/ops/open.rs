//! Opening a file for reading.

use std::ffi::{CStr, c_int};
use std::sync::atomic::Ordering::SeqCst;

use belady_board::message::ShimMessage;
use belady_board::path::{PathBuffer, PathLocation};
use belady_board::{FileId, FileStat, OpenCounter, RecordKind, RecordRef, Revalidate};
use rustix::fd::IntoRawFd as _;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::locate::locate;
use super::{NamedFile, borrow};
use crate::attached_job::AttachedJob;

const NOT_JUST_READING: OFlags = OFlags::WRONLY
    .union(OFlags::RDWR)
    .union(OFlags::CREATE)
    .union(OFlags::TRUNC)
    .union(OFlags::DIRECTORY)
    .union(OFlags::PATH);
const WRITING: OFlags = OFlags::WRONLY.union(OFlags::RDWR).union(OFlags::TRUNC);

/// What a program opens a file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Reading,
    Writing,
    Other,
}

impl Purpose {
    #[inline]
    pub fn of(flags: OFlags) -> Self {
        if !flags.intersects(NOT_JUST_READING) {
            Self::Reading
        } else if flags.intersects(WRITING) && !flags.contains(OFlags::PATH) {
            Self::Writing
        } else {
            Self::Other
        }
    }
}

/// Which file is opened for a path below the dataset.
pub enum OpenTarget<'b> {
    /// Its copy.
    Copy { path: &'b CStr, level: usize, entry: RecordRef<'b> },
    /// The source. If the size is known, no copy will be made; otherwise one is requested.
    Source { known: Option<u64> },
}

/// Returns the descriptor of the copy, or what the real call returns.
#[inline(never)]
pub fn open(
    job: &AttachedJob,
    file: NamedFile<'_>,
    flags: OFlags,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let mut buffer = PathBuffer::default();
    let PathLocation::Below(name) = locate(job, file, &mut buffer) else { return real() };
    let known = match open_copy(job, file, name, flags) {
        Ok(descriptor) => return descriptor,
        Err(known) => known,
    };
    let descriptor = real();
    if descriptor >= 0 {
        opened_at_source(job, name, descriptor, known);
    }
    descriptor
}

/// Opens the copy. The error is the content of [`OpenTarget::Source`].
#[inline(never)]
fn open_copy(
    job: &AttachedJob,
    file: NamedFile<'_>,
    name: &[u8],
    flags: OFlags,
) -> Result<c_int, Option<u64>> {
    let mut buffer = PathBuffer::default();
    match target(job, file, name, flags, &mut buffer) {
        OpenTarget::Source { known } => Err(known),
        OpenTarget::Copy { path, level, entry } => {
            match rustix::fs::open(path, flags, Mode::empty()) {
                Ok(copy) => {
                    opened_copy(job, level, &entry);
                    Ok(copy.into_raw_fd())
                }
                Err(error) => {
                    not_opened(job, &entry, error);
                    Err(None)
                }
            }
        }
    }
}

/// Decides between the copy and the source.
pub fn target<'b>(
    job: &'b AttachedJob,
    file: NamedFile<'_>,
    name: &[u8],
    flags: OFlags,
    buffer: &'b mut PathBuffer,
) -> OpenTarget<'b> {
    let Some(entry) = job.board.find(job.board.key(name)) else {
        return OpenTarget::Source { known: None };
    };
    entry.count_open();
    let size = entry.stat().size;
    let RecordKind::Copy { level, .. } = entry.kind() else {
        return OpenTarget::Source { known: Some(size) };
    };
    if !allows(&entry, flags) {
        return OpenTarget::Source { known: Some(size) };
    }
    if !is_current(job, &entry, file) {
        return OpenTarget::Source { known: None };
    }
    let directory = job.board.header().levels().get(level).map(|level| level.files.get());
    match directory.and_then(|directory| buffer.join(directory, name)) {
        Some(path) => OpenTarget::Copy { path, level, entry },
        None => OpenTarget::Source { known: Some(size) },
    }
}

/// Returns whether opening the copy with these flags behaves like opening the source.
fn allows(entry: &RecordRef<'_>, flags: OFlags) -> bool {
    if flags.contains(OFlags::NOFOLLOW) && entry.is_link() {
        return false;
    }
    // Only a file's owner may use O_NOATIME, and copies belong to the user of the launcher.
    !flags.contains(OFlags::NOATIME) || entry.stat().uid == rustix::process::geteuid().as_raw()
}

/// Returns whether the copy is current; compares it with its source if needed.
fn is_current(job: &AttachedJob, entry: &RecordRef<'_>, file: NamedFile<'_>) -> bool {
    if entry.is_validated() && job.board.header().revalidate() != Revalidate::Open {
        return true;
    }
    compare(job, entry, file).is_some_and(|stat| stat.is_unchanged_since(entry.stat()))
}

/// Compares a copy with its source, and validates or drops it. Returns the source's stat.
#[inline(never)]
pub fn compare(job: &AttachedJob, entry: &RecordRef<'_>, file: NamedFile<'_>) -> Option<FileStat> {
    let head = job.board.header();
    // Before the call: a rename during the call starts a new generation.
    let generation = head.generation.load(SeqCst);
    head.count(None, OpenCounter::Stats, 1);
    let stat = FileStat::of(borrow(file.at)?, file.path, AtFlags::empty());
    if let Ok(stat) = stat
        && stat.is_unchanged_since(entry.stat())
    {
        entry.mark_validated(generation);
    } else if entry.drop_copy() {
        job.send(ShimMessage::Dropped);
    }
    stat.ok()
}

/// Counts an opened copy.
pub fn opened_copy(job: &AttachedJob, level: usize, entry: &RecordRef<'_>) {
    job.board.header().count(Some(level), OpenCounter::Opens, 1);
    job.board.header().count(Some(level), OpenCounter::Bytes, entry.stat().size);
}

/// Drops a copy that could not be opened because another launcher removed it.
#[inline(never)]
pub fn not_opened(job: &AttachedJob, entry: &RecordRef<'_>, error: Errno) {
    if error == Errno::NOENT && entry.drop_copy() {
        job.send(ShimMessage::Dropped);
    }
}

/// Counts a file opened at the source, and requests a copy of it. Only regular files have copies.
/// If the size is known, no `fstat` is needed, which on a network file system may be a round trip.
#[inline(never)]
pub fn opened_at_source(job: &AttachedJob, name: &[u8], descriptor: c_int, known: Option<u64>) {
    let count = |size: u64| {
        job.board.header().count(None, OpenCounter::Opens, 1);
        job.board.header().count(None, OpenCounter::Bytes, size);
    };
    if let Some(size) = known {
        return count(size);
    }
    let Some(Ok(stat)) = borrow(descriptor).map(rustix::fs::fstat) else { return };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return;
    }
    count(stat.st_size.cast_unsigned());
    if !job.board.was_written(FileId { dev: stat.st_dev, ino: stat.st_ino }) {
        job.send(ShimMessage::Want(name));
    }
}

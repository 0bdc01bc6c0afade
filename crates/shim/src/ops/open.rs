//! Opening a file for reading.

use std::ffi::{CStr, c_int};
use std::sync::atomic::Ordering::SeqCst;

use belady_board::message::Message;
use belady_board::path::{Buffer, Place};
use belady_board::{Counted, Entry, Facts, FileId, Kind, Revalidate};
use rustix::fd::IntoRawFd as _;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::place::place;
use super::{Named, borrow};
use crate::job::Job;

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

/// How a file below the dataset is opened.
pub enum Way<'b> {
    /// This is the path of its copy, and this the level.
    Copy { path: &'b CStr, level: usize, entry: Entry<'b> },
    /// At the source. Where its size is known, there will be no copy; otherwise the launcher is asked
    /// for one.
    Source { known: Option<u64> },
}

/// The descriptor of the copy, or what the real call gives.
#[inline(never)]
pub fn open(job: &Job, file: Named<'_>, flags: OFlags, real: impl FnOnce() -> c_int) -> c_int {
    let mut room = Buffer::default();
    let Place::Below(name) = place(job, file, &mut room) else { return real() };
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

/// The error is what [`Way::Source`] tells.
#[inline(never)]
fn open_copy(job: &Job, file: Named<'_>, name: &[u8], flags: OFlags) -> Result<c_int, Option<u64>> {
    let mut room = Buffer::default();
    match way(job, file, name, flags, &mut room) {
        Way::Source { known } => Err(known),
        Way::Copy { path, level, entry } => match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(copy) => {
                opened_copy(job, level, &entry);
                Ok(copy.into_raw_fd())
            }
            Err(error) => {
                not_opened(job, &entry, error);
                Err(None)
            }
        },
    }
}

pub fn way<'b>(
    job: &'b Job,
    file: Named<'_>,
    name: &[u8],
    flags: OFlags,
    room: &'b mut Buffer,
) -> Way<'b> {
    let Some(entry) = job.board.find(job.board.key(name)) else {
        return Way::Source { known: None };
    };
    entry.note_open();
    let size = entry.facts().size;
    let Kind::Copy { level, .. } = entry.kind() else { return Way::Source { known: Some(size) } };
    if !suits(&entry, flags) {
        return Way::Source { known: Some(size) };
    }
    if !is_good(job, &entry, file) {
        return Way::Source { known: None };
    }
    let directory = job.board.head().levels().get(level).map(|level| level.files.get());
    match directory.and_then(|directory| room.joined(directory, name)) {
        Some(path) => Way::Copy { path, level, entry },
        None => Way::Source { known: Some(size) },
    }
}

/// Whether opening the copy with these flags is like opening the source.
fn suits(entry: &Entry<'_>, flags: OFlags) -> bool {
    if flags.contains(OFlags::NOFOLLOW) && entry.is_link() {
        return false;
    }
    // Only the owner may ask for that, and copies are always our own.
    !flags.contains(OFlags::NOATIME) || entry.facts().uid == rustix::process::geteuid().as_raw()
}

/// Whether the copy is like its source, which is asked if need be.
fn is_good(job: &Job, entry: &Entry<'_>, file: Named<'_>) -> bool {
    if entry.is_proved() && job.board.head().revalidate() != Revalidate::Open {
        return true;
    }
    compare(job, entry, file).is_some_and(|facts| facts.is_still(entry.facts()))
}

/// What the source says now. The copy is proved by it, or dropped.
#[inline(never)]
pub fn compare(job: &Job, entry: &Entry<'_>, file: Named<'_>) -> Option<Facts> {
    let head = job.board.head();
    // Before asking: what is renamed meanwhile is asked again.
    let generation = head.generation.load(SeqCst);
    head.count(None, Counted::Stats, 1);
    let facts = Facts::of(borrow(file.at)?, file.path, AtFlags::empty());
    if let Ok(facts) = facts
        && facts.is_still(entry.facts())
    {
        entry.prove(generation);
    } else if entry.drop_copy() {
        job.post(Message::Dropped);
    }
    facts.ok()
}

pub fn opened_copy(job: &Job, level: usize, entry: &Entry<'_>) {
    job.board.head().count(Some(level), Counted::Opens, 1);
    job.board.head().count(Some(level), Counted::Bytes, entry.facts().size);
}

/// A copy that another launcher has removed, since its source changed, is not answered for any more. Then
/// a new one is welcome.
#[inline(never)]
pub fn not_opened(job: &Job, entry: &Entry<'_>, error: Errno) {
    if error == Errno::NOENT && entry.drop_copy() {
        job.post(Message::Dropped);
    }
}

/// Only files have copies: directories, pipes and devices are not asked for. A file whose size is known is
/// not asked about, since that may be a request to a server far away.
#[inline(never)]
pub fn opened_at_source(job: &Job, name: &[u8], descriptor: c_int, known: Option<u64>) {
    let count = |size: u64| {
        job.board.head().count(None, Counted::Opens, 1);
        job.board.head().count(None, Counted::Bytes, size);
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
        job.post(Message::Want(name));
    }
}

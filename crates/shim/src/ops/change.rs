//! Changes of files: they are made to the source, and the copies are dropped.

use std::ffi::{CStr, c_int};

use belady_board::message::Message;
use belady_board::path::{Buffer, Place};
use belady_board::{FileId, PathKey};
use rustix::fs::{AtFlags, FileType, Stat};

use super::copy::may_be_copy;
use super::place::{ROOM, name_of, place_exactly};
use super::{Named, borrow};
use crate::job::Job;

fn id(stat: &Stat) -> FileId {
    FileId { dev: stat.st_dev, ino: stat.st_ino }
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn tell(job: &Job, dropped: usize) {
    if dropped > 0 {
        job.post(Message::Dropped);
    }
}

/// This descriptor can be written to: the file has no copies from now on, whatever name led to it.
/// The answer tells that the file is itself a copy, which nobody is to write to.
#[inline(never)]
pub fn opened_for_writing(job: &Job, file: Option<Named<'_>>, descriptor: c_int) -> bool {
    let Some(Ok(stat)) = borrow(descriptor).map(rustix::fs::fstat) else { return false };
    if !is_regular(&stat) {
        return false;
    }
    if may_be_copy(job, stat.st_mode, stat.st_dev)
        && let Some(entry) = job.board.find_copy(id(&stat))
    {
        tell(job, usize::from(entry.drop_copy()));
        return true;
    }
    let mut dropped = job.board.drop_source(id(&stat));
    // Files elsewhere are not remembered: there may be many, and the board has little room.
    if dropped > 0 || (may_be_below(job, file, stat.st_dev) && is_below(job, descriptor)) {
        dropped += job.board.source_is_written(id(&stat));
    }
    tell(job, dropped);
    false
}

/// Most files that are written to are on another device than the dataset, or it has only this one and
/// the name is another. Asking the kernel takes longer than opening a file.
fn may_be_below(job: &Job, file: Option<Named<'_>>, dev: u64) -> bool {
    let of_dataset = job.board.head().dev;
    if of_dataset == dev || of_dataset == 0 {
        return true;
    }
    // Other file systems may be mounted below the dataset.
    let mut room = Buffer::default();
    file.is_some_and(|file| !matches!(place_exactly(job, file, &mut room), Place::Elsewhere))
}

fn is_below(job: &Job, descriptor: c_int) -> bool {
    let mut room = ROOM;
    let Some(name) = name_of(descriptor, &mut room) else { return false };
    let root = job.board.head().dataset().real;
    root == b"/" || name.strip_prefix(root).is_some_and(|rest| rest.starts_with(b"/"))
}

/// A file that is about to change: what it was before.
#[derive(Clone, Copy)]
pub struct Touched {
    name: Option<PathKey>,
    stat: Option<Stat>,
    /// Names may lead elsewhere when something else than a plain file changes here.
    near: bool,
}

/// What has this name now. Also if it leads elsewhere as far as its text tells: links may lead to the
/// dataset from anywhere.
#[inline(never)]
pub fn before(job: &Job, file: Named<'_>, follow: bool) -> Touched {
    let mut room = Buffer::default();
    let (name, near) = match place_exactly(job, file, &mut room) {
        Place::Below(name) => (Some(job.board.key(name)), true),
        Place::Odd => (None, true),
        Place::Elsewhere => (None, is_above(job, room.as_bytes(), file.path)),
    };
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = borrow(file.at).and_then(|at| rustix::fs::statat(at, file.path, flags).ok());
    if stat.is_none()
        && let Some(entry) = name.and_then(|name| job.board.find(name))
    {
        // Somebody else has removed it.
        tell(job, usize::from(entry.drop_copy()));
    }
    Touched { name, stat, near }
}

/// Whether the dataset is below this. An absolute path may not have been made clean.
fn is_above(job: &Job, clean: &[u8], path: &CStr) -> bool {
    let path = if clean.is_empty() { path.to_bytes() } else { clean };
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let dataset = job.board.head().dataset();
    let above = |root: &[u8]| {
        root.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    above(dataset.given) || above(dataset.real)
}

/// It has changed, or is no longer there.
#[inline(never)]
pub fn after(job: &Job, file: Touched) {
    if file.near || file.stat.as_ref().is_some_and(|stat| may_be_copied(job, stat)) {
        job.board.note_change();
    }
    let mut dropped = 0;
    if let Some(entry) = file.name.and_then(|name| job.board.find(name)) {
        dropped += usize::from(entry.drop_copy());
    }
    match &file.stat {
        Some(stat) if is_regular(stat) => dropped += job.board.drop_source(id(stat)),
        Some(_) if file.near => job.board.doubt_all(),
        _ => {}
    }
    tell(job, dropped);
}

/// Whether the launcher may be copying this file just now. Those that are on other devices and below the
/// dataset are seldom changed by another name.
fn may_be_copied(job: &Job, stat: &Stat) -> bool {
    let of_dataset = job.board.head().dev;
    is_regular(stat) && (of_dataset == stat.st_dev || of_dataset == 0)
}

/// The file behind a descriptor has changed.
#[inline(never)]
pub fn descriptor_changed(job: &Job, descriptor: c_int) {
    if let Some(Ok(stat)) = borrow(descriptor).map(rustix::fs::fstat) {
        if may_be_copied(job, &stat) {
            job.board.note_change();
        }
        tell(job, job.board.drop_source(id(&stat)));
    }
}

/// The source of the copy behind a descriptor has changed.
#[inline(never)]
pub fn copy_changed(job: &Job, descriptor: c_int) {
    if let Some(Ok(stat)) = borrow(descriptor).map(rustix::fs::fstat)
        && let Some(entry) = job.board.find_copy(id(&stat))
    {
        job.board.note_change();
        tell(job, job.board.drop_source(FileId { dev: entry.facts().dev, ino: entry.facts().ino }));
    }
}

//! Changes of files: the shim applies them to the source and drops the copies.

use std::ffi::{CStr, c_int};

use belady_board::message::ShimMessage;
use belady_board::path::{PathBuffer, PathLocation};
use belady_board::{FileId, PathKey};
use rustix::fs::{AtFlags, FileType, Stat};

use super::copy_descriptor::may_be_copy;
use super::kernel_path::{EMPTY, KernelPath, path_of};
use super::locate::locate_exactly;
use super::{NamedFile, borrow};
use crate::attached_job::AttachedJob;

fn id(stat: &Stat) -> FileId {
    FileId { dev: stat.st_dev, ino: stat.st_ino }
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

fn report_dropped(job: &AttachedJob, dropped: usize) {
    if dropped > 0 {
        job.send(ShimMessage::Dropped);
    }
}

/// Handles a descriptor opened for writing: the file has no copies from now on, under any name.
/// Returns true if the file is itself a copy, which must not be written.
#[inline(never)]
pub fn opened_for_writing(
    job: &AttachedJob,
    file: Option<NamedFile<'_>>,
    descriptor: c_int,
) -> bool {
    let Some(Ok(stat)) = borrow(descriptor).map(rustix::fs::fstat) else { return false };
    if !is_regular(&stat) {
        return false;
    }
    if may_be_copy(job, stat.st_mode, stat.st_dev)
        && let Some(entry) = job.board.find_copy(id(&stat))
    {
        report_dropped(job, usize::from(entry.drop_copy()));
        return true;
    }
    let mut dropped = job.board.drop_source(id(&stat));
    let mut buffer = EMPTY;
    let name = if may_be_below(job, file, stat.st_dev) {
        name_below(job, descriptor, &mut buffer)
    } else {
        None
    };
    // Files elsewhere are not added: there may be many, and the table of written files is small.
    if dropped > 0 || name.is_some() {
        dropped += job.board.mark_written(id(&stat));
    }
    if name.and_then(|name| job.board.find(job.board.key(name))).is_some_and(|it| it.drop_copy()) {
        // The record is of another file, which a process outside the job has replaced, maybe with others.
        dropped += 1;
        job.board.require_revalidation();
    }
    report_dropped(job, dropped);
    false
}

/// Returns false for most files outside the dataset by their device and name alone. Asking the
/// kernel for the path takes longer than opening a file.
fn may_be_below(job: &AttachedJob, file: Option<NamedFile<'_>>, dev: u64) -> bool {
    let of_dataset = job.board.header().dev;
    if of_dataset == dev || of_dataset == 0 {
        return true;
    }
    // Another file system may be mounted below the dataset.
    let mut buffer = PathBuffer::default();
    file.is_some_and(|file| {
        !matches!(locate_exactly(job, file, &mut buffer), PathLocation::Elsewhere)
    })
}

/// Returns the name of an open file in the dataset, if it is there.
fn name_below<'b>(
    job: &AttachedJob,
    descriptor: c_int,
    buffer: &'b mut KernelPath,
) -> Option<&'b [u8]> {
    let path = path_of(descriptor, buffer)?;
    let root = job.board.header().dataset().real;
    path.strip_prefix(root.strip_suffix(b"/").unwrap_or(root))?.strip_prefix(b"/")
}

/// The state of a file before a change.
#[derive(Clone, Copy)]
pub struct Touched {
    name: Option<PathKey>,
    stat: Option<Stat>,
    /// Whether the file is below or above the dataset, so that names may lead elsewhere after a
    /// change of a directory or a link.
    is_related: bool,
}

/// Records the state of a file that is about to change, also if its path leads elsewhere: a link
/// may lead to the dataset from anywhere.
#[inline(never)]
pub fn before(job: &AttachedJob, file: NamedFile<'_>, follow: bool) -> Touched {
    let mut buffer = PathBuffer::default();
    let (name, is_related) = match locate_exactly(job, file, &mut buffer) {
        PathLocation::Below(name) => (Some(job.board.key(name)), true),
        PathLocation::Ambiguous => (None, true),
        PathLocation::Elsewhere => (None, is_above(job, buffer.as_bytes(), file.path)),
    };
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = borrow(file.at).and_then(|at| rustix::fs::statat(at, file.path, flags).ok());
    if stat.is_none()
        && let Some(entry) = name.and_then(|name| job.board.find(name))
    {
        // Another process has removed it.
        report_dropped(job, usize::from(entry.drop_copy()));
    }
    Touched { name, stat, is_related }
}

/// Returns whether the dataset is at or below this path. An absolute path may not be normalised.
fn is_above(job: &AttachedJob, normalised: &[u8], path: &CStr) -> bool {
    let path = if normalised.is_empty() { path.to_bytes() } else { normalised };
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let dataset = job.board.header().dataset();
    let above = |root: &[u8]| {
        root.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    };
    above(dataset.given) || above(dataset.real)
}

/// Drops the copies of a file that has changed or was removed.
#[inline(never)]
pub fn after(job: &AttachedJob, file: Touched) {
    if file.is_related || file.stat.as_ref().is_some_and(|stat| may_be_copied(job, stat)) {
        job.board.count_change();
    }
    let mut dropped = 0;
    if let Some(entry) = file.name.and_then(|name| job.board.find(name)) {
        dropped += usize::from(entry.drop_copy());
    }
    match &file.stat {
        Some(stat) if is_regular(stat) => dropped += job.board.drop_source(id(stat)),
        Some(_) if file.is_related => job.board.require_revalidation(),
        _ => {}
    }
    report_dropped(job, dropped);
}

/// Returns whether the launcher may be copying this file now. Files on other devices are seldom
/// changed through a name outside the dataset.
fn may_be_copied(job: &AttachedJob, stat: &Stat) -> bool {
    let of_dataset = job.board.header().dev;
    is_regular(stat) && (of_dataset == stat.st_dev || of_dataset == 0)
}

/// Drops the copies of a file that was changed through a descriptor.
#[inline(never)]
pub fn descriptor_changed(job: &AttachedJob, descriptor: c_int) {
    if let Some(Ok(stat)) = borrow(descriptor).map(rustix::fs::fstat) {
        if may_be_copied(job, &stat) {
            job.board.count_change();
        }
        report_dropped(job, job.board.drop_source(id(&stat)));
    }
}

/// Drops the copies of the source of the copy that a descriptor refers to.
#[inline(never)]
pub fn copy_changed(job: &AttachedJob, descriptor: c_int) {
    if let Some(Ok(stat)) = borrow(descriptor).map(rustix::fs::fstat)
        && let Some(entry) = job.board.find_copy(id(&stat))
    {
        job.board.count_change();
        report_dropped(job, job.board.drop_source(entry.stat().id()));
    }
}

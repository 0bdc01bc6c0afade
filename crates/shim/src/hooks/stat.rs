//! `stat` and its variants.

use std::ffi::{c_char, c_int};

use belady_board::file_stat::FileTime;
use belady_board::{FileId, FileStat};
use libc::{AT_FDCWD, stat as Stat, statx as Statx, statx_timestamp};

use super::caller_path::{candidate, is_plausible};
use super::hook;
use crate::attached_job::{AttachedJob, job};
use crate::ops::{NamedFile, copy_descriptor, stat as answers};
use crate::real::real;

hook! {
    fn stat(path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, 0, out, || real!(stat(path, out)))
    }
    fn stat64(path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, 0, out, || real!(stat64(path, out)))
    }
    fn lstat(path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, NOFOLLOW, out, || real!(lstat(path, out)))
    }
    fn lstat64(path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, NOFOLLOW, out, || real!(lstat64(path, out)))
    }
    fn fstatat(at: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int {
        stat_at(at, path, flags, out, || real!(fstatat(at, path, out, flags)))
    }
    fn fstatat64(at: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int {
        stat_at(at, path, flags, out, || real!(fstatat64(at, path, out, flags)))
    }
    fn __xstat(version: c_int, path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, checked(version, 0), out, || real!(__xstat(version, path, out)))
    }
    fn __xstat64(version: c_int, path: *const c_char, out: *mut Stat) -> c_int {
        stat_at(AT_FDCWD, path, checked(version, 0), out, || real!(__xstat64(version, path, out)))
    }
    fn __lxstat(version: c_int, path: *const c_char, out: *mut Stat) -> c_int {
        let flags = checked(version, NOFOLLOW);
        stat_at(AT_FDCWD, path, flags, out, || real!(__lxstat(version, path, out)))
    }
    fn __lxstat64(version: c_int, path: *const c_char, out: *mut Stat) -> c_int {
        let flags = checked(version, NOFOLLOW);
        stat_at(AT_FDCWD, path, flags, out, || real!(__lxstat64(version, path, out)))
    }
    fn __fxstatat(version: c_int, at: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int {
        let ours = checked(version, flags);
        stat_at(at, path, ours, out, || real!(__fxstatat(version, at, path, out, flags)))
    }
    fn __fxstatat64(version: c_int, at: c_int, path: *const c_char, out: *mut Stat, flags: c_int) -> c_int {
        let ours = checked(version, flags);
        stat_at(at, path, ours, out, || real!(__fxstatat64(version, at, path, out, flags)))
    }
    fn fstat(descriptor: c_int, out: *mut Stat) -> c_int {
        correct(real!(fstat(descriptor, out)), descriptor, out)
    }
    fn fstat64(descriptor: c_int, out: *mut Stat) -> c_int {
        correct(real!(fstat64(descriptor, out)), descriptor, out)
    }
    fn __fxstat(version: c_int, descriptor: c_int, out: *mut Stat) -> c_int {
        correct(real!(__fxstat(version, descriptor, out)), descriptor, out)
    }
    fn __fxstat64(version: c_int, descriptor: c_int, out: *mut Stat) -> c_int {
        correct(real!(__fxstat64(version, descriptor, out)), descriptor, out)
    }
    fn statx(at: c_int, path: *const c_char, flags: c_int, mask: u32, out: *mut Statx) -> c_int {
        if let Some(stat) = named(at, path, flags, out, mask & !KNOWN == 0) {
            *out = extended(&stat, mask);
            return 0;
        }
        let result = real!(statx(at, path, flags, mask, out));
        if result == 0 && flags & libc::AT_EMPTY_PATH != 0 {
            correct_extended(at, mask, out);
        }
        result
    }
}

const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
/// Flags that do not change the answer for a file with a copy.
const HARMLESS: c_int =
    NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
/// A flag that does not exist: leaves the call to the real function.
const UNKNOWN: c_int = 1 << 30;
/// The fields that the board knows.
const KNOWN: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

/// Accepts the versions of the structure that equal the current one.
fn checked(version: c_int, flags: c_int) -> c_int {
    if matches!(version, 0 | 1) { flags } else { UNKNOWN }
}

/// Returns the stat of a path from the board, if it has all requested fields.
unsafe fn named<T>(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    out: *mut T,
    is_known: bool,
) -> Option<FileStat> {
    let job = job()?;
    if flags & !HARMLESS != 0 || !is_known || !is_plausible(out) {
        return None;
    }
    // SAFETY: the caller's path.
    let path = unsafe { candidate(job, path) }?;
    answers::stat_of(job, NamedFile { at, path }, flags & NOFOLLOW == 0)
}

unsafe fn stat_at(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    out: *mut Stat,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's path.
    if let Some(stat) = unsafe { named(at, path, flags, out, true) } {
        // SAFETY: the caller provides the structure.
        unsafe { plain(&stat, &mut *out) };
        return 0;
    }
    let result = real();
    if flags & libc::AT_EMPTY_PATH != 0 {
        // SAFETY: as above.
        return unsafe { correct(result, at, out) };
    }
    // SAFETY: as above.
    unsafe { correct_named(result, out) }
}

/// Replaces the stat of a copy by that of its source: the path leads to a copy's descriptor, such as
/// `/proc/self/fd/5` and `/dev/stdin`.
#[inline]
unsafe fn correct_named(result: c_int, out: *mut Stat) -> c_int {
    if result == 0
        && let Some(job) = job()
    {
        // SAFETY: the real function has filled it.
        let out = unsafe { &mut *out };
        if copy_descriptor::may_be_copy(job, out.st_mode, out.st_dev)
            && let Some(entry) = job.board.find_copy(FileId { dev: out.st_dev, ino: out.st_ino })
        {
            plain(entry.stat(), out);
        }
    }
    result
}

/// Replaces the stat of a copy's descriptor by that of its source.
#[inline]
unsafe fn correct(result: c_int, descriptor: c_int, out: *mut Stat) -> c_int {
    if result == 0
        && let Some(job) = job()
    {
        // SAFETY: the real function has filled it.
        let out = unsafe { &mut *out };
        if copy_descriptor::may_be_copy(job, out.st_mode, out.st_dev) {
            correct_copy(job, descriptor, out);
        }
    }
    result
}

#[cold]
fn correct_copy(job: &AttachedJob, descriptor: c_int, out: &mut Stat) {
    let copy = FileId { dev: out.st_dev, ino: out.st_ino };
    if let Some(stat) =
        copy_descriptor::source_stat(job, descriptor, copy, out.st_size.cast_unsigned())
    {
        plain(&stat, out);
    }
}

unsafe fn correct_extended(descriptor: c_int, mask: u32, out: *mut Statx) {
    let Some(job) = job() else { return };
    // SAFETY: the real function has filled it.
    let out = unsafe { &mut *out };
    let dev = libc::makedev(out.stx_dev_major, out.stx_dev_minor);
    if copy_descriptor::may_be_copy(job, out.stx_mode.into(), dev)
        && let Some(stat) = copy_descriptor::source_stat(
            job,
            descriptor,
            FileId { dev, ino: out.stx_ino },
            out.stx_size,
        )
    {
        *out = extended(&stat, mask);
    }
}

fn plain(stat: &FileStat, out: &mut Stat) {
    out.st_dev = stat.dev;
    out.st_ino = stat.ino;
    // The width differs between architectures.
    out.st_nlink = stat.links as _;
    out.st_mode = stat.mode;
    out.st_uid = stat.uid;
    out.st_gid = stat.gid;
    out.st_rdev = 0;
    out.st_size = stat.size.cast_signed();
    out.st_blksize = stat.block_size as _;
    out.st_blocks = stat.blocks.cast_signed();
    (out.st_atime, out.st_atime_nsec) = (stat.accessed.seconds, stat.accessed.nanos.cast_signed());
    (out.st_mtime, out.st_mtime_nsec) = (stat.modified.seconds, stat.modified.nanos.cast_signed());
    (out.st_ctime, out.st_ctime_nsec) = (stat.changed.seconds, stat.changed.nanos.cast_signed());
}

fn extended(stat: &FileStat, mask: u32) -> Statx {
    // SAFETY: a structure of numbers, for which zero is valid.
    let mut out: Statx = unsafe { std::mem::zeroed() };
    // File systems return the creation time only on request.
    let returned = libc::STATX_BASIC_STATS | (mask & libc::STATX_BTIME);
    out.stx_mask = stat.mask & returned;
    out.stx_blksize = stat.block_size;
    out.stx_attributes = stat.attributes;
    out.stx_attributes_mask = stat.attributes_mask;
    out.stx_nlink = stat.links;
    out.stx_uid = stat.uid;
    out.stx_gid = stat.gid;
    out.stx_mode = stat.mode as u16;
    out.stx_ino = stat.ino;
    out.stx_size = stat.size;
    out.stx_blocks = stat.blocks;
    out.stx_atime = time(stat.accessed);
    out.stx_mtime = time(stat.modified);
    out.stx_ctime = time(stat.changed);
    if out.stx_mask & libc::STATX_BTIME != 0 {
        out.stx_btime = time(stat.born);
    }
    out.stx_dev_major = libc::major(stat.dev);
    out.stx_dev_minor = libc::minor(stat.dev);
    out
}

fn time(time: FileTime) -> statx_timestamp {
    // SAFETY: a structure of numbers, for which zero is valid.
    let mut stamp: statx_timestamp = unsafe { std::mem::zeroed() };
    stamp.tv_sec = time.seconds;
    stamp.tv_nsec = time.nanos as u32;
    stamp
}

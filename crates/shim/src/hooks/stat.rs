//! stat and its many names.

use std::ffi::{c_char, c_int};

use belady_board::facts::Time;
use belady_board::{Facts, FileId};
use libc::{AT_FDCWD, stat as Stat, statx as Statx, statx_timestamp};

use super::hook;
use super::text::{is_plausible, near};
use crate::job::{Job, job};
use crate::ops::{Named, copy, stat as answers};
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
        if let Some(facts) = named(at, path, flags, out, mask & !KNOWN == 0) {
            *out = extended(&facts, mask);
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
/// Flags that change nothing about a file that has a copy.
const HARMLESS: c_int =
    NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
/// A flag that nobody has: leave it to the real function.
const UNKNOWN: c_int = 1 << 30;
/// What is kept of a file.
const KNOWN: u32 = libc::STATX_BASIC_STATS | libc::STATX_BTIME;

/// Versions of the structure: these are the same as today's.
fn checked(version: c_int, flags: c_int) -> c_int {
    if matches!(version, 0 | 1) { flags } else { UNKNOWN }
}

/// What is known of the file of this name, if all that is asked for is.
unsafe fn named<T>(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    out: *mut T,
    is_known: bool,
) -> Option<Facts> {
    let job = job()?;
    if flags & !HARMLESS != 0 || !is_known || !is_plausible(out) {
        return None;
    }
    // SAFETY: the caller's path.
    let path = unsafe { near(job, path) }?;
    answers::facts(job, Named { at, path }, flags & NOFOLLOW == 0)
}

unsafe fn stat_at(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    out: *mut Stat,
    real: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's path.
    if let Some(facts) = unsafe { named(at, path, flags, out, true) } {
        // SAFETY: the caller has room for it there.
        unsafe { plain(&facts, &mut *out) };
        return 0;
    }
    let result = real();
    if flags & libc::AT_EMPTY_PATH != 0 {
        // SAFETY: as above.
        return unsafe { correct(result, at, out) };
    }
    result
}

/// A copy's descriptor is spoken of as if it were the source's.
#[inline]
unsafe fn correct(result: c_int, descriptor: c_int, out: *mut Stat) -> c_int {
    if result == 0
        && let Some(job) = job()
    {
        // SAFETY: the real function has filled it.
        let out = unsafe { &mut *out };
        if copy::may_be_copy(job, out.st_mode, out.st_dev) {
            correct_copy(job, descriptor, out);
        }
    }
    result
}

#[cold]
fn correct_copy(job: &Job, descriptor: c_int, out: &mut Stat) {
    let copy = FileId { dev: out.st_dev, ino: out.st_ino };
    if let Some(facts) = copy::facts_of_source(job, descriptor, copy, out.st_size.cast_unsigned()) {
        plain(&facts, out);
    }
}

unsafe fn correct_extended(descriptor: c_int, mask: u32, out: *mut Statx) {
    let Some(job) = job() else { return };
    // SAFETY: the real function has filled it.
    let out = unsafe { &mut *out };
    let dev = libc::makedev(out.stx_dev_major, out.stx_dev_minor);
    if copy::may_be_copy(job, out.stx_mode.into(), dev)
        && let Some(facts) =
            copy::facts_of_source(job, descriptor, FileId { dev, ino: out.stx_ino }, out.stx_size)
    {
        *out = extended(&facts, mask);
    }
}

fn plain(facts: &Facts, out: &mut Stat) {
    out.st_dev = facts.dev;
    out.st_ino = facts.ino;
    // Of other widths on other machines.
    out.st_nlink = facts.links as _;
    out.st_mode = facts.mode;
    out.st_uid = facts.uid;
    out.st_gid = facts.gid;
    out.st_rdev = 0;
    out.st_size = facts.size.cast_signed();
    out.st_blksize = facts.block_size as _;
    out.st_blocks = facts.blocks.cast_signed();
    (out.st_atime, out.st_atime_nsec) =
        (facts.accessed.seconds, facts.accessed.nanos.cast_signed());
    (out.st_mtime, out.st_mtime_nsec) =
        (facts.modified.seconds, facts.modified.nanos.cast_signed());
    (out.st_ctime, out.st_ctime_nsec) = (facts.changed.seconds, facts.changed.nanos.cast_signed());
}

fn extended(facts: &Facts, mask: u32) -> Statx {
    // SAFETY: a structure of numbers, for which 0 is valid.
    let mut out: Statx = unsafe { std::mem::zeroed() };
    // File systems tell the time of birth only if asked.
    let told = libc::STATX_BASIC_STATS | (mask & libc::STATX_BTIME);
    out.stx_mask = facts.mask & told;
    out.stx_blksize = facts.block_size;
    out.stx_attributes = facts.attributes;
    out.stx_attributes_mask = facts.attributes_mask;
    out.stx_nlink = facts.links;
    out.stx_uid = facts.uid;
    out.stx_gid = facts.gid;
    out.stx_mode = facts.mode as u16;
    out.stx_ino = facts.ino;
    out.stx_size = facts.size;
    out.stx_blocks = facts.blocks;
    out.stx_atime = time(facts.accessed);
    out.stx_mtime = time(facts.modified);
    out.stx_ctime = time(facts.changed);
    if out.stx_mask & libc::STATX_BTIME != 0 {
        out.stx_btime = time(facts.born);
    }
    out.stx_dev_major = libc::major(facts.dev);
    out.stx_dev_minor = libc::minor(facts.dev);
    out
}

fn time(time: Time) -> statx_timestamp {
    // SAFETY: a structure of numbers, for which 0 is valid.
    let mut stamp: statx_timestamp = unsafe { std::mem::zeroed() };
    stamp.tv_sec = time.seconds;
    stamp.tv_nsec = time.nanos as u32;
    stamp
}

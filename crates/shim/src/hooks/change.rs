//! Functions that change a file by its path.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::{
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, gid_t, mode_t, size_t, timespec, timeval, uid_t, utimbuf,
};

use super::caller_path::c_string;
use super::descriptor::{change_descriptor, change_itself};
use super::hook;
use crate::attached_job::job;
use crate::ops::NamedFile;
use crate::ops::change::{self, Touched};
use crate::real::real;

type Path = *const c_char;

hook! {
    fn truncate(path: Path, length: i64) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, || real!(truncate(path, length)))
    }
    fn truncate64(path: Path, length: i64) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, || real!(truncate64(path, length)))
    }
    fn unlink(path: Path) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, || real!(unlink(path)))
    }
    fn unlinkat(at: c_int, path: Path, flags: c_int) -> c_int {
        change_at(at, path, AT_SYMLINK_NOFOLLOW, || real!(unlinkat(at, path, flags)))
    }
    fn remove(path: Path) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, || real!(remove(path)))
    }
    fn rename(from: Path, to: Path) -> c_int {
        let before = look_twice(AT_FDCWD, from, AT_FDCWD, to);
        changed(real!(rename(from, to)), before)
    }
    fn renameat(at: c_int, from: Path, to_at: c_int, to: Path) -> c_int {
        let before = look_twice(at, from, to_at, to);
        changed(real!(renameat(at, from, to_at, to)), before)
    }
    fn renameat2(at: c_int, from: Path, to_at: c_int, to: Path, flags: u32) -> c_int {
        let before = look_twice(at, from, to_at, to);
        changed(real!(renameat2(at, from, to_at, to, flags)), before)
    }
    // The number of hard links changes.
    fn link(from: Path, to: Path) -> c_int {
        change_at(AT_FDCWD, from, AT_SYMLINK_NOFOLLOW, || real!(link(from, to)))
    }
    fn linkat(at: c_int, from: Path, to_at: c_int, to: Path, flags: c_int) -> c_int {
        let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { FOLLOW } else { AT_SYMLINK_NOFOLLOW };
        change_at(at, from, follow, || real!(linkat(at, from, to_at, to, flags)))
    }
    fn chmod(path: Path, mode: mode_t) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, || real!(chmod(path, mode)))
    }
    fn fchmodat(at: c_int, path: Path, mode: mode_t, flags: c_int) -> c_int {
        if is_empty(path, flags) {
            return change_itself(at, |at| real!(fchmodat(at, path, mode, flags)));
        }
        change_at(at, path, flags, || real!(fchmodat(at, path, mode, flags)))
    }
    fn chown(path: Path, user: uid_t, group: gid_t) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, || real!(chown(path, user, group)))
    }
    fn lchown(path: Path, user: uid_t, group: gid_t) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, || real!(lchown(path, user, group)))
    }
    fn fchownat(at: c_int, path: Path, user: uid_t, group: gid_t, flags: c_int) -> c_int {
        if is_empty(path, flags) {
            return change_itself(at, |at| real!(fchownat(at, path, user, group, flags)));
        }
        change_at(at, path, flags, || real!(fchownat(at, path, user, group, flags)))
    }
    fn utime(path: Path, times: *const utimbuf) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, || real!(utime(path, times)))
    }
    fn utimes(path: Path, times: *const timeval) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, || real!(utimes(path, times)))
    }
    fn lutimes(path: Path, times: *const timeval) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, || real!(lutimes(path, times)))
    }
    fn futimesat(at: c_int, path: Path, times: *const timeval) -> c_int {
        if path.is_null() {
            return change_descriptor(
                at,
                || real!(futimesat(at, path, times)),
                |source| real!(utimes(source.as_ptr(), times)),
            );
        }
        change_at(at, path, FOLLOW, || real!(futimesat(at, path, times)))
    }
    fn utimensat(at: c_int, path: Path, times: *const timespec, flags: c_int) -> c_int {
        if is_empty(path, flags) {
            return change_itself(at, |at| real!(utimensat(at, path, times, flags)));
        }
        change_at(at, path, flags, || real!(utimensat(at, path, times, flags)))
    }
    fn setxattr(path: Path, name: Path, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, || real!(setxattr(path, name, value, size, flags)))
    }
    fn lsetxattr(path: Path, name: Path, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, || real!(lsetxattr(path, name, value, size, flags)))
    }
    fn removexattr(path: Path, name: Path) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, || real!(removexattr(path, name)))
    }
    fn lremovexattr(path: Path, name: Path) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, || real!(lremovexattr(path, name)))
    }
}

const FOLLOW: c_int = 0;

/// Returns whether the call is about the descriptor itself.
unsafe fn is_empty(path: Path, flags: c_int) -> bool {
    // SAFETY: the caller's path.
    flags & libc::AT_EMPTY_PATH != 0 && unsafe { c_string(path) }.is_some_and(CStr::is_empty)
}

/// Records the state of a path before the change.
unsafe fn look(at: c_int, path: Path, flags: c_int) -> Option<Touched> {
    let job = job()?;
    // SAFETY: the caller's path.
    let path = unsafe { c_string(path) }?;
    Some(change::before(job, NamedFile { at, path }, flags & AT_SYMLINK_NOFOLLOW == 0))
}

/// Changes the file of a path, and drops its copies.
unsafe fn change_at(at: c_int, path: Path, flags: c_int, real: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's path.
    let before = unsafe { look(at, path, flags) };
    changed(real(), [before])
}

/// Records the state of both paths of a rename.
unsafe fn look_twice(at: c_int, from: Path, to_at: c_int, to: Path) -> [Option<Touched>; 2] {
    // SAFETY: the caller's paths.
    unsafe { [look(at, from, AT_SYMLINK_NOFOLLOW), look(to_at, to, AT_SYMLINK_NOFOLLOW)] }
}

/// Drops the copies of the changed files if the call succeeded.
fn changed<const N: usize>(result: c_int, before: [Option<Touched>; N]) -> c_int {
    if result == 0
        && let Some(job) = job()
    {
        before.into_iter().flatten().for_each(|file| change::after(job, file));
    }
    result
}

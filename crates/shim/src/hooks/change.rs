//! Functions that change a file by its name.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::{
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, gid_t, mode_t, size_t, timespec, timeval, uid_t, utimbuf,
};

use super::descriptor::{change_descriptor, change_itself};
use super::hook;
use super::text::text;
use crate::job::job;
use crate::ops::Named;
use crate::ops::change::{self, Touched};
use crate::real::real;

type Path = *const c_char;

hook! {
    fn truncate(path: Path, length: i64) -> c_int {
        let before = look(AT_FDCWD, path, FOLLOW);
        changed(real!(truncate(path, length)), [before])
    }
    fn truncate64(path: Path, length: i64) -> c_int {
        let before = look(AT_FDCWD, path, FOLLOW);
        changed(real!(truncate64(path, length)), [before])
    }
    fn unlink(path: Path) -> c_int {
        let before = look(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
        changed(real!(unlink(path)), [before])
    }
    fn unlinkat(at: c_int, path: Path, flags: c_int) -> c_int {
        let before = look(at, path, AT_SYMLINK_NOFOLLOW);
        changed(real!(unlinkat(at, path, flags)), [before])
    }
    fn remove(path: Path) -> c_int {
        let before = look(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
        changed(real!(remove(path)), [before])
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
    // It has one name more, which stat tells.
    fn link(from: Path, to: Path) -> c_int {
        let before = look(AT_FDCWD, from, AT_SYMLINK_NOFOLLOW);
        changed(real!(link(from, to)), [before])
    }
    fn linkat(at: c_int, from: Path, to_at: c_int, to: Path, flags: c_int) -> c_int {
        let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { FOLLOW } else { AT_SYMLINK_NOFOLLOW };
        let before = look(at, from, follow);
        changed(real!(linkat(at, from, to_at, to, flags)), [before])
    }
    fn chmod(path: Path, mode: mode_t) -> c_int {
        let before = look(AT_FDCWD, path, FOLLOW);
        changed(real!(chmod(path, mode)), [before])
    }
    fn fchmodat(at: c_int, path: Path, mode: mode_t, flags: c_int) -> c_int {
        if is_empty(path, flags) {
            return change_itself(at, |at| real!(fchmodat(at, path, mode, flags)));
        }
        let before = look(at, path, flags);
        changed(real!(fchmodat(at, path, mode, flags)), [before])
    }
    fn chown(path: Path, user: uid_t, group: gid_t) -> c_int {
        let before = look(AT_FDCWD, path, FOLLOW);
        changed(real!(chown(path, user, group)), [before])
    }
    fn lchown(path: Path, user: uid_t, group: gid_t) -> c_int {
        let before = look(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
        changed(real!(lchown(path, user, group)), [before])
    }
    fn fchownat(at: c_int, path: Path, user: uid_t, group: gid_t, flags: c_int) -> c_int {
        if is_empty(path, flags) {
            return change_itself(at, |at| real!(fchownat(at, path, user, group, flags)));
        }
        let before = look(at, path, flags);
        changed(real!(fchownat(at, path, user, group, flags)), [before])
    }
    fn utime(path: Path, times: *const utimbuf) -> c_int {
        let before = look(AT_FDCWD, path, FOLLOW);
        changed(real!(utime(path, times)), [before])
    }
    fn utimes(path: Path, times: *const timeval) -> c_int {
        let before = look(AT_FDCWD, path, FOLLOW);
        changed(real!(utimes(path, times)), [before])
    }
    fn lutimes(path: Path, times: *const timeval) -> c_int {
        let before = look(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
        changed(real!(lutimes(path, times)), [before])
    }
    fn futimesat(at: c_int, path: Path, times: *const timeval) -> c_int {
        if path.is_null() {
            return change_descriptor(
                at,
                || real!(futimesat(at, path, times)),
                |source| real!(utimes(source.as_ptr(), times)),
            );
        }
        let before = look(at, path, FOLLOW);
        changed(real!(futimesat(at, path, times)), [before])
    }
    fn utimensat(at: c_int, path: Path, times: *const timespec, flags: c_int) -> c_int {
        if is_empty(path, flags) {
            return change_itself(at, |at| real!(utimensat(at, path, times, flags)));
        }
        let before = look(at, path, flags);
        changed(real!(utimensat(at, path, times, flags)), [before])
    }
    fn setxattr(path: Path, name: Path, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        let before = look(AT_FDCWD, path, FOLLOW);
        changed(real!(setxattr(path, name, value, size, flags)), [before])
    }
    fn lsetxattr(path: Path, name: Path, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        let before = look(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
        changed(real!(lsetxattr(path, name, value, size, flags)), [before])
    }
    fn removexattr(path: Path, name: Path) -> c_int {
        let before = look(AT_FDCWD, path, FOLLOW);
        changed(real!(removexattr(path, name)), [before])
    }
    fn lremovexattr(path: Path, name: Path) -> c_int {
        let before = look(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
        changed(real!(lremovexattr(path, name)), [before])
    }
}

const FOLLOW: c_int = 0;

/// Whether the file that is meant is the descriptor itself.
unsafe fn is_empty(path: Path, flags: c_int) -> bool {
    // SAFETY: the caller's path.
    flags & libc::AT_EMPTY_PATH != 0 && unsafe { text(path) }.is_some_and(CStr::is_empty)
}

/// What has this name before the change.
unsafe fn look(at: c_int, path: Path, flags: c_int) -> Option<Touched> {
    let job = job()?;
    // SAFETY: the caller's path.
    let path = unsafe { text(path) }?;
    Some(change::before(job, Named { at, path }, flags & AT_SYMLINK_NOFOLLOW == 0))
}

/// Both names of a rename.
unsafe fn look_twice(at: c_int, from: Path, to_at: c_int, to: Path) -> [Option<Touched>; 2] {
    // SAFETY: the caller's paths.
    unsafe { [look(at, from, AT_SYMLINK_NOFOLLOW), look(to_at, to, AT_SYMLINK_NOFOLLOW)] }
}

/// If the change was made, copies of what was there are dropped.
fn changed<const N: usize>(result: c_int, before: [Option<Touched>; N]) -> c_int {
    if result == 0
        && let Some(job) = job()
    {
        before.into_iter().flatten().for_each(|file| change::after(job, file));
    }
    result
}

//! Functions that change a file by its path.

use std::ffi::{CStr, c_char, c_int, c_void};

use belady_board::path::PathBuffer;
use libc::{
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, gid_t, mode_t, size_t, timespec, timeval, uid_t, utimbuf,
};

use super::caller_path::c_string;
use super::descriptor::{change_descriptor, change_itself};
use super::hook;
use crate::attached_job::{AttachedJob, job};
use crate::ops::change::{self, Touched};
use crate::ops::{NamedFile, copy_descriptor};
use crate::real::real;

type Path = *const c_char;

hook! {
    fn truncate(path: Path, length: i64) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, |path| real!(truncate(path, length)))
    }
    fn truncate64(path: Path, length: i64) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, |path| real!(truncate64(path, length)))
    }
    fn unlink(path: Path) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, |path| real!(unlink(path)))
    }
    fn unlinkat(at: c_int, path: Path, flags: c_int) -> c_int {
        change_at(at, path, AT_SYMLINK_NOFOLLOW, |path| real!(unlinkat(at, path, flags)))
    }
    fn remove(path: Path) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, |path| real!(remove(path)))
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
        change_at(AT_FDCWD, from, AT_SYMLINK_NOFOLLOW, |from| real!(link(from, to)))
    }
    fn linkat(at: c_int, from: Path, to_at: c_int, to: Path, flags: c_int) -> c_int {
        let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { FOLLOW } else { AT_SYMLINK_NOFOLLOW };
        change_at(at, from, follow, |from| real!(linkat(at, from, to_at, to, flags)))
    }
    fn chmod(path: Path, mode: mode_t) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, |path| real!(chmod(path, mode)))
    }
    fn fchmodat(at: c_int, path: Path, mode: mode_t, flags: c_int) -> c_int {
        if is_empty(path, flags) {
            return change_itself(at, |at| real!(fchmodat(at, path, mode, flags)));
        }
        change_at(at, path, flags, |path| real!(fchmodat(at, path, mode, flags)))
    }
    fn chown(path: Path, user: uid_t, group: gid_t) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, |path| real!(chown(path, user, group)))
    }
    fn lchown(path: Path, user: uid_t, group: gid_t) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, |path| real!(lchown(path, user, group)))
    }
    fn fchownat(at: c_int, path: Path, user: uid_t, group: gid_t, flags: c_int) -> c_int {
        if is_empty(path, flags) {
            return change_itself(at, |at| real!(fchownat(at, path, user, group, flags)));
        }
        change_at(at, path, flags, |path| real!(fchownat(at, path, user, group, flags)))
    }
    fn utime(path: Path, times: *const utimbuf) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, |path| real!(utime(path, times)))
    }
    fn utimes(path: Path, times: *const timeval) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, |path| real!(utimes(path, times)))
    }
    fn lutimes(path: Path, times: *const timeval) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, |path| real!(lutimes(path, times)))
    }
    fn futimesat(at: c_int, path: Path, times: *const timeval) -> c_int {
        if path.is_null() {
            return change_descriptor(
                at,
                || real!(futimesat(at, path, times)),
                |source| real!(utimes(source.as_ptr(), times)),
            );
        }
        change_at(at, path, FOLLOW, |path| real!(futimesat(at, path, times)))
    }
    fn utimensat(at: c_int, path: Path, times: *const timespec, flags: c_int) -> c_int {
        if is_empty(path, flags) {
            return change_itself(at, |at| real!(utimensat(at, path, times, flags)));
        }
        change_at(at, path, flags, |path| real!(utimensat(at, path, times, flags)))
    }
    fn setxattr(path: Path, name: Path, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, |path| real!(setxattr(path, name, value, size, flags)))
    }
    fn lsetxattr(path: Path, name: Path, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, |path| real!(lsetxattr(path, name, value, size, flags)))
    }
    fn removexattr(path: Path, name: Path) -> c_int {
        change_at(AT_FDCWD, path, FOLLOW, |path| real!(removexattr(path, name)))
    }
    fn lremovexattr(path: Path, name: Path) -> c_int {
        change_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, |path| real!(lremovexattr(path, name)))
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

/// Changes the file of a path, and drops its copies. A name of a copy's descriptor, such as
/// `/proc/self/fd/5`, stands for the source.
unsafe fn change_at(
    at: c_int,
    path: Path,
    flags: c_int,
    real: impl FnOnce(Path) -> c_int,
) -> c_int {
    if flags & AT_SYMLINK_NOFOLLOW == 0
        && let Some(job) = job()
        // SAFETY: the caller's path.
        && let Some(descriptor) = unsafe { c_string(path) }.and_then(descriptor_of)
    {
        // SAFETY: as above.
        return unsafe { change_named(job, descriptor, path, real) };
    }
    // SAFETY: as above.
    let before = unsafe { look(at, path, flags) };
    changed(real(path), [before])
}

/// Changes the file of a path that names a descriptor.
#[cold]
unsafe fn change_named(
    job: &AttachedJob,
    descriptor: c_int,
    path: Path,
    real: impl FnOnce(Path) -> c_int,
) -> c_int {
    let mut buffer = PathBuffer::default();
    let path = copy_descriptor::source(job, descriptor, &mut buffer).map_or(path, CStr::as_ptr);
    // SAFETY: the caller's path, or one that ends with a NUL.
    let before = unsafe { look(AT_FDCWD, path, FOLLOW) };
    changed(real(path), [before])
}

/// Returns the descriptor that a path names.
fn descriptor_of(path: &CStr) -> Option<c_int> {
    let path = path.to_bytes();
    let number = match path {
        b"/dev/stdin" => return Some(0),
        b"/dev/stdout" => return Some(1),
        b"/dev/stderr" => return Some(2),
        _ => [&b"/proc/self/fd/"[..], b"/proc/thread-self/fd/", b"/dev/fd/"]
            .iter()
            .find_map(|directory| path.strip_prefix(*directory))?,
    };
    std::str::from_utf8(number).ok()?.parse().ok()
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

//! Functions that change a file by its descriptor, or read its attributes. For a copy's descriptor
//! they act on the source.

use std::ffi::{CStr, c_char, c_int, c_void};

use belady_board::path::PathBuffer;
use libc::{gid_t, mode_t, size_t, ssize_t, timespec, timeval, uid_t};

use super::hook;
use crate::attached_job::job;
use crate::ops::{change, copy_descriptor};
use crate::real::real;

type Path = *const c_char;

hook! {
    fn fchmod(descriptor: c_int, mode: mode_t) -> c_int {
        change_descriptor(
            descriptor,
            || real!(fchmod(descriptor, mode)),
            |source| real!(chmod(source.as_ptr(), mode)),
        )
    }
    fn fchown(descriptor: c_int, user: uid_t, group: gid_t) -> c_int {
        change_descriptor(
            descriptor,
            || real!(fchown(descriptor, user, group)),
            |source| real!(chown(source.as_ptr(), user, group)),
        )
    }
    fn futimes(descriptor: c_int, times: *const timeval) -> c_int {
        change_descriptor(
            descriptor,
            || real!(futimes(descriptor, times)),
            |source| real!(utimes(source.as_ptr(), times)),
        )
    }
    fn futimens(descriptor: c_int, times: *const timespec) -> c_int {
        change_descriptor(
            descriptor,
            || real!(futimens(descriptor, times)),
            |source| real!(utimensat(libc::AT_FDCWD, source.as_ptr(), times, 0)),
        )
    }
    fn fsetxattr(descriptor: c_int, name: Path, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        change_descriptor(
            descriptor,
            || real!(fsetxattr(descriptor, name, value, size, flags)),
            |source| real!(setxattr(source.as_ptr(), name, value, size, flags)),
        )
    }
    fn fremovexattr(descriptor: c_int, name: Path) -> c_int {
        change_descriptor(
            descriptor,
            || real!(fremovexattr(descriptor, name)),
            |source| real!(removexattr(source.as_ptr(), name)),
        )
    }
    fn fgetxattr(descriptor: c_int, name: Path, value: *mut c_void, size: size_t) -> ssize_t {
        on_source(descriptor, |source| libc::getxattr(source.as_ptr(), name, value, size))
            .unwrap_or_else(|| real!(fgetxattr(descriptor, name, value, size)))
    }
    fn flistxattr(descriptor: c_int, list: *mut c_char, size: size_t) -> ssize_t {
        on_source(descriptor, |source| libc::listxattr(source.as_ptr(), list, size))
            .unwrap_or_else(|| real!(flistxattr(descriptor, list, size)))
    }
}

/// Calls a function with the path of the source; None if the descriptor is not a copy's.
fn on_source<T>(descriptor: c_int, by_path: impl FnOnce(&CStr) -> T) -> Option<T> {
    let mut buffer = PathBuffer::default();
    let source = copy_descriptor::source(job()?, descriptor, &mut buffer)?;
    Some(by_path(source))
}

/// Changes the source, by its path if the descriptor is a copy's.
pub fn change_descriptor(
    descriptor: c_int,
    by_descriptor: impl FnOnce() -> c_int,
    by_path: impl FnOnce(&CStr) -> c_int,
) -> c_int {
    let Some(job) = job() else { return by_descriptor() };
    if let Some(result) = on_source(descriptor, by_path) {
        if result == 0 {
            change::copy_changed(job, descriptor);
        }
        return result;
    }
    let result = by_descriptor();
    if result == 0 {
        change::descriptor_changed(job, descriptor);
    }
    result
}

/// Like [`change_descriptor`], for functions that take a descriptor and an empty path.
pub fn change_itself(descriptor: c_int, change: impl Fn(c_int) -> c_int) -> c_int {
    change_descriptor(
        descriptor,
        || change(descriptor),
        |source| {
            copy_descriptor::with_handle(source, |handle| change(handle.unwrap_or(descriptor)))
        },
    )
}

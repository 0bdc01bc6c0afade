//! Functions that change a file by its descriptor, or ask for its attributes. For a copy's
//! descriptor, it is the source that they speak of.

use std::ffi::{c_char, c_int, c_void};

use belady_board::path::Buffer;
use libc::{gid_t, mode_t, size_t, ssize_t, timespec, timeval, uid_t};

use super::hook;
use crate::job::job;
use crate::ops::{change, copy};
use crate::real::real;

type Path = *const c_char;

hook! {
    fn fchmod(descriptor: c_int, mode: mode_t) -> c_int {
        change_descriptor(
            descriptor,
            || real!(fchmod(descriptor, mode)),
            |source| real!(chmod(source, mode)),
        )
    }
    fn fchown(descriptor: c_int, user: uid_t, group: gid_t) -> c_int {
        change_descriptor(
            descriptor,
            || real!(fchown(descriptor, user, group)),
            |source| real!(chown(source, user, group)),
        )
    }
    fn futimes(descriptor: c_int, times: *const timeval) -> c_int {
        change_descriptor(
            descriptor,
            || real!(futimes(descriptor, times)),
            |source| real!(utimes(source, times)),
        )
    }
    fn futimens(descriptor: c_int, times: *const timespec) -> c_int {
        change_descriptor(
            descriptor,
            || real!(futimens(descriptor, times)),
            |source| real!(utimensat(libc::AT_FDCWD, source, times, 0)),
        )
    }
    fn fsetxattr(descriptor: c_int, name: Path, value: *const c_void, size: size_t, flags: c_int) -> c_int {
        change_descriptor(
            descriptor,
            || real!(fsetxattr(descriptor, name, value, size, flags)),
            |source| real!(setxattr(source, name, value, size, flags)),
        )
    }
    fn fremovexattr(descriptor: c_int, name: Path) -> c_int {
        change_descriptor(
            descriptor,
            || real!(fremovexattr(descriptor, name)),
            |source| real!(removexattr(source, name)),
        )
    }
    fn fgetxattr(descriptor: c_int, name: Path, value: *mut c_void, size: size_t) -> ssize_t {
        on_source(descriptor, |source| libc::getxattr(source, name, value, size))
            .unwrap_or_else(|| real!(fgetxattr(descriptor, name, value, size)))
    }
    fn flistxattr(descriptor: c_int, list: *mut c_char, size: size_t) -> ssize_t {
        on_source(descriptor, |source| libc::listxattr(source, list, size))
            .unwrap_or_else(|| real!(flistxattr(descriptor, list, size)))
    }
}

/// None if the descriptor is not that of a copy.
fn on_source<T>(descriptor: c_int, by_path: impl FnOnce(Path) -> T) -> Option<T> {
    let mut room = Buffer::default();
    let source = copy::source(job()?, descriptor, &mut room)?;
    Some(by_path(source.as_ptr()))
}

/// Changes the source, by its path if the descriptor is that of a copy.
pub fn change_descriptor(
    descriptor: c_int,
    by_descriptor: impl FnOnce() -> c_int,
    by_path: impl FnOnce(Path) -> c_int,
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

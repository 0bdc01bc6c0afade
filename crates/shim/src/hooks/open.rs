//! open, openat, creat and their other names.

use std::ffi::{c_char, c_int};

use belady_board::path::Buffer;
use libc::{AT_FDCWD, mode_t};
use rustix::fs::OFlags;

use super::hook;
use super::text::{near, text};
use crate::job::{Job, job};
use crate::ops::open::Purpose;
use crate::ops::{Named, change, copy, far, open};
use crate::real::real;

hook! {
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, flags, || real!(open(path, flags, mode)))
    }
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, flags, || real!(open64(path, flags, mode)))
    }
    fn openat(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(at, path, flags, || real!(openat(at, path, flags, mode)))
    }
    fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        open_at(at, path, flags, || real!(openat64(at, path, flags, mode)))
    }
    fn __open_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(AT_FDCWD, path, flags, || real!(__open_2(path, flags)))
    }
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
        open_at(AT_FDCWD, path, flags, || real!(__open64_2(path, flags)))
    }
    fn __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(at, path, flags, || real!(__openat_2(at, path, flags)))
    }
    fn __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int {
        open_at(at, path, flags, || real!(__openat64_2(at, path, flags)))
    }
    fn creat(path: *const c_char, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, CREATING, || real!(creat(path, mode)))
    }
    fn creat64(path: *const c_char, mode: mode_t) -> c_int {
        open_at(AT_FDCWD, path, CREATING, || real!(creat64(path, mode)))
    }
}

const CREATING: c_int = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;

#[inline]
unsafe fn open_at(
    at: c_int,
    path: *const c_char,
    flags: c_int,
    real: impl FnOnce() -> c_int,
) -> c_int {
    let Some(job) = job() else { return real() };
    let options = OFlags::from_bits_retain(flags.cast_unsigned());
    let descriptor = match Purpose::of(options) {
        Purpose::Other => real(),
        Purpose::Writing => {
            let descriptor = real();
            // SAFETY: as below.
            let file = unsafe { text(path) }.map(|path| Named { at, path });
            opened_for_writing(job, file, descriptor, flags)
        }
        // SAFETY: the caller's path.
        Purpose::Reading => match unsafe { near(job, path) } {
            Some(path) => open::open(job, Named { at, path }, options, real),
            None => real(),
        },
    };
    far::forget(descriptor);
    descriptor
}

/// If a copy was opened for writing, by way of /proc/self/fd, the source is opened in its place.
fn opened_for_writing(
    job: &Job,
    file: Option<Named<'_>>,
    descriptor: c_int,
    flags: c_int,
) -> c_int {
    if descriptor < 0 || !change::opened_for_writing(job, file, descriptor) {
        return descriptor;
    }
    let mut room = Buffer::default();
    let Some(source) = copy::source(job, descriptor, &mut room) else { return descriptor };
    let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW);
    // SAFETY: a path with a 0 at its end; no mode is needed without O_CREAT.
    let at_source = unsafe { real!(open(source.as_ptr(), flags)) };
    if at_source >= 0 {
        change::opened_for_writing(job, Some(Named { at: AT_FDCWD, path: source }), at_source);
    }
    // SAFETY: it was opened just now, and nobody knows of it.
    unsafe { rustix::io::close(descriptor) };
    at_source
}

//! `open`, `openat`, `creat` and their variants.

use std::ffi::{c_char, c_int};

use belady_board::path::PathBuffer;
use libc::{AT_FDCWD, mode_t};
use rustix::fs::OFlags;

use super::caller_path::{c_string, candidate};
use super::hook;
use crate::attached_job::{AttachedJob, job};
use crate::ops::open::Purpose;
use crate::ops::{NamedFile, change, copy_descriptor, open, unrelated_directories};
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
            let file = unsafe { c_string(path) }.map(|path| NamedFile { at, path });
            opened_for_writing(job, file, descriptor, flags)
        }
        // SAFETY: the caller's path.
        Purpose::Reading => match unsafe { candidate(job, path) } {
            Some(path) => open::open(job, NamedFile { at, path }, options, real),
            None => real(),
        },
    };
    unrelated_directories::forget(descriptor);
    descriptor
}

/// Opens the source instead of a copy that was opened for writing through `/proc/self/fd`.
fn opened_for_writing(
    job: &AttachedJob,
    file: Option<NamedFile<'_>>,
    descriptor: c_int,
    flags: c_int,
) -> c_int {
    if descriptor < 0 || !change::opened_for_writing(job, file, descriptor) {
        return descriptor;
    }
    let mut buffer = PathBuffer::default();
    let Some(source) = copy_descriptor::source(job, descriptor, &mut buffer) else {
        return descriptor;
    };
    let flags = flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW);
    // SAFETY: a NUL-terminated path; without O_CREAT there is no mode.
    let at_source = unsafe { real!(open(source.as_ptr(), flags)) };
    if at_source >= 0 {
        change::opened_for_writing(job, Some(NamedFile { at: AT_FDCWD, path: source }), at_source);
    }
    // SAFETY: opened above and not shared.
    unsafe { rustix::io::close(descriptor) };
    at_source
}

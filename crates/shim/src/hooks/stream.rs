//! fopen and freopen. What libc's streams open themselves reaches none of our other functions.

use std::ffi::{CStr, c_char, c_int};

use belady_board::path::{Buffer, Place};
use libc::{AT_FDCWD, FILE};
use rustix::fs::OFlags;

use super::hook;
use super::text::{near, text};
use crate::errno;
use crate::job::{Job, job};
use crate::ops::open::{Purpose, Way};
use crate::ops::place::place;
use crate::ops::{Named, change, copy, open};
use crate::real::real;

hook! {
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode, |path| real!(fopen(path, mode)))
    }
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
        open_stream(path, mode, |path| real!(fopen64(path, mode)))
    }
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        reopen_stream(path, mode, stream, |path| real!(freopen(path, mode, stream)))
    }
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        reopen_stream(path, mode, stream, |path| real!(freopen64(path, mode, stream)))
    }
}

/// As libc reads the mode of a stream: a letter, and then a few more.
fn purpose(mode: &CStr) -> Purpose {
    let mode = mode.to_bytes();
    let options = mode.split(|&byte| byte == b',').next().unwrap_or(mode);
    match options {
        [b'r' | b'w' | b'a', rest @ ..] if rest.contains(&b'+') => Purpose::Writing,
        [b'r', ..] => Purpose::Reading,
        [b'w' | b'a', ..] => Purpose::Writing,
        _ => Purpose::Other,
    }
}

unsafe fn open_stream(
    path: *const c_char,
    mode: *const c_char,
    real: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    let Some(job) = job() else { return real(path) };
    // SAFETY: the caller's mode.
    match unsafe { text(mode) }.map(purpose) {
        Some(Purpose::Writing) => {
            let stream = real(path);
            // SAFETY: the stream is new.
            unsafe { opened_for_writing(job, path, stream) };
            stream
        }
        // SAFETY: the caller's path.
        Some(Purpose::Reading) => match unsafe { near(job, path) } {
            Some(path) => open_for_reading(job, path, real),
            None => real(path),
        },
        _ => real(path),
    }
}

unsafe fn opened_for_writing(job: &Job, path: *const c_char, stream: *mut FILE) {
    if !stream.is_null() {
        // SAFETY: the path by which it was opened.
        let file = unsafe { text(path) }.map(|path| Named { at: AT_FDCWD, path });
        // SAFETY: an open stream has a descriptor.
        change::opened_for_writing(job, file, unsafe { libc::fileno(stream) });
    }
}

#[inline(never)]
fn open_for_reading(
    job: &Job,
    path: &CStr,
    real: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    let mut room = Buffer::default();
    let file = Named { at: AT_FDCWD, path };
    let Place::Below(name) = place(job, file, &mut room) else { return real(path.as_ptr()) };
    let mut copy_room = Buffer::default();
    let known = match open::way(job, file, name, OFlags::RDONLY, &mut copy_room) {
        Way::Source { known } => known,
        Way::Copy { path, level, entry } => {
            let _errno = errno::Kept::new();
            let stream = real(path.as_ptr());
            if !stream.is_null() {
                open::opened_copy(job, level, &entry);
                return stream;
            }
            open::not_opened(job, &entry, errno::get());
            None
        }
    };
    let stream = real(path.as_ptr());
    if !stream.is_null() {
        // SAFETY: an open stream has a descriptor.
        open::opened_at_source(job, name, unsafe { libc::fileno(stream) }, known);
    }
    stream
}

unsafe fn reopen_stream(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
    real: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    let Some(job) = job() else { return real(path) };
    // SAFETY: the caller's mode.
    match unsafe { text(mode) }.map(purpose) {
        Some(Purpose::Writing) => {
            let mut room = Buffer::default();
            let mut path = path;
            // Without a path, the file that is open is opened once more: the source, if it is a copy.
            if path.is_null()
                // SAFETY: the caller's stream.
                && let Some(source) = copy::source(job, unsafe { libc::fileno(stream) }, &mut room)
            {
                path = source.as_ptr();
            }
            let stream = real(path);
            // SAFETY: the stream is open now, or NULL.
            unsafe { opened_for_writing(job, path, stream) };
            stream
        }
        // SAFETY: the caller's path.
        Some(Purpose::Reading) => match unsafe { near(job, path) } {
            Some(path) => reopen_for_reading(job, path, real),
            None => real(path),
        },
        _ => real(path),
    }
}

/// A stream that could not be reopened is closed. So the copy is opened before.
#[inline(never)]
fn reopen_for_reading(
    job: &Job,
    path: &CStr,
    real: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    let stream = std::cell::Cell::new(std::ptr::null_mut());
    let file = Named { at: AT_FDCWD, path };
    let opened_at_source = || {
        stream.set(real(path.as_ptr()));
        // SAFETY: an open stream has a descriptor.
        if stream.get().is_null() { -1 } else { unsafe { libc::fileno(stream.get()) } }
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let copy: c_int = open::open(job, file, flags, opened_at_source);
    if !stream.get().is_null() || copy < 0 {
        return stream.get();
    }
    let mut room = [0u8; 32];
    let name = copy::own_name(copy, &mut room);
    let stream = real(name.as_ptr());
    // SAFETY: it was opened just now, and nobody knows of it.
    unsafe { rustix::io::close(copy) };
    stream
}

//! `fopen` and `freopen`. libc opens their files internally, without calling our `open`.

use std::ffi::{CStr, c_char, c_int};

use belady_board::path::{PathBuffer, PathLocation};
use libc::{AT_FDCWD, FILE};
use rustix::fs::OFlags;

use super::caller_path::{c_string, candidate};
use super::hook;
use crate::attached_job::{AttachedJob, job};
use crate::errno;
use crate::ops::locate::locate;
use crate::ops::open::{OpenTarget, Purpose};
use crate::ops::{NamedFile, change, copy_descriptor, open};
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

/// Parses the mode of a stream as libc does.
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
    match unsafe { c_string(mode) }.map(purpose) {
        Some(Purpose::Writing) => {
            let stream = real(path);
            // SAFETY: the stream is new.
            unsafe { opened_for_writing(job, path, stream) };
            stream
        }
        // SAFETY: the caller's path.
        Some(Purpose::Reading) => match unsafe { candidate(job, path) } {
            Some(path) => open_for_reading(job, path, real),
            None => real(path),
        },
        _ => real(path),
    }
}

unsafe fn opened_for_writing(job: &AttachedJob, path: *const c_char, stream: *mut FILE) {
    if !stream.is_null() {
        // SAFETY: the path by which it was opened.
        let file = unsafe { c_string(path) }.map(|path| NamedFile { at: AT_FDCWD, path });
        // SAFETY: an open stream has a descriptor.
        change::opened_for_writing(job, file, unsafe { libc::fileno(stream) });
    }
}

#[inline(never)]
fn open_for_reading(
    job: &AttachedJob,
    path: &CStr,
    real: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    let mut buffer = PathBuffer::default();
    let file = NamedFile { at: AT_FDCWD, path };
    let PathLocation::Below(name) = locate(job, file, &mut buffer) else {
        return real(path.as_ptr());
    };
    let mut copy_buffer = PathBuffer::default();
    let known = match open::target(job, file, name, OFlags::RDONLY, &mut copy_buffer) {
        OpenTarget::Source { known } => known,
        OpenTarget::Copy { path, level, entry } => {
            let _errno = errno::SavedErrno::new();
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
    match unsafe { c_string(mode) }.map(purpose) {
        Some(Purpose::Writing) => {
            let mut buffer = PathBuffer::default();
            let mut path = path;
            // Without a path, the open file is opened again; for a copy that is its source.
            if path.is_null()
                // SAFETY: the caller's stream.
                && let Some(source) = copy_descriptor::source(job, unsafe { libc::fileno(stream) }, &mut buffer)
            {
                path = source.as_ptr();
            }
            let stream = real(path);
            // SAFETY: the stream is open now, or NULL.
            unsafe { opened_for_writing(job, path, stream) };
            stream
        }
        // SAFETY: the caller's path.
        Some(Purpose::Reading) => match unsafe { candidate(job, path) } {
            Some(path) => reopen_for_reading(job, path, real),
            None => real(path),
        },
        _ => real(path),
    }
}

/// Opens the copy first, because libc closes a stream that it cannot reopen.
#[inline(never)]
fn reopen_for_reading(
    job: &AttachedJob,
    path: &CStr,
    real: impl Fn(*const c_char) -> *mut FILE,
) -> *mut FILE {
    let stream = std::cell::Cell::new(std::ptr::null_mut());
    let file = NamedFile { at: AT_FDCWD, path };
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
    let mut buffer = [0u8; 32];
    let name = copy_descriptor::own_name(copy, &mut buffer);
    let stream = real(name.as_ptr());
    // SAFETY: opened above and not shared.
    unsafe { rustix::io::close(copy) };
    stream
}

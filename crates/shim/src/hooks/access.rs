//! `access` and its variants.

use std::ffi::{c_char, c_int};

use libc::{AT_EACCESS, AT_FDCWD};

use super::caller_path::candidate;
use super::hook;
use crate::attached_job::job;
use crate::ops::{NamedFile, stat};
use crate::real::real;

hook! {
    fn access(path: *const c_char, mode: c_int) -> c_int {
        if is_readable(AT_FDCWD, path, mode, 0) { 0 } else { real!(access(path, mode)) }
    }
    fn faccessat(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        if is_readable(at, path, mode, flags) { 0 } else { real!(faccessat(at, path, mode, flags)) }
    }
    fn euidaccess(path: *const c_char, mode: c_int) -> c_int {
        if is_readable(AT_FDCWD, path, mode, AT_EACCESS) { 0 } else { real!(euidaccess(path, mode)) }
    }
    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        if is_readable(AT_FDCWD, path, mode, AT_EACCESS) { 0 } else { real!(eaccess(path, mode)) }
    }
}

unsafe fn is_readable(at: c_int, path: *const c_char, mode: c_int, flags: c_int) -> bool {
    let Some(job) = job() else { return false };
    if !matches!(mode, libc::F_OK | libc::R_OK) || flags & !AT_EACCESS != 0 {
        return false;
    }
    // SAFETY: the caller's path.
    unsafe { candidate(job, path) }
        .is_some_and(|path| stat::is_readable(job, NamedFile { at, path }))
}

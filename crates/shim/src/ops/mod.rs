//! The decisions behind the hooks, as safe code. The exceptions are borrowing a descriptor by its
//! number, and reading a name in `directory_names.rs`.

pub mod change;
pub mod copy_descriptor;
mod directory_names;
mod kernel_path;
pub mod locate;
pub mod open;
pub mod stat;
pub mod unrelated_directories;

use std::ffi::{CStr, c_int};

use rustix::fd::BorrowedFd;

/// A file as the caller names it: a path, and the directory that it starts from.
#[derive(Clone, Copy)]
pub struct NamedFile<'a> {
    pub at: c_int,
    pub path: &'a CStr,
}

/// Borrows the caller's descriptor, or `AT_FDCWD`.
pub fn borrow(number: c_int) -> Option<BorrowedFd<'static>> {
    if number < 0 && number != libc::AT_FDCWD {
        return None;
    }
    // SAFETY: it is not -1. As with libc, the caller keeps it open; the kernel returns EBADF if it
    // is not.
    Some(unsafe { BorrowedFd::borrow_raw(number) })
}

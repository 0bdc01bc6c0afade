//! What is done in the place of libc's functions. All of it is safe code, but for borrowing a
//! descriptor by its number, and the memory of names in `directory.rs`.

pub mod change;
pub mod copy;
pub mod directory;
pub mod far;
pub mod open;
pub mod place;
pub mod stat;

use std::ffi::{CStr, c_int};

use rustix::fd::BorrowedFd;

/// A file as the caller names it: a path, and the directory from which it leads.
#[derive(Clone, Copy)]
pub struct Named<'a> {
    pub at: c_int,
    pub path: &'a CStr,
}

/// The caller's descriptor, or `AT_FDCWD`.
pub fn borrow(number: c_int) -> Option<BorrowedFd<'static>> {
    if number < 0 && number != libc::AT_FDCWD {
        return None;
    }
    // SAFETY: it is not -1. Whether it is open, and stays so, is the caller's affair as it is with
    // libc: the kernel says so if it is not.
    Some(unsafe { BorrowedFd::borrow_raw(number) })
}

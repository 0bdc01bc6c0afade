//! The caller's pointers to paths.

use std::ffi::{CStr, c_char};

use crate::attached_job::AttachedJob;

/// Returns whether a program can have memory at this address.
#[inline]
pub fn is_plausible<T>(pointer: *const T) -> bool {
    // Neither the first page nor the kernel's half.
    pointer.addr().cast_signed() >= 4096
}

/// Returns the caller's string; None for a pointer that is not plausible.
///
/// # Safety
/// A plausible pointer points to a NUL-terminated string.
#[inline]
pub unsafe fn c_string<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as promised.
    is_plausible(path).then(|| unsafe { CStr::from_ptr(path) })
}

/// Returns the path if it may lead below the dataset. The first bytes of most paths exclude that.
///
/// # Safety
/// As for [`c_string`].
#[inline]
pub unsafe fn candidate<'a>(job: &AttachedJob, path: *const c_char) -> Option<&'a CStr> {
    if !is_plausible(path) {
        return None;
    }
    let dataset = job.board.header().dataset();
    // SAFETY: as promised, and no byte after the NUL is read.
    let candidate = unsafe {
        *path.cast::<u8>() != b'/'
            || begins_like(path, dataset.given)
            || begins_like(path, dataset.real)
    };
    // SAFETY: as promised.
    candidate.then(|| unsafe { CStr::from_ptr(path) })
}

/// Returns whether a path may begin with `root`, which is normalised. Where they first differ, the
/// path may have an additional slash or dot.
#[inline]
unsafe fn begins_like(path: *const c_char, root: &[u8]) -> bool {
    let path = path.cast::<u8>();
    for (at, &byte) in root.iter().enumerate() {
        // SAFETY: all bytes before this one equal the root's, so none of them was the NUL.
        let there = unsafe { *path.add(at) };
        if there != byte {
            return there == b'/' || there == b'.';
        }
    }
    true
}

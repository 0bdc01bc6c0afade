//! The caller's strings.

use std::ffi::{CStr, c_char};

use crate::job::Job;

/// Whether a program can have something at this address.
#[inline]
pub fn is_plausible<T>(pointer: *const T) -> bool {
    // Neither the first page nor the kernel's half.
    pointer.addr().cast_signed() >= 4096
}

/// # Safety
/// A plausible pointer is one to a text that ends with a 0.
#[inline]
pub unsafe fn text<'a>(path: *const c_char) -> Option<&'a CStr> {
    // SAFETY: as promised.
    is_plausible(path).then(|| unsafe { CStr::from_ptr(path) })
}

/// The path, if it may lead below the dataset. Those of most files do not, which their first bytes
/// tell.
///
/// # Safety
/// As for [`text`].
#[inline]
pub unsafe fn near<'a>(job: &Job, path: *const c_char) -> Option<&'a CStr> {
    if !is_plausible(path) {
        return None;
    }
    let dataset = job.board.head().dataset();
    // SAFETY: as promised; and nothing is read behind the 0 at the end.
    let near = unsafe {
        *path.cast::<u8>() != b'/'
            || begins_like(path, dataset.given)
            || begins_like(path, dataset.real)
    };
    // SAFETY: as promised.
    near.then(|| unsafe { CStr::from_ptr(path) })
}

/// Whether a path may begin with `root`, which is clean. Where they differ first, the path may have a
/// slash too many, or a dot.
#[inline]
unsafe fn begins_like(path: *const c_char, root: &[u8]) -> bool {
    let path = path.cast::<u8>();
    for (place, &byte) in root.iter().enumerate() {
        // SAFETY: all bytes before this one are those of the root, so none was the 0 at the end.
        let there = unsafe { *path.add(place) };
        if there != byte {
            return there == b'/' || there == b'.';
        }
    }
    true
}

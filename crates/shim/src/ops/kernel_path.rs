//! The kernel's path of an open file.

use std::ffi::{CStr, c_int};
use std::io::Write as _;
use std::mem::MaybeUninit;

use belady_board::path::LONGEST;

/// A buffer for a path that the kernel writes.
pub type KernelPath = [MaybeUninit<u8>; LONGEST];

pub const EMPTY: KernelPath = [MaybeUninit::uninit(); LONGEST];

/// What the kernel appends to the path of a removed file.
pub const DELETED: &[u8] = b" (deleted)";

/// Returns the absolute path of an open file, unless it was removed.
pub fn path_of(descriptor: c_int, buffer: &mut KernelPath) -> Option<&[u8]> {
    let path = raw_path_of(descriptor, buffer)?;
    (path.starts_with(b"/") && !path.ends_with(DELETED)).then_some(path)
}

/// Returns the path of an open file as the kernel writes it, also of a removed one.
pub fn raw_path_of(descriptor: c_int, buffer: &mut KernelPath) -> Option<&[u8]> {
    let mut link = [0u8; 48];
    // Not /proc/self: a thread can have its own descriptor table.
    write!(&mut link[..47], "/proc/thread-self/fd/{descriptor}").ok()?;
    let link = CStr::from_bytes_until_nul(&link).ok()?;
    let (path, rest) = rustix::fs::readlinkat_raw(rustix::fs::CWD, link, &mut buffer[..]).ok()?;
    // A path that fills the buffer may be truncated.
    (!rest.is_empty()).then_some(&*path)
}

//! Descriptors of directories that are neither above nor below the dataset.
//!
//! Programs like `tar` open thousands of files from one directory. Asking the kernel for its path
//! each time would cost more than the rest of the shim.
//!
//! A descriptor is removed from the set when `open` returns it again. One that is reused in another
//! way (`opendir`, `dup2`) may stay in the set. Then a file of the dataset is read from the source
//! although it has a copy. So the set is only used for reads, never to decide whether a copy is
//! dropped.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use belady_board::DatasetPaths;

const MOST: usize = 1024;

static UNRELATED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

fn slot(descriptor: c_int) -> Option<&'static AtomicBool> {
    UNRELATED.get(usize::try_from(descriptor).ok()?)
}

/// Returns whether `path`, from this directory, does not lead to the dataset.
#[inline]
pub fn contains(descriptor: c_int, path: &[u8]) -> bool {
    slot(descriptor).is_some_and(|unrelated| unrelated.load(Relaxed))
        // A parent directory may lead anywhere.
        && !path.windows(2).any(|pair| pair == b"..")
}

/// Adds a descriptor if its directory, of this name, is unrelated to the dataset.
pub fn note(descriptor: c_int, name: &[u8], dataset: &DatasetPaths<'_>) {
    let apart = |root: &[u8]| !begins(root, name) && !begins(name, root);
    if apart(dataset.given)
        && apart(dataset.real)
        && let Some(unrelated) = slot(descriptor)
    {
        unrelated.store(true, Relaxed);
    }
}

/// Returns whether `path` is `start` or below it.
fn begins(path: &[u8], start: &[u8]) -> bool {
    let start = start.strip_suffix(b"/").unwrap_or(start);
    path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Removes a descriptor, which now refers to another file.
#[inline]
pub fn forget(descriptor: c_int) {
    if let Some(unrelated) = slot(descriptor)
        && unrelated.load(Relaxed)
    {
        unrelated.store(false, Relaxed);
    }
}

//! Directories that have nothing to do with the dataset, by the numbers of their descriptors: programs like
//! `tar` open thousands of files from one, and to ask the kernel each time where it is would cost more than
//! all else here.
//!
//! A number is forgotten when a new descriptor gets it from `open`. One that comes in another way (`opendir`,
//! `dup2`) may still be taken for the old one. Then a file of the dataset is read at the source, though it has a
//! copy; so this is never asked where a copy might have to be dropped.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use belady_board::Dataset;

const MOST: usize = 1024;

static FAR: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

fn slot(descriptor: c_int) -> Option<&'static AtomicBool> {
    FAR.get(usize::try_from(descriptor).ok()?)
}

/// Whether nothing of the dataset is below this directory.
#[inline]
pub fn is_far(descriptor: c_int, path: &[u8]) -> bool {
    slot(descriptor).is_some_and(|far| far.load(Relaxed))
        // Upwards it may lead anywhere.
        && !path.windows(2).any(|pair| pair == b"..")
}

/// The directory has this name.
pub fn note(descriptor: c_int, name: &[u8], dataset: &Dataset<'_>) {
    let apart = |root: &[u8]| !begins(root, name) && !begins(name, root);
    if apart(dataset.given)
        && apart(dataset.real)
        && let Some(far) = slot(descriptor)
    {
        far.store(true, Relaxed);
    }
}

/// Whether `path` is `start`, or below it.
fn begins(path: &[u8], start: &[u8]) -> bool {
    let start = start.strip_suffix(b"/").unwrap_or(start);
    path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// A descriptor of this number is another one now.
#[inline]
pub fn forget(descriptor: c_int) {
    if let Some(far) = slot(descriptor)
        && far.load(Relaxed)
    {
        far.store(false, Relaxed);
    }
}

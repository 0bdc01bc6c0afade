//! Reports how far the listing of a dataset is.

use std::fmt;

use belady_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What listing and indexing have found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListingCounts {
    /// Directories listed.
    pub directories: u64,
    /// Files found.
    pub files: u64,
    /// Files whose records have been found, in packed formats.
    pub indexed: u64,
}

/// Reports progress to a callback, such as a progress bar.
#[derive(Default)]
pub struct ListingProgress<'a> {
    directories: AtomicU64,
    files: AtomicU64,
    indexed: AtomicU64,
    report: Option<&'a (dyn Fn(ListingCounts) + Sync)>,
}

impl<'a> ListingProgress<'a> {
    /// Reports nothing.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Calls `report` from the listing threads about once a directory. It should return quickly.
    pub fn reporting(report: &'a (dyn Fn(ListingCounts) + Sync)) -> Self {
        Self { report: Some(report), ..Self::default() }
    }

    pub(super) fn listed(&self, files: u64) {
        self.directories.fetch_add(1, Relaxed);
        self.files.fetch_add(files, Relaxed);
        self.report();
    }

    pub(super) fn indexed(&self) {
        self.indexed.fetch_add(1, Relaxed);
        self.report();
    }

    fn report(&self) {
        if let Some(report) = self.report {
            report(ListingCounts {
                directories: self.directories.load(Relaxed),
                files: self.files.load(Relaxed),
                indexed: self.indexed.load(Relaxed),
            });
        }
    }
}

impl fmt::Debug for ListingProgress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListingProgress").field("files", &self.files).finish_non_exhaustive()
    }
}

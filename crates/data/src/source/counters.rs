//! What a source tells while it works: how many calls it made on the storage, and how far
//! listing has come.

use std::fmt;

use super::Operations;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts the calls on the storage, from many threads.
#[derive(Debug, Default)]
pub(super) struct Counters {
    list: AtomicU64,
    open: AtomicU64,
    stat: AtomicU64,
    read: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    pub fn listed(&self) {
        self.list.fetch_add(1, Relaxed);
    }

    pub fn opened(&self) {
        self.open.fetch_add(1, Relaxed);
    }

    pub fn stated(&self, times: u64) {
        self.stat.fetch_add(times, Relaxed);
    }

    pub fn read(&self, bytes: u64) {
        self.read.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    pub fn add(&self, more: Operations) {
        self.list.fetch_add(more.list, Relaxed);
        self.open.fetch_add(more.open, Relaxed);
        self.stat.fetch_add(more.stat, Relaxed);
        self.read.fetch_add(more.read, Relaxed);
        self.bytes.fetch_add(more.bytes, Relaxed);
    }

    pub fn so_far(&self) -> Operations {
        Operations {
            list: self.list.load(Relaxed),
            open: self.open.load(Relaxed),
            stat: self.stat.load(Relaxed),
            read: self.read.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

/// How far listing and indexing have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub directories: u64,
    pub files: u64,
    /// Files whose records have been found, in formats that keep many in a file.
    pub indexed: u64,
}

/// Tells somebody, such as a progress bar, how far listing has come.
#[derive(Default)]
pub struct Progress<'a> {
    directories: AtomicU64,
    files: AtomicU64,
    indexed: AtomicU64,
    tell: Option<&'a (dyn Fn(Seen) + Sync)>,
}

impl<'a> Progress<'a> {
    /// Tells nobody.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Calls `tell` from the threads that list, for every directory or so; it should return
    /// quickly.
    pub fn telling(tell: &'a (dyn Fn(Seen) + Sync)) -> Self {
        Self { tell: Some(tell), ..Self::default() }
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
        if let Some(tell) = self.tell {
            tell(Seen {
                directories: self.directories.load(Relaxed),
                files: self.files.load(Relaxed),
                indexed: self.indexed.load(Relaxed),
            });
        }
    }
}

impl fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("files", &self.files).finish_non_exhaustive()
    }
}

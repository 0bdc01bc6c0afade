//! Counts the calls that a source makes on its storage.

use belady_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Operations;

/// Counts the calls on the storage, from any thread.
#[derive(Debug, Default)]
pub(super) struct OperationCounters {
    list: AtomicU64,
    open: AtomicU64,
    stat: AtomicU64,
    read: AtomicU64,
    bytes: AtomicU64,
}

impl OperationCounters {
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

    pub fn totals(&self) -> Operations {
        Operations {
            list: self.list.load(Relaxed),
            open: self.open.load(Relaxed),
            stat: self.stat.load(Relaxed),
            read: self.read.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

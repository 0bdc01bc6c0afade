//! Counts the kernel's requests.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug, Default)]
pub struct Stats {
    pub lookup: AtomicU64,
    pub getattr: AtomicU64,
    pub open: AtomicU64,
    pub read: AtomicU64,
    pub release: AtomicU64,
    pub opendir: AtomicU64,
    pub readdir: AtomicU64,
    /// Bytes that reads have returned.
    pub bytes: AtomicU64,
}

pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Stats {
    /// One line of JSON.
    pub fn to_json(&self) -> String {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let mut text = serde_json::json!({
            "lookup": load(&self.lookup),
            "getattr": load(&self.getattr),
            "open": load(&self.open),
            "read": load(&self.read),
            "release": load(&self.release),
            "opendir": load(&self.opendir),
            "readdir": load(&self.readdir),
            "bytes": load(&self.bytes),
        })
        .to_string();
        text.push('\n');
        text
    }
}

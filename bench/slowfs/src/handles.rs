//! The files and directories that the kernel has open.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use fuser::{FileHandle, FileType};

#[derive(Debug)]
pub enum Handle {
    /// With its size when it was opened.
    File { file: File, size: u64 },
    /// A listing is taken at once, so that it is the same for all parts of a readdir.
    Directory(Vec<(OsString, FileType)>),
    /// The counters as they were at the open.
    Stats(Vec<u8>),
}

#[derive(Debug, Default)]
pub struct Handles {
    open: RwLock<HashMap<u64, Arc<Handle>>>,
    next: AtomicU64,
}

impl Handles {
    pub fn add(&self, handle: Handle) -> FileHandle {
        let number = self.next.fetch_add(1, Relaxed);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(number, Arc::new(handle));
        FileHandle(number)
    }

    pub fn get(&self, handle: FileHandle) -> Option<Arc<Handle>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle.0).cloned()
    }

    pub fn remove(&self, handle: FileHandle) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.remove(&handle.0);
    }
}

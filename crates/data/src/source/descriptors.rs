//! Files kept open: a bounded table, for datasets whose files hold many samples each.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::OFlags;

use crate::file::Cold;
use crate::sync::{Arc, Mutex, lock};

/// How many files are kept open, with up to two descriptors each: half of the usual limit
/// of 1,024.
const MOST: usize = 256;

/// A file kept open.
#[derive(Debug)]
pub(super) struct Kept {
    pub file: File,
    /// The same file for reads past the page cache: other threads read through the first
    /// one at the same time, so that one cannot be switched.
    direct: Option<File>,
}

impl Kept {
    pub fn new(file: File, direct: bool) -> Self {
        let direct = direct.then(|| reopen_direct(&file)).flatten();
        Self { file, direct }
    }

    pub fn cold(&self) -> Cold<'_> {
        self.direct.as_ref().map_or(Cold::Buffered, Cold::Through)
    }
}

/// The very same file, whatever lies at its path by now.
fn reopen_direct(file: &File) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path).ok()
}

/// Files kept open, by their number; the one unused for longest goes first.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    kept: HashMap<u32, (Arc<Kept>, u64)>,
    uses: u64,
}

impl Descriptors {
    pub fn get(&self, number: u32) -> Option<Arc<Kept>> {
        let mut table = lock(&self.table);
        table.uses += 1;
        let now = table.uses;
        let (kept, used) = table.kept.get_mut(&number)?;
        *used = now;
        Some(Arc::clone(kept))
    }

    /// Keeps a file; if another thread has kept it meanwhile, that one's counts.
    pub fn insert(&self, number: u32, kept: Kept) -> Arc<Kept> {
        let mut table = lock(&self.table);
        table.uses += 1;
        let now = table.uses;
        if table.kept.len() >= MOST && !table.kept.contains_key(&number) {
            let oldest = table.kept.iter().min_by_key(|(_, (_, used))| *used);
            let oldest = oldest.map(|(&number, _)| number);
            oldest.map(|number| table.kept.remove(&number));
        }
        let (kept, used) = table.kept.entry(number).or_insert_with(|| (Arc::new(kept), now));
        *used = now;
        Arc::clone(kept)
    }

    pub fn remove(&self, number: u32) {
        lock(&self.table).kept.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Kept {
        Kept::new(File::open("/dev/null").expect("opened"), false)
    }

    #[test]
    fn the_table_is_bounded_and_lets_go_of_what_was_unused_longest() {
        let descriptors = Descriptors::default();
        for number in 0..MOST as u32 {
            descriptors.insert(number, kept());
        }
        assert!(descriptors.get(0).is_some());
        descriptors.insert(1000, kept());
        assert!(descriptors.get(0).is_some());
        assert!(descriptors.get(1).is_none());
        assert_eq!(lock(&descriptors.table).kept.len(), MOST);
        descriptors.remove(0);
        assert!(descriptors.get(0).is_none());
    }

    #[test]
    fn two_threads_that_open_one_file_share_it() {
        let descriptors = Descriptors::default();
        let first = descriptors.insert(7, kept());
        let second = descriptors.insert(7, kept());
        assert!(Arc::ptr_eq(&first, &second));
    }
}

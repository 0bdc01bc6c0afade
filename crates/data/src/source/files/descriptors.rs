//! A bounded table of files kept open.
//!
//! Opening a file that the kernel has cached costs a tenth of reading 100 KB of it. When the table
//! is full, files of one sample each are not replaced: each is used once an epoch, so replacing
//! gains nothing. Files of many samples are replaced by the clock algorithm (second chance).
//!
//! The tables of all sources of a process share one [`DescriptorBudget`], so that training and
//! validation, or the parts of a joined dataset, do not exhaust the descriptors together.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use belady_base::open_files;
use belady_base::sync::{Arc, Mutex, lock};
use rustix::fs::Stat;

use crate::file::{Cold, DirectFile};

/// The most files kept open: the kernel needs about a kilobyte for each.
const MOST: u64 = 32 << 10;
/// Tables of fewer files than this may use the last quarter of the descriptors too: a source of
/// large files needs only a few, and needs them more than one of a million small files.
const FEW: usize = 32;

/// The descriptors that all tables of this process use.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A file kept open.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub file: File,
    direct: Option<DirectFile>,
    /// The time of change at the first check.
    touched: OnceLock<(i64, u64)>,
}

impl OpenFile {
    pub fn new(file: File, direct: bool) -> Self {
        Self { file, direct: direct.then(DirectFile::default), touched: OnceLock::new() }
    }

    /// Whether it was renamed, linked or written to since the first call.
    pub fn is_touched(&self, stat: &Stat) -> bool {
        let now = (stat.st_ctime, stat.st_ctime_nsec);
        *self.touched.get_or_init(|| now) != now
    }

    pub fn cold(&self) -> Cold<'_> {
        self.direct.as_ref().map_or(Cold::Buffered, Cold::Direct)
    }
}

/// The descriptors that several tables may use together.
#[derive(Clone, Copy, Debug)]
struct DescriptorBudget {
    /// `None` for half of the process's limit, which an engine raises when it starts.
    most: Option<u64>,
    taken: &'static AtomicU64,
}

impl DescriptorBudget {
    /// Takes descriptors for a table of `kept` files, if there are enough.
    fn take(self, descriptors: u64, kept: usize) -> bool {
        let half = || (open_files::limit() / 2).min(MOST * descriptors);
        let most = self.most.unwrap_or_else(half);
        let most = if kept < FEW { most } else { most - most / 4 };
        let more = |taken: u64| Some(taken + descriptors).filter(|&taken| taken <= most);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn release(self, descriptors: u64) {
        self.taken.fetch_sub(descriptors, Ordering::Relaxed);
    }
}

/// Files kept open, by their number.
#[derive(Debug)]
pub(super) struct Descriptors {
    budget: DescriptorBudget,
    /// Descriptors for each file.
    each: u64,
    /// Whether a new file replaces another when the table is full.
    replaces: bool,
    table: Mutex<DescriptorTable>,
}

#[derive(Debug, Default)]
struct DescriptorTable {
    kept: HashMap<u32, TableSlot, BuildHasherDefault<MultiplyHasher>>,
    /// What the clock's hand goes over: every number that is kept, and possibly removed ones.
    round: Vec<u32>,
    hand: usize,
}

#[derive(Debug)]
struct TableSlot {
    file: Arc<OpenFile>,
    used: bool,
}

/// A hash of one multiplication, for numbers that no attacker chooses.
#[derive(Debug, Default)]
struct MultiplyHasher(u64);

impl Hasher for MultiplyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // 2^64 divided by the golden ratio (Knuth's multiplicative hash).
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Descriptors {
    /// Creates a table that uses at most half of the process's descriptors, `each` for a file.
    pub fn new(each: u64, replaces: bool) -> Self {
        Self::of(DescriptorBudget { most: None, taken: &TAKEN }, each, replaces)
    }

    fn of(budget: DescriptorBudget, each: u64, replaces: bool) -> Self {
        Self { budget, each, replaces, table: Mutex::default() }
    }

    pub fn get(&self, number: u32) -> Option<Arc<OpenFile>> {
        let mut table = lock(&self.table);
        let slot = table.kept.get_mut(&number)?;
        slot.used = true;
        Some(Arc::clone(&slot.file))
    }

    /// Keeps a file if the budget allows, instead of the one that was there `before`. If another
    /// thread has inserted one meanwhile, that one is returned.
    pub fn insert(
        &self,
        number: u32,
        file: OpenFile,
        before: Option<&Arc<OpenFile>>,
    ) -> Arc<OpenFile> {
        let mut table = lock(&self.table);
        let file = Arc::new(file);
        if let Some(slot) = table.kept.get_mut(&number) {
            if before.is_some_and(|before| Arc::ptr_eq(before, &slot.file)) {
                // The caller still has the old one, so nothing is closed under the lock.
                slot.file = Arc::clone(&file);
            }
            return Arc::clone(&slot.file);
        }
        let slot = TableSlot { file: Arc::clone(&file), used: false };
        let gone = if self.budget.take(self.each, table.round.len()) {
            table.add(number, slot)
        } else if self.replaces {
            table.replace(number, slot)
        } else {
            Some(slot)
        };
        drop(table);
        // Closed without the lock: closing can be slow.
        drop(gone);
        file
    }

    pub fn remove(&self, number: u32) {
        let gone = lock(&self.table).kept.remove(&number);
        drop(gone);
    }

    /// Closes all files.
    pub fn clear(&self) {
        let gone = std::mem::take(&mut *lock(&self.table));
        self.budget.release(self.each * gone.round.len() as u64);
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        self.clear();
    }
}

impl DescriptorTable {
    fn add(&mut self, number: u32, slot: TableSlot) -> Option<TableSlot> {
        self.round.push(number);
        self.kept.insert(number, slot)
    }

    /// Inserts a file in the place of another, and returns the one that is closed: the new one, if
    /// the table is empty.
    fn replace(&mut self, number: u32, slot: TableSlot) -> Option<TableSlot> {
        if self.round.is_empty() {
            return Some(slot);
        }
        loop {
            self.hand = (self.hand + 1) % self.round.len();
            match self.kept.get_mut(&self.round[self.hand]) {
                Some(slot) if slot.used => slot.used = false,
                _ => break,
            }
        }
        let gone = std::mem::replace(&mut self.round[self.hand], number);
        let gone = self.kept.remove(&gone);
        self.kept.insert(number, slot);
        gone
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn open_file() -> OpenFile {
        OpenFile::new(File::open("/dev/null").expect("opened"), false)
    }

    /// Returns a budget that no other table shares.
    fn budget(most: u64) -> DescriptorBudget {
        DescriptorBudget { most: Some(most), taken: Box::leak(Box::default()) }
    }

    fn table_of(most: u64) -> Descriptors {
        Descriptors::of(budget(most), 1, true)
    }

    #[test]
    fn a_full_table_replaces_a_file_that_was_not_used() {
        let descriptors = table_of(8);
        for number in 0..8 {
            descriptors.insert(number, open_file(), None);
        }
        for number in (0..8).filter(|&number| number != 5) {
            assert!(descriptors.get(number).is_some());
        }
        descriptors.insert(1000, open_file(), None);
        assert!(descriptors.get(5).is_none() && descriptors.get(1000).is_some());
        assert!((0..8).filter(|&number| number != 5).all(|n| descriptors.get(n).is_some()));
        descriptors.remove(0);
        assert!(descriptors.get(0).is_none());
    }

    proptest! {
        #[test]
        fn every_number_finds_its_own_file(
            most in 1u64..6,
            moves in prop::collection::vec((0u32..10, any::<bool>()), 0..60),
        ) {
            let descriptors = table_of(most);
            let mut last = HashMap::new();
            for (number, remove) in moves {
                if remove {
                    descriptors.remove(number);
                    prop_assert!(descriptors.get(number).is_none());
                } else if descriptors.get(number).is_none() {
                    last.insert(number, descriptors.insert(number, open_file(), None));
                }
                let open = (0..10).filter_map(|number| Some((number, descriptors.get(number)?)));
                let open: Vec<_> = open.collect();
                prop_assert!(open.len() as u64 <= most);
                prop_assert!(open.iter().all(|(number, file)| Arc::ptr_eq(file, &last[number])));
            }
        }
    }

    #[test]
    fn files_of_one_sample_stay_when_the_table_is_full() {
        let descriptors = Descriptors::of(budget(8), 1, false);
        for number in 0..100 {
            descriptors.insert(number, open_file(), None);
        }
        assert!((0..100).all(|number| descriptors.get(number).is_some() == (number < 8)));
    }

    #[test]
    fn two_threads_that_open_one_file_share_it() {
        let descriptors = table_of(2);
        let first = descriptors.insert(7, open_file(), None);
        let second = descriptors.insert(7, open_file(), None);
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn all_tables_together_stay_within_one_budget() {
        let budget = budget(200);
        let large = Descriptors::of(budget, 2, true);
        let small = Descriptors::of(budget, 1, true);
        let open = |table: &Descriptors| (0..500).filter(|&n| table.get(n).is_some()).count();
        for number in 0..500 {
            large.insert(number, open_file(), None);
        }
        assert_eq!(open(&large), 75, "the last quarter is for tables of few files");
        for number in 0..500 {
            small.insert(number, open_file(), None);
        }
        assert_eq!((open(&large), open(&small)), (75, FEW));
        let other = Descriptors::of(budget, 1, true);
        for number in 0..500 {
            other.insert(number, open_file(), None);
        }
        assert_eq!(open(&other), 18, "two hundred together");
        drop(small);
        large.clear();
        assert_eq!((open(&large), budget.taken.load(Ordering::Relaxed)), (0, 18));
        drop(other);
        drop(large);
        assert_eq!(budget.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn without_a_budget_files_are_used_and_closed() {
        let descriptors = table_of(0);
        let file = descriptors.insert(3, open_file(), None);
        assert!(descriptors.get(3).is_none());
        assert_eq!(Arc::strong_count(&file), 1);
    }
}

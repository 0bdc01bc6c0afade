//! Files kept open: a bounded table.
//!
//! Opening a file that the kernel knows costs a tenth of reading 100 KB of it. When the table is
//! full, files of one sample each stay as they are: each is used once an epoch, so one is as good
//! as another, and whoever went for a newcomer would be the next one wanted. For files of many
//! samples a clock decides: a hand goes round and takes the first that was not used since it last
//! came by.
//!
//! The tables of all sources of a process share its descriptors ([`Budget`]): training and
//! validation, or the parts of a joined dataset, must not take them all together.

use std::collections::HashMap;
use std::fs::File;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::Stat;

use crate::file::{Cold, Direct};
use crate::open_files;
use crate::sync::{Arc, Mutex, lock};

/// Files kept open at most: the kernel needs about a kilobyte for each.
const MOST: u64 = 32 << 10;
/// A table of so few files may have the last quarter of the descriptors too: a source of large
/// files needs a few, and needs them more than one of a million small files.
const FEW: usize = 32;

/// How many descriptors all tables of this process have.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// A file kept open.
#[derive(Debug)]
pub(super) struct Kept {
    pub file: File,
    direct: Option<Direct>,
    /// When it was last renamed, linked or written to, as it was first seen.
    touched: OnceLock<(i64, u64)>,
}

impl Kept {
    pub fn new(file: File, direct: bool) -> Self {
        Self { file, direct: direct.then(Direct::default), touched: OnceLock::new() }
    }

    /// Whether it was renamed, linked or written to since this was first asked.
    pub fn is_touched(&self, stat: &Stat) -> bool {
        let now = (stat.st_ctime, stat.st_ctime_nsec);
        *self.touched.get_or_init(|| now) != now
    }

    pub fn cold(&self) -> Cold<'_> {
        self.direct.as_ref().map_or(Cold::Buffered, Cold::Through)
    }
}

/// Descriptors that may be taken, by several tables together.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// `None`: half of those that the process may have, whose number changes when an engine starts.
    most: Option<u64>,
    taken: &'static AtomicU64,
}

impl Budget {
    /// Takes some if there are so many, for a table that has `kept` files.
    fn take(self, descriptors: u64, kept: usize) -> bool {
        let half = || (open_files::limit() / 2).min(MOST * descriptors);
        let most = self.most.unwrap_or_else(half);
        let most = if kept < FEW { most } else { most - most / 4 };
        let more = |taken: u64| Some(taken + descriptors).filter(|&taken| taken <= most);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(self, descriptors: u64) {
        self.taken.fetch_sub(descriptors, Ordering::Relaxed);
    }
}

/// Files kept open, by their number.
#[derive(Debug)]
pub(super) struct Descriptors {
    budget: Budget,
    /// Descriptors that a file takes.
    each: u64,
    /// Whether a newcomer takes another's place when there is no more room.
    replaces: bool,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    kept: HashMap<u32, Place, BuildHasherDefault<Spread>>,
    /// What the hand goes over: every number that is kept, and maybe some that went otherwise.
    round: Vec<u32>,
    hand: usize,
}

#[derive(Debug)]
struct Place {
    kept: Arc<Kept>,
    used: bool,
}

/// A hash for numbers that nobody outside chooses: one multiplication.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        // 2^64 over the golden ratio, as Knuth has it.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Descriptors {
    /// A table within half of the descriptors that this process may have, if each file takes so
    /// many of them.
    pub fn new(each: u64, replaces: bool) -> Self {
        Self::of(Budget { most: None, taken: &TAKEN }, each, replaces)
    }

    fn of(budget: Budget, each: u64, replaces: bool) -> Self {
        Self { budget, each, replaces, table: Mutex::default() }
    }

    pub fn get(&self, number: u32) -> Option<Arc<Kept>> {
        let mut table = lock(&self.table);
        let place = table.kept.get_mut(&number)?;
        place.used = true;
        Some(Arc::clone(&place.kept))
    }

    /// Keeps a file if there is room, in the place of the one that was `before`; if another thread has
    /// kept it meanwhile, that one's counts.
    pub fn insert(&self, number: u32, kept: Kept, before: Option<&Arc<Kept>>) -> Arc<Kept> {
        let mut table = lock(&self.table);
        let kept = Arc::new(kept);
        if let Some(place) = table.kept.get_mut(&number) {
            if before.is_some_and(|before| Arc::ptr_eq(before, &place.kept)) {
                // The caller has it still, so nothing is closed under the lock.
                place.kept = Arc::clone(&kept);
            }
            return Arc::clone(&place.kept);
        }
        let place = Place { kept: Arc::clone(&kept), used: false };
        let gone = if self.budget.take(self.each, table.round.len()) {
            table.add(number, place)
        } else if self.replaces {
            table.replace(number, place)
        } else {
            Some(place)
        };
        drop(table);
        // Closing takes its time.
        drop(gone);
        kept
    }

    pub fn remove(&self, number: u32) {
        let gone = lock(&self.table).kept.remove(&number);
        drop(gone);
    }

    /// Lets go of all files.
    pub fn clear(&self) {
        let gone = std::mem::take(&mut *lock(&self.table));
        self.budget.give_back(self.each * gone.round.len() as u64);
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Table {
    fn add(&mut self, number: u32, place: Place) -> Option<Place> {
        self.round.push(number);
        self.kept.insert(number, place)
    }

    /// What had to go for it: itself, if there is nothing else.
    fn replace(&mut self, number: u32, place: Place) -> Option<Place> {
        if self.round.is_empty() {
            return Some(place);
        }
        loop {
            self.hand = (self.hand + 1) % self.round.len();
            match self.kept.get_mut(&self.round[self.hand]) {
                Some(place) if place.used => place.used = false,
                _ => break,
            }
        }
        let gone = std::mem::replace(&mut self.round[self.hand], number);
        let gone = self.kept.remove(&gone);
        self.kept.insert(number, place);
        gone
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept() -> Kept {
        Kept::new(File::open("/dev/null").expect("opened"), false)
    }

    /// Of so many descriptors that no other table takes.
    fn budget(most: u64) -> Budget {
        Budget { most: Some(most), taken: Box::leak(Box::default()) }
    }

    fn table_of(most: u64) -> Descriptors {
        Descriptors::of(budget(most), 1, true)
    }

    #[test]
    fn the_table_is_bounded_and_lets_go_of_what_was_not_used() {
        let descriptors = table_of(8);
        for number in 0..8 {
            descriptors.insert(number, kept(), None);
        }
        for number in (0..8).filter(|&number| number != 5) {
            assert!(descriptors.get(number).is_some());
        }
        descriptors.insert(1000, kept(), None);
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
                    last.insert(number, descriptors.insert(number, kept(), None));
                }
                let open = (0..10).filter_map(|number| Some((number, descriptors.get(number)?)));
                let open: Vec<_> = open.collect();
                prop_assert!(open.len() as u64 <= most);
                prop_assert!(open.iter().all(|(number, file)| Arc::ptr_eq(file, &last[number])));
            }
        }
    }

    #[test]
    fn files_of_one_sample_stay_when_there_is_no_more_room() {
        let descriptors = Descriptors::of(budget(8), 1, false);
        for number in 0..100 {
            descriptors.insert(number, kept(), None);
        }
        assert!((0..100).all(|number| descriptors.get(number).is_some() == (number < 8)));
    }

    #[test]
    fn two_threads_that_open_one_file_share_it() {
        let descriptors = table_of(2);
        let first = descriptors.insert(7, kept(), None);
        let second = descriptors.insert(7, kept(), None);
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn tables_that_each_took_half_of_the_descriptors_took_them_all() {
        let budget = budget(200);
        let large = Descriptors::of(budget, 2, true);
        let small = Descriptors::of(budget, 1, true);
        let open = |table: &Descriptors| (0..500).filter(|&n| table.get(n).is_some()).count();
        for number in 0..500 {
            large.insert(number, kept(), None);
        }
        assert_eq!(open(&large), 75, "the last quarter is for those who need few");
        for number in 0..500 {
            small.insert(number, kept(), None);
        }
        assert_eq!((open(&large), open(&small)), (75, FEW));
        let other = Descriptors::of(budget, 1, true);
        for number in 0..500 {
            other.insert(number, kept(), None);
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
    fn where_there_is_no_room_at_all_files_are_used_and_closed() {
        let descriptors = table_of(0);
        let file = descriptors.insert(3, kept(), None);
        assert!(descriptors.get(3).is_none());
        assert_eq!(Arc::strong_count(&file), 1);
    }
}

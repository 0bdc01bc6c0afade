//! Files kept open: a bounded table.
//!
//! Opening a file that the kernel knows costs a tenth of reading 100 KB of it. Which file goes
//! when the table is full is decided by a clock: a hand goes round and takes the first that was
//! not used since it last came by.

use std::collections::HashMap;
use std::fs::File;

use rustix::process::{Resource, getrlimit};

use crate::file::{Cold, Direct};
use crate::sync::{Arc, Mutex, lock};

/// Files kept open at most: the kernel needs about a kilobyte for each.
const MOST: u64 = 32 << 10;

/// A file kept open.
#[derive(Debug)]
pub(super) struct Kept {
    pub file: File,
    direct: Option<Direct>,
}

impl Kept {
    pub fn new(file: File, direct: bool) -> Self {
        Self { file, direct: direct.then(Direct::default) }
    }

    pub fn cold(&self) -> Cold<'_> {
        self.direct.as_ref().map_or(Cold::Buffered, Cold::Through)
    }
}

/// Files kept open, by their number.
#[derive(Debug)]
pub(super) struct Descriptors {
    most: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    places: HashMap<u32, usize>,
    kept: Vec<Place>,
    hand: usize,
}

#[derive(Debug)]
struct Place {
    number: u32,
    kept: Arc<Kept>,
    used: bool,
}

impl Descriptors {
    /// A table for half of the descriptors that this process may have, if each file takes so
    /// many of them.
    pub fn new(each: u64) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::of((limit / 2 / each).clamp(1, MOST) as usize)
    }

    fn of(most: usize) -> Self {
        Self { most, table: Mutex::default() }
    }

    pub fn get(&self, number: u32) -> Option<Arc<Kept>> {
        let mut table = lock(&self.table);
        let at = *table.places.get(&number)?;
        let place = &mut table.kept[at];
        place.used = true;
        Some(Arc::clone(&place.kept))
    }

    /// Keeps a file; if another thread has kept it meanwhile, that one's counts.
    pub fn insert(&self, number: u32, kept: Kept) -> Arc<Kept> {
        let mut table = lock(&self.table);
        if let Some(&at) = table.places.get(&number) {
            return Arc::clone(&table.kept[at].kept);
        }
        let place = Place { number, kept: Arc::new(kept), used: false };
        let kept = Arc::clone(&place.kept);
        let gone = table.add(place, self.most);
        drop(table);
        // Closing takes its time.
        drop(gone);
        kept
    }

    pub fn remove(&self, number: u32) {
        let mut table = lock(&self.table);
        let Some(at) = table.places.remove(&number) else { return };
        table.kept.swap_remove(at);
        if let Some(moved) = table.kept.get(at) {
            let moved = moved.number;
            table.places.insert(moved, at);
        }
    }
}

impl Table {
    /// What had to go for it.
    fn add(&mut self, place: Place, most: usize) -> Option<Place> {
        let number = place.number;
        if self.kept.len() < most {
            self.places.insert(number, self.kept.len());
            self.kept.push(place);
            return None;
        }
        loop {
            self.hand = (self.hand + 1) % self.kept.len();
            if !std::mem::take(&mut self.kept[self.hand].used) {
                break;
            }
        }
        let gone = std::mem::replace(&mut self.kept[self.hand], place);
        self.places.remove(&gone.number);
        self.places.insert(number, self.hand);
        Some(gone)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept() -> Kept {
        Kept::new(File::open("/dev/null").expect("opened"), false)
    }

    #[test]
    fn the_table_is_bounded_and_lets_go_of_what_was_not_used() {
        let descriptors = Descriptors::of(8);
        for number in 0..8 {
            descriptors.insert(number, kept());
        }
        for number in (0..8).filter(|&number| number != 5) {
            assert!(descriptors.get(number).is_some());
        }
        descriptors.insert(1000, kept());
        assert!(descriptors.get(5).is_none() && descriptors.get(1000).is_some());
        assert!((0..8).filter(|&number| number != 5).all(|n| descriptors.get(n).is_some()));
        descriptors.remove(0);
        assert!(descriptors.get(0).is_none());
    }

    proptest! {
        #[test]
        fn every_number_finds_its_own_file(
            most in 1usize..6,
            moves in prop::collection::vec((0u32..10, any::<bool>()), 0..60),
        ) {
            let descriptors = Descriptors::of(most);
            let mut last = HashMap::new();
            for (number, remove) in moves {
                if remove {
                    descriptors.remove(number);
                    prop_assert!(descriptors.get(number).is_none());
                } else if descriptors.get(number).is_none() {
                    last.insert(number, descriptors.insert(number, kept()));
                }
                let open = (0..10).filter_map(|number| Some((number, descriptors.get(number)?)));
                let open: Vec<_> = open.collect();
                prop_assert!(open.len() <= most);
                prop_assert!(open.iter().all(|(number, file)| Arc::ptr_eq(file, &last[number])));
            }
        }
    }

    #[test]
    fn two_threads_that_open_one_file_share_it() {
        let descriptors = Descriptors::of(2);
        let first = descriptors.insert(7, kept());
        let second = descriptors.insert(7, kept());
        assert!(Arc::ptr_eq(&first, &second));
    }
}

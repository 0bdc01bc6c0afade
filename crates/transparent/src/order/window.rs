//! The window: space for transient copies of files that no level has space to keep.
//!
//! A file counts from its fetch until no process has its evicted copy open, so the copies in the
//! window never exceed its capacity (`the_capacity_is_never_exceeded_and_a_naive_window_agrees`).
//! Copies that were read stay until their space is needed, so a file opened twice in a row is
//! served twice.

use std::collections::{BTreeMap, HashMap};

use super::names::NameId;

/// The largest window: seconds of a fast reader.
const MOST: u64 = 1 << 30;
/// The most old copies that are considered for eviction. Copies arrive roughly in reading order.
const LOOKED_AT: usize = 4096;

/// Returns the window's bytes on a level with this quota.
pub fn window_bytes(quota: u64) -> u64 {
    (quota / 8).min(MOST)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowEntryState {
    InFlight,
    Present,
    Evicted,
}

#[derive(Clone, Copy, Debug)]
struct WindowEntry {
    bytes: u64,
    state: WindowEntryState,
    /// Its key in [`PassWindow::present`] while it is present.
    arrived: u64,
}

/// The answer to a request for space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The file may be fetched.
    Granted,
    /// Not yet. These copies are evicted for it. Ask again when they are released or the program
    /// has read on.
    Later(Vec<NameId>),
    /// The file does not fit into an empty window.
    TooLarge,
}

/// The copies in the window.
#[derive(Debug)]
pub struct PassWindow {
    capacity: u64,
    /// Bytes of all entries: in flight, present or evicted.
    used: u64,
    entries: HashMap<NameId, WindowEntry>,
    /// Present entries, oldest first.
    present: BTreeMap<u64, NameId>,
    next: u64,
}

impl PassWindow {
    pub fn new(capacity: u64) -> Self {
        Self { capacity, used: 0, entries: HashMap::new(), present: BTreeMap::new(), next: 0 }
    }

    pub fn fits(&self, bytes: u64) -> bool {
        bytes <= self.capacity
    }

    /// Requests space for a file that is not in the window. `is_done` returns whether a file was
    /// read or will not be.
    pub fn admit(
        &mut self,
        name: NameId,
        bytes: u64,
        is_done: impl Fn(NameId) -> bool,
    ) -> Admission {
        if !self.fits(bytes) {
            return Admission::TooLarge;
        }
        if self.used + bytes <= self.capacity {
            self.add(name, bytes);
            return Admission::Granted;
        }
        // Evicted copies still count: a process may have them open for hours.
        let mut missing = self.used + bytes - self.capacity;
        let mut victims = vec![];
        for &entry in self.present.values().take(LOOKED_AT).filter(|&&entry| is_done(entry)) {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(self.entries[&entry].bytes);
            victims.push(entry);
        }
        for &victim in &victims {
            self.evict(victim);
        }
        Admission::Later(victims)
    }

    fn add(&mut self, name: NameId, bytes: u64) {
        let entry = WindowEntry { bytes, state: WindowEntryState::InFlight, arrived: 0 };
        let before = self.entries.insert(name, entry);
        debug_assert!(before.is_none(), "{name:?} is in the window already");
        self.used += bytes;
    }

    /// Marks a file as present.
    pub fn arrived(&mut self, name: NameId) {
        if let Some(entry) = self.entries.get_mut(&name)
            && entry.state == WindowEntryState::InFlight
        {
            entry.state = WindowEntryState::Present;
            entry.arrived = self.next;
            self.present.insert(self.next, name);
            self.next += 1;
        }
    }

    /// Marks a file as evicted.
    fn evict(&mut self, name: NameId) {
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.state = WindowEntryState::Evicted;
            self.present.remove(&entry.arrived);
        }
    }

    /// Removes a file that is released or was not fetched. Returns its bytes if it had an entry.
    pub fn remove(&mut self, name: NameId) -> Option<u64> {
        let entry = self.entries.remove(&name)?;
        if entry.state == WindowEntryState::Present {
            self.present.remove(&entry.arrived);
        }
        self.used -= entry.bytes;
        Some(entry.bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_window_is_an_eighth_of_the_quota_up_to_a_limit() {
        assert_eq!(window_bytes(800), 100);
        assert_eq!(window_bytes(100 << 30), 1 << 30);
        assert_eq!(window_bytes(0), 0);
    }

    #[test]
    fn read_copies_are_evicted_when_space_is_needed() {
        let mut window = PassWindow::new(10);
        for name in [1, 2, 3].map(NameId) {
            assert_eq!(window.admit(name, 3, |_| false), Admission::Granted);
            window.arrived(name);
        }
        assert_eq!(window.admit(NameId(4), 11, |_| true), Admission::TooLarge);
        assert_eq!(window.admit(NameId(4), 3, |_| false), Admission::Later(vec![]));
        let done = |name| name != NameId(1);
        assert_eq!(window.admit(NameId(4), 4, done), Admission::Later(vec![NameId(2)]));
        assert_eq!(window.remove(NameId(2)), Some(3));
        assert_eq!(window.admit(NameId(4), 4, done), Admission::Granted);
        assert_eq!(window.used, 10);
    }

    #[test]
    fn a_copy_that_stays_open_does_not_block_others() {
        let mut window = PassWindow::new(10);
        for name in [1, 2, 3].map(NameId) {
            assert_eq!(window.admit(name, 3, |_| true), Admission::Granted);
            window.arrived(name);
        }
        assert_eq!(window.admit(NameId(4), 3, |_| true), Admission::Later(vec![NameId(1)]));
        // The first one may never be closed.
        assert_eq!(window.admit(NameId(4), 3, |_| true), Admission::Later(vec![NameId(2)]));
        assert_eq!(window.remove(NameId(2)), Some(3));
        assert_eq!(window.admit(NameId(4), 3, |_| true), Admission::Granted);
    }

    /// A naive window that counts all entries each time.
    #[derive(Default)]
    struct Naive(BTreeMap<NameId, (u64, WindowEntryState, usize)>);

    impl Naive {
        fn sum(&self) -> u64 {
            self.0.values().map(|entry| entry.0).sum()
        }

        fn admit(&mut self, name: NameId, bytes: u64, done: u32, capacity: u64) -> Admission {
            if bytes > capacity {
                return Admission::TooLarge;
            }
            if self.sum() + bytes <= capacity {
                self.0.insert(name, (bytes, WindowEntryState::InFlight, 0));
                return Admission::Granted;
            }
            let mut oldest: Vec<(usize, NameId)> = self
                .0
                .iter()
                .filter(|(_, entry)| entry.1 == WindowEntryState::Present)
                .map(|(&name, entry)| (entry.2, name))
                .collect();
            oldest.retain(|(_, name)| name.0 < done);
            oldest.sort_unstable();
            let mut victims = vec![];
            for (_, victim) in oldest {
                let freed: u64 = victims.iter().map(|name| self.0[name].0).sum();
                if self.sum() - freed + bytes > capacity {
                    victims.push(victim);
                }
            }
            for victim in &victims {
                self.0.get_mut(victim).unwrap().1 = WindowEntryState::Evicted;
            }
            Admission::Later(victims)
        }
    }

    proptest! {
        #[test]
        fn the_capacity_is_never_exceeded_and_a_naive_window_agrees(
            capacity in 0u64..60,
            steps in prop::collection::vec((0u8..4, 0u32..12, 0u64..30), 0..120),
        ) {
            let mut window = PassWindow::new(capacity);
            let mut naive = Naive::default();
            for (time, (what, name, number)) in steps.into_iter().enumerate() {
                let name = NameId(name);
                match what {
                    0 | 1 if naive.0.contains_key(&name) => {}
                    0 | 1 => {
                        let done = number as u32;
                        let admission = window.admit(name, number, |entry| entry.0 < done);
                        prop_assert_eq!(admission, naive.admit(name, number, done, capacity));
                    }
                    2 => {
                        window.arrived(name);
                        if let Some(entry) = naive.0.get_mut(&name).filter(|entry| entry.1 == WindowEntryState::InFlight) {
                            (entry.1, entry.2) = (WindowEntryState::Present, time);
                        }
                    }
                    _ => prop_assert_eq!(window.remove(name), naive.0.remove(&name).map(|entry| entry.0)),
                }
                prop_assert!(window.used <= capacity);
                prop_assert_eq!(window.used, naive.sum());
            }
        }
    }
}

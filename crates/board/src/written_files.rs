//! The set of files that the job has opened for writing.
//!
//! Such a file gets no copy for the rest of the run, because the last write to it cannot be
//! observed. The set is a fixed table of hashes that only grows.

use crate::file_stat::FileId;
use crate::index::mix;
use crate::sync::{AtomicU64, Ordering::SeqCst};

pub const SLOTS: usize = 1 << 16;
/// Slots that are probed for a file. If all of them are taken, the file counts as written.
const MOST_PROBES: usize = 64;

fn key(file: FileId) -> u64 {
    mix(file, 0x2545_f491_4f6c_dd1d).max(1)
}

/// Adds a file. Any process may call this; files are never removed.
pub fn add(slots: &[AtomicU64], file: FileId) {
    let key = key(file);
    for slot in probes(slots, key) {
        match slot.compare_exchange(0, key, SeqCst, SeqCst) {
            Ok(_) => return,
            Err(there) if there == key => return,
            Err(_) => {}
        }
    }
    // All probed slots are taken, so `contains` finds no empty slot and returns true.
}

pub fn contains(slots: &[AtomicU64], file: FileId) -> bool {
    let key = key(file);
    for slot in probes(slots, key) {
        match slot.load(SeqCst) {
            0 => return false,
            there if there == key => return true,
            _ => {}
        }
    }
    true
}

fn probes(slots: &[AtomicU64], key: u64) -> impl Iterator<Item = &AtomicU64> {
    let start = key as usize % slots.len();
    slots[start..].iter().chain(slots).take(MOST_PROBES)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_written_file_stays_written_even_when_the_table_is_full() {
        let slots: Vec<AtomicU64> = (0..256).map(|_| AtomicU64::new(0)).collect();
        let file = |ino| FileId { dev: 7, ino };
        for ino in 0..100 {
            assert!(!contains(&slots, file(1000 + ino)));
            add(&slots, file(ino));
            add(&slots, file(ino));
        }
        for ino in 100..2000 {
            add(&slots, file(ino));
        }
        assert!((0..2000).all(|ino| contains(&slots, file(ino))));
    }
}

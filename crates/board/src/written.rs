//! Files that the job has opened for writing: they get no copy in this run, since nobody knows when
//! the last byte is written.

use crate::index::mix;
use crate::record::FileId;
use crate::sync::{AtomicU64, Ordering::SeqCst};

pub const SLOTS: usize = 1 << 16;
/// Beyond this, all files count as written.
const MOST_STEPS: usize = 64;

fn key(file: FileId) -> u64 {
    mix(file, 0x2545_f491_4f6c_dd1d).max(1)
}

/// Any process may add; nobody takes away.
pub fn add(slots: &[AtomicU64], file: FileId) {
    let key = key(file);
    for slot in steps(slots, key) {
        match slot.compare_exchange(0, key, SeqCst, SeqCst) {
            Ok(_) => return,
            Err(there) if there == key => return,
            Err(_) => {}
        }
    }
    // No slot is left near it: then whoever looks here finds no empty slot either.
}

pub fn contains(slots: &[AtomicU64], file: FileId) -> bool {
    let key = key(file);
    for slot in steps(slots, key) {
        match slot.load(SeqCst) {
            0 => return false,
            there if there == key => return true,
            _ => {}
        }
    }
    true
}

fn steps(slots: &[AtomicU64], key: u64) -> impl Iterator<Item = &AtomicU64> {
    let start = key as usize % slots.len();
    slots[start..].iter().chain(slots).take(MOST_STEPS)
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_written_stays_written_even_when_there_is_no_room() {
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

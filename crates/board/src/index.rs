//! Hash tables from a path, a source file or a copy to its record. The launcher is the only writer.
//!
//! A slot is one word: half of the key's hash, and the record's number. When a table gets full, the
//! launcher fills the next one, which is twice as large, switches to it, and frees the old table. A
//! reader of the old table then finds nothing and repeats its lookup in the new one.
//!
//! Written by hand, because the tables are in shared memory and lookups must not allocate or lock.

use crate::file_stat::FileId;
use crate::path::PathKey;
use crate::sync::{AtomicU64, Ordering::SeqCst};

/// Slots of the first table, as a power of two.
pub const FIRST_LOG2: u32 = 16;

/// A key of the index.
#[derive(Clone, Copy, Debug)]
pub enum IndexKey {
    Path(PathKey),
    Source(FileId),
    Copy(FileId),
}

impl IndexKey {
    pub fn hash(self) -> u64 {
        match self {
            Self::Path(path) => path.0[0],
            Self::Source(file) => mix(file, 0x9e37_79b9_7f4a_7c15),
            Self::Copy(file) => mix(file, 0xc2b2_ae3d_27d4_eb4f),
        }
    }
}

pub fn mix(file: FileId, salt: u64) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    fold(fold(file.ino ^ salt, 0xff51_afd7_ed55_8ccd) ^ file.dev, 0xc4ce_b9fe_1a85_ec53)
}

/// Returns the number of the last table, which holds 2^`records_log2` records.
pub fn last_table(records_log2: u32) -> u32 {
    // A record has three keys, and there are four slots per record: at most three quarters full.
    (records_log2 + 2).saturating_sub(FIRST_LOG2)
}

/// Returns the slots of all tables before this one.
pub fn slots_before(table: u32) -> usize {
    (1 << (FIRST_LOG2 + table)) - (1 << FIRST_LOG2)
}

pub fn slots_of(table: u32) -> usize {
    1 << (FIRST_LOG2 + table)
}

/// Returns how many records fit into a table.
pub fn capacity(table: u32) -> u64 {
    slots_of(table) as u64 / 4
}

/// Passes the numbers of records that may have this hash to `found` until it returns an answer.
/// Looks in the table in use, and again if the launcher switched tables meanwhile.
pub fn look_up<'a, T>(
    in_use: impl Fn() -> u32,
    slots: impl Fn(u32) -> &'a [AtomicU64],
    hash: u64,
    mut found: impl FnMut(u32) -> Option<T>,
) -> Option<T> {
    let mut table = in_use();
    loop {
        let answer = look_up_in(slots(table), hash, &mut found);
        let now = in_use();
        if answer.is_some() || now == table {
            return answer;
        }
        table = now;
    }
}

fn look_up_in<T>(
    slots: &[AtomicU64],
    hash: u64,
    mut found: impl FnMut(u32) -> Option<T>,
) -> Option<T> {
    let mask = slots.len() - 1;
    let mut at = hash as usize & mask;
    // Bounded, because a program may have overwritten the table.
    for _ in 0..slots.len() {
        let slot = slots[at].load(SeqCst);
        if slot == 0 {
            return None;
        }
        if slot >> 32 == hash >> 32
            && let Some(answer) = found((slot as u32).wrapping_sub(1))
        {
            return Some(answer);
        }
        at = (at + 1) & mask;
    }
    None
}

/// Inserts a record. Called by the launcher only, and never on a full table.
pub fn insert(slots: &[AtomicU64], hash: u64, number: u32) {
    let mask = slots.len() - 1;
    let mut at = hash as usize & mask;
    while slots[at].load(SeqCst) != 0 {
        at = (at + 1) & mask;
    }
    // SeqCst: the store is visible to a writer of the file before the launcher checks the written
    // files. A weaker order would allow the check to come first.
    slots[at].store(hash >> 32 << 32 | u64::from(number + 1), SeqCst);
}

/// Explores schedules of a writer, a publisher and a growing table.
#[cfg(all(test, feature = "shuttle"))]
mod shuttle_tests {
    use std::sync::Arc;

    use shuttle::sync::atomic::AtomicU32;

    use super::*;
    use crate::written_files;

    const LIVE: u32 = 1;
    const DROPPED: u32 = 2;

    /// A small board: two tables of a few slots, two records of one source file.
    struct Small {
        tables: [Vec<AtomicU64>; 2],
        in_use: AtomicU32,
        written: Vec<AtomicU64>,
        states: [AtomicU32; 2],
    }

    const SOURCE: FileId = FileId { dev: 1, ino: 2 };

    impl Small {
        fn new() -> Self {
            let slots = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
            Self {
                tables: [slots(4), slots(8)],
                in_use: AtomicU32::new(0),
                written: slots(4),
                states: [AtomicU32::new(0), AtomicU32::new(0)],
            }
        }

        fn insert(&self, table: u32, number: u32) {
            insert(&self.tables[table as usize], IndexKey::Source(SOURCE).hash(), number);
        }

        /// Mirrors `BoardPublisher::publish`.
        fn publish(&self, number: u32, grow: bool) {
            self.states[number as usize].store(LIVE, SeqCst);
            if grow {
                for number in 0..=number {
                    self.insert(1, number);
                }
                self.in_use.store(1, SeqCst);
                // The freed table reads as zeros.
                self.tables[0].iter().for_each(|slot| slot.store(0, SeqCst));
            } else {
                self.insert(0, number);
            }
            if written_files::contains(&self.written, SOURCE) {
                self.states[number as usize].store(DROPPED, SeqCst);
            }
        }

        /// Mirrors `Board::mark_written`.
        fn write(&self) {
            written_files::add(&self.written, SOURCE);
            let tables = |table: u32| &self.tables[table as usize][..];
            let hash = IndexKey::Source(SOURCE).hash();
            let _: Option<()> = look_up(
                || self.in_use.load(SeqCst),
                tables,
                hash,
                |number| {
                    let state = &self.states[number as usize];
                    let _ = state.compare_exchange(LIVE, DROPPED, SeqCst, SeqCst);
                    None
                },
            );
        }
    }

    #[test]
    fn no_copy_outlives_a_writer() {
        shuttle::check_random(
            || {
                let small = Arc::new(Small::new());
                let writer = {
                    let small = Arc::clone(&small);
                    shuttle::thread::spawn(move || small.write())
                };
                small.publish(0, false);
                small.publish(1, true);
                writer.join().unwrap();
                for state in &small.states {
                    assert_eq!(state.load(SeqCst), DROPPED);
                }
            },
            20_000,
        );
    }
}

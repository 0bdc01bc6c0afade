//! A table of numbers for few of many indices, read without a lock.
//!
//! Memory for a block of indices is allocated when the first of them is set: an empty table takes
//! 16 bytes per 4,096 indices, a full one 8 bytes per index.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

const BLOCK: usize = 4096;
/// Stands for no number. As a time it precedes all others.
const NONE: i64 = i64::MIN;

/// Numbers for some indices.
#[derive(Debug)]
pub struct SparseTable(Box<[OnceLock<Box<[AtomicI64]>>]>);

impl SparseTable {
    /// Creates an empty table for indices below `len`.
    pub fn new(len: u32) -> Self {
        Self((0..(len as usize).div_ceil(BLOCK)).map(|_| OnceLock::new()).collect())
    }

    /// Returns the number of an index, if it is set.
    pub fn get(&self, index: u32) -> Option<i64> {
        let block = self.0[index as usize / BLOCK].get()?;
        let number = block[index as usize % BLOCK].load(Ordering::Acquire);
        (number != NONE).then_some(number)
    }

    /// Sets the number of an index.
    pub fn set(&self, index: u32, number: i64) {
        let empty = || (0..BLOCK).map(|_| AtomicI64::new(NONE)).collect();
        let block = self.0[index as usize / BLOCK].get_or_init(empty);
        block[index as usize % BLOCK].store(number, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_indices_that_were_set_have_a_number() {
        let table = SparseTable::new(2 * BLOCK as u32 + 1);
        let set = [(0, 7), (4095, -1), (8192, 0)];
        for (index, number) in set {
            assert_eq!(table.get(index), None);
            table.set(index, number);
        }
        for index in 0..=2 * BLOCK as u32 {
            let right = set.iter().find(|(set, _)| *set == index).map(|(_, number)| *number);
            assert_eq!(table.get(index), right, "{index}");
        }
        table.set(0, 8);
        assert_eq!(table.get(0), Some(8));
        assert_eq!(SparseTable::new(0).0.len(), 0);
    }
}

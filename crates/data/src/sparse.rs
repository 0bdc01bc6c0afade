//! Numbers kept for few of many indices, and read without a lock.
//!
//! Memory is made for a block of indices when the first of them gets a number, so that a table in which
//! nothing was ever set takes 16 bytes for every 4,096 indices, and a full one 8 bytes for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

const BLOCK: usize = 4096;
/// Stands for no number. As a time it is before all others.
const NONE: i64 = i64::MIN;

/// A number for each of some indices.
#[derive(Debug)]
pub struct Sparse(Box<[OnceLock<Box<[AtomicI64]>>]>);

impl Sparse {
    /// A table for indices below `len`, in which nothing is set.
    pub fn new(len: u32) -> Self {
        Self((0..(len as usize).div_ceil(BLOCK)).map(|_| OnceLock::new()).collect())
    }

    pub fn get(&self, index: u32) -> Option<i64> {
        let block = self.0[index as usize / BLOCK].get()?;
        let number = block[index as usize % BLOCK].load(Ordering::Acquire);
        (number != NONE).then_some(number)
    }

    /// Sets a number, which replaces the one before.
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
    fn what_is_set_is_there_and_nothing_else_is() {
        let table = Sparse::new(2 * BLOCK as u32 + 1);
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
        assert_eq!(Sparse::new(0).0.len(), 0);
    }
}

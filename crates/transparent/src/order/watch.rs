//! What was opened since the last look, from the counters of the board: nobody posts a message when a
//! copy is opened.
//!
//! Which of two files was opened first between two looks is not known. Records are looked at from where the
//! last open was found: those of a first epoch stand in the order in which it was read.

use super::planner::Standing;

/// The board, as the launcher knows it.
pub trait Sight: Send + Sync + 'static {
    /// Opens of all levels and of the source.
    fn all_opens(&self) -> u64;
    /// Of the record of this number; None beyond the last record.
    fn opens(&self, record: u32) -> Option<u32>;
    /// Of this record, also if its file was refused; None once the record is dropped.
    fn name(&self, record: u32) -> Option<Box<[u8]>>;
    /// What the board says of this file.
    fn standing(&self, name: &[u8]) -> Standing;
}

#[derive(Debug, Default)]
pub struct Watch {
    seen: Vec<u32>,
    all: u64,
    next: usize,
}

impl Watch {
    /// Tells `opened` each record that was opened, and how often. False if there was nothing to look at.
    pub fn look(&mut self, sight: &impl Sight, mut opened: impl FnMut(u32, u32)) -> bool {
        let all = sight.all_opens();
        let new = all.wrapping_sub(std::mem::replace(&mut self.all, all));
        if new == 0 {
            return false;
        }
        while sight.opens(self.seen.len() as u32).is_some() {
            self.seen.push(0);
        }
        let records = self.seen.len();
        let start = self.next;
        let mut found = 0;
        for at in (start..records).chain(0..start.min(records)) {
            // Opens at the source of files without a record are never found: then all are looked at.
            if found >= new {
                break;
            }
            let opens = sight.opens(at as u32).unwrap_or(0);
            let more = opens.wrapping_sub(std::mem::replace(&mut self.seen[at], opens));
            if more > 0 {
                opened(at as u32, more);
                found += u64::from(more);
                self.next = at + 1;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Board(Vec<u32>, u64);

    impl Sight for Board {
        fn all_opens(&self) -> u64 {
            self.1
        }

        fn opens(&self, record: u32) -> Option<u32> {
            self.0.get(record as usize).copied()
        }

        fn name(&self, _record: u32) -> Option<Box<[u8]>> {
            None
        }

        fn standing(&self, _name: &[u8]) -> Standing {
            Standing::Unknown
        }
    }

    proptest! {
        /// Whatever is opened is told once, at the next look, also while records come and files
        /// without a record are opened.
        #[test]
        fn each_open_is_told_once(steps in prop::collection::vec((0u8..9, 0usize..40), 0..200)) {
            let mut board = Board(vec![], 0);
            let mut watch = Watch::default();
            let mut told: Vec<u32> = vec![];
            for (what, which) in steps {
                match what {
                    0..=2 => board.0.push(0),
                    3..=6 if !board.0.is_empty() => {
                        let which = which % board.0.len();
                        board.0[which] += 1;
                        board.1 += 1;
                    }
                    7 => board.1 += 1,
                    _ => {
                        watch.look(&board, |record, times| {
                            told.resize(told.len().max(record as usize + 1), 0);
                            told[record as usize] += times;
                        });
                        told.resize(board.0.len(), 0);
                        prop_assert_eq!(&told, &board.0);
                        let again = watch.look(&board, |_, _| {});
                        prop_assert!(!again);
                    }
                }
            }
        }
    }

    #[test]
    fn records_are_told_in_the_order_in_which_they_are_read() {
        let mut board = Board(vec![0; 6], 0);
        let mut watch = Watch::default();
        let mut told = vec![];
        for burst in [[0, 1, 2], [3, 4, 5], [0, 1, 2]] {
            for record in burst {
                board.0[record] += 1;
                board.1 += 1;
            }
            watch.look(&board, |record, _| told.push(record));
        }
        assert_eq!(told, [0, 1, 2, 3, 4, 5, 0, 1, 2]);
    }
}

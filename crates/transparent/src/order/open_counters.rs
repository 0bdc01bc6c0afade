//! Polls the board's open counters: the shim sends no message when it opens a copy.
//!
//! The order of opens between two polls is unknown. A poll starts after the record of the last
//! open, because the records of a first epoch are in reading order.

use super::launcher::BoardView;

/// The open counters at the last poll.
#[derive(Debug, Default)]
pub struct OpenCounters {
    seen: Vec<u32>,
    all: u64,
    next: usize,
}

impl OpenCounters {
    /// Passes each opened record and its number of opens to `opened`. Returns false if there was no
    /// open.
    pub fn poll(&mut self, board: &impl BoardView, mut opened: impl FnMut(u32, u32)) -> bool {
        let all = board.all_opens();
        let new = all.wrapping_sub(std::mem::replace(&mut self.all, all));
        if new == 0 {
            return false;
        }
        while board.opens(self.seen.len() as u32).is_some() {
            self.seen.push(0);
        }
        let records = self.seen.len();
        let start = self.next;
        let mut found = 0;
        for at in (start..records).chain(0..start.min(records)) {
            // Opens of files without a record are never found; then all records are polled.
            if found >= new {
                break;
            }
            let opens = board.opens(at as u32).unwrap_or(0);
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

    use super::super::launcher::CopyState;
    use super::*;

    struct TestBoard(Vec<u32>, u64);

    impl BoardView for TestBoard {
        fn all_opens(&self) -> u64 {
            self.1
        }

        fn opens(&self, record: u32) -> Option<u32> {
            self.0.get(record as usize).copied()
        }

        fn name(&self, _record: u32) -> Option<Box<[u8]>> {
            None
        }

        fn copy_state(&self, _name: &[u8]) -> CopyState {
            CopyState::Unknown
        }
    }

    proptest! {
        /// Each open is reported once, at the next poll, also while records are added and files
        /// without a record are opened.
        #[test]
        fn each_open_is_reported_once(steps in prop::collection::vec((0u8..9, 0usize..40), 0..200)) {
            let mut board = TestBoard(vec![], 0);
            let mut counters = OpenCounters::default();
            let mut reported: Vec<u32> = vec![];
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
                        counters.poll(&board, |record, times| {
                            reported.resize(reported.len().max(record as usize + 1), 0);
                            reported[record as usize] += times;
                        });
                        reported.resize(board.0.len(), 0);
                        prop_assert_eq!(&reported, &board.0);
                        let again = counters.poll(&board, |_, _| {});
                        prop_assert!(!again);
                    }
                }
            }
        }
    }

    #[test]
    fn records_are_reported_in_reading_order() {
        let mut board = TestBoard(vec![0; 6], 0);
        let mut counters = OpenCounters::default();
        let mut reported = vec![];
        for burst in [[0, 1, 2], [3, 4, 5], [0, 1, 2]] {
            for record in burst {
                board.0[record] += 1;
                board.1 += 1;
            }
            counters.poll(&board, |record, _| reported.push(record));
        }
        assert_eq!(reported, [0, 1, 2, 3, 4, 5, 0, 1, 2]);
    }
}

//! Adds records to the board.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::board::Board;
use crate::index::{self, IndexKey};
use crate::record::{FileRecord, NewRecord, RecordKind, RecordRef};

/// The board cannot hold another record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardFull;

/// Adds records to a board. A board has one publisher, which the launcher keeps behind a lock.
#[derive(Debug)]
pub struct BoardPublisher {
    board: Arc<Board>,
    records: u32,
    table: u32,
}

impl BoardPublisher {
    /// Creates the publisher of a new board.
    pub fn new(board: Arc<Board>) -> Self {
        Self { board, records: 0, table: 0 }
    }

    /// Returns how many records were published.
    pub fn records(&self) -> u32 {
        self.records
    }

    /// Publishes a record. Drop an earlier live record of the same path first: a lookup may find
    /// either.
    ///
    /// A copy whose source was opened for writing meanwhile is dropped at once, so the record need
    /// not be live when this returns. A copy whose source the job may have changed since the
    /// record's snapshot is not validated.
    ///
    /// # Errors
    /// If the board is full.
    pub fn publish(&mut self, new: &NewRecord) -> Result<RecordRef<'_>, BoardFull> {
        let number = self.records;
        if u64::from(number) >= 1 << self.board.records_log2() {
            return Err(BoardFull);
        }
        // SAFETY: inside the mapping, and the record is not published yet.
        unsafe { self.board.record_at(number).write(FileRecord::new(new)) };
        self.records += 1;
        if u64::from(self.records) > index::capacity(self.table) {
            self.grow();
        } else {
            self.insert(self.table, number);
        }
        let entry = self.board.entry(number);
        if matches!(new.kind, RecordKind::Copy { .. })
            && self.board.was_written(entry.record.source_id())
        {
            entry.drop_copy();
        }
        // After the insertion: a process whose change is not counted here yet will find the record.
        if let Some(seen) = new.validated
            && seen.changes == self.board.header().changes.load(SeqCst)
        {
            entry.mark_validated(seen.generation);
        }
        Ok(entry)
    }

    fn insert(&self, table: u32, number: u32) {
        let slots = self.board.slots(table);
        let entry = self.board.entry(number);
        if let RecordKind::Copy { copy, .. } = entry.kind() {
            index::insert(slots, IndexKey::Source(entry.record.source_id()).hash(), number);
            index::insert(slots, IndexKey::Copy(copy).hash(), number);
        }
        // The path last: a process that opens the copy by its path must also find it by its FileId.
        index::insert(slots, IndexKey::Path(entry.path()).hash(), number);
    }

    fn grow(&mut self) {
        let old = self.table;
        self.table += 1;
        for number in 0..self.records {
            if self.board.entry(number).is_live() {
                self.insert(self.table, number);
            }
        }
        self.board.header().index.store(self.table, SeqCst);
        self.board.free_table(old);
    }
}

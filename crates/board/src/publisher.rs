//! The one who writes: adds records to the board.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::board::Board;
use crate::index::{self, Key};
use crate::record::{Entry, Kind, NewRecord, Record};

/// The board has no room for another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// There is one for each board; the launcher keeps it behind a lock.
#[derive(Debug)]
pub struct Publisher {
    board: Arc<Board>,
    records: u32,
    table: u32,
}

impl Publisher {
    pub fn new(board: Arc<Board>) -> Self {
        Self { board, records: 0, table: 0 }
    }

    pub fn records(&self) -> u32 {
        self.records
    }

    /// Everybody finds the file from now on. A file of which an earlier record is live has to be
    /// dropped first: of two, any may be found.
    ///
    /// A copy whose source was opened for writing meanwhile is dropped again; so a record need not
    /// be live when this returns. One whose source the job may have changed meanwhile is not proved.
    ///
    /// # Errors
    /// If the board is full.
    pub fn publish(&mut self, new: &NewRecord) -> Result<Entry<'_>, Full> {
        let number = self.records;
        if u64::from(number) >= 1 << self.board.records_log2() {
            return Err(Full);
        }
        // SAFETY: inside of the mapping, and nobody knows of this record yet.
        unsafe { self.board.record_at(number).write(Record::new(new)) };
        self.records += 1;
        if u64::from(self.records) > index::room(self.table) {
            self.grow();
        } else {
            self.insert(self.table, number);
        }
        let entry = self.board.entry(number);
        if matches!(new.kind, Kind::Copy { .. }) && self.board.was_written(entry.record.source_id())
        {
            entry.drop_copy();
        }
        // Now that everybody finds it: a change that is not seen here is one that finds it.
        if let Some(seen) = new.proved
            && seen.changes == self.board.head().changes.load(SeqCst)
        {
            entry.prove(seen.generation);
        }
        Ok(entry)
    }

    fn insert(&self, table: u32, number: u32) {
        let slots = self.board.slots(table);
        let entry = self.board.entry(number);
        if let Kind::Copy { copy, .. } = entry.kind() {
            index::insert(slots, Key::Source(entry.record.source_id()).hash(), number);
            index::insert(slots, Key::Copy(copy).hash(), number);
        }
        // The name last: who finds the file by it and opens its copy also finds the copy.
        index::insert(slots, Key::Path(entry.path()).hash(), number);
    }

    fn grow(&mut self) {
        let old = self.table;
        self.table += 1;
        for number in 0..self.records {
            if self.board.entry(number).is_live() {
                self.insert(self.table, number);
            }
        }
        self.board.head().index.store(self.table, SeqCst);
        self.board.forget(old);
    }
}

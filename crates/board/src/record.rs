//! Records: one per published file of the dataset.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

use crate::file_stat::{FileId, FileStat};
use crate::header::BoardHeader;
use crate::path::PathKey;

/// What a record says about its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// The file has a copy.
    Copy {
        /// The level of the copy.
        level: usize,
        /// The copy's file.
        copy: FileId,
    },
    /// No level has space for a copy, so requesting one again is pointless.
    Refused,
}

/// A record to publish.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord {
    /// The file's path below the dataset.
    pub path: PathKey,
    /// Where the copy is, if there is one.
    pub kind: RecordKind,
    /// The source's stat.
    pub stat: FileStat,
    /// Whether the path is a symbolic link; stat and bytes are those of its target.
    pub is_link: bool,
    /// The snapshot from before the source was read; None if the copy has to be compared with its
    /// source before its first use.
    pub validated: Option<ChangeSnapshot>,
}

/// How many changes the job had made at some time: see [`crate::Board::change_snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeSnapshot {
    pub(crate) generation: u32,
    pub(crate) changes: u64,
}

const LIVE: u32 = 1;
const DROPPED: u32 = 2;
const LINK: u32 = 1;
const REFUSED: u32 = 2;

/// A record in the mapping. Only its three atomics change after it is published.
#[derive(Debug)]
#[repr(C)]
pub struct FileRecord {
    path: [u64; 2],
    copy: FileId,
    stat: FileStat,
    level: u32,
    flags: u32,
    state: AtomicU32,
    /// The generation in which the copy was last found to equal its source; 0 is none.
    validated: AtomicU32,
    opens: AtomicU32,
}

impl FileRecord {
    pub fn new(new: &NewRecord) -> Self {
        let (level, copy, refused) = match new.kind {
            RecordKind::Copy { level, copy } => (level as u32, copy, 0),
            RecordKind::Refused => (0, FileId::default(), REFUSED),
        };
        Self {
            path: new.path.0,
            copy,
            stat: new.stat,
            level,
            flags: refused | if new.is_link { LINK } else { 0 },
            state: AtomicU32::new(LIVE),
            validated: AtomicU32::new(0),
            opens: AtomicU32::new(0),
        }
    }

    pub fn source_id(&self) -> FileId {
        self.stat.id()
    }
}

/// A published record.
#[derive(Clone, Copy)]
pub struct RecordRef<'a> {
    pub(crate) header: &'a BoardHeader,
    pub(crate) record: &'a FileRecord,
    /// The record's number.
    pub number: u32,
}

impl<'a> RecordRef<'a> {
    /// Returns the source's stat.
    pub fn stat(&self) -> &'a FileStat {
        &self.record.stat
    }

    /// Returns the key of the file's path.
    pub fn path(&self) -> PathKey {
        PathKey(self.record.path)
    }

    /// Returns what the record says about its file.
    pub fn kind(&self) -> RecordKind {
        if self.record.flags & REFUSED != 0 {
            RecordKind::Refused
        } else {
            RecordKind::Copy { level: self.record.level as usize, copy: self.record.copy }
        }
    }

    /// Returns whether the path is a symbolic link.
    pub fn is_link(&self) -> bool {
        self.record.flags & LINK != 0
    }

    /// Returns whether the record is in force.
    pub fn is_live(&self) -> bool {
        self.record.state.load(SeqCst) == LIVE
    }

    /// Returns whether the copy was compared with its source in the current generation.
    pub fn is_validated(&self) -> bool {
        self.record.validated.load(Relaxed) == self.header.generation.load(SeqCst)
    }

    /// Notes that the copy equalled its source in this generation.
    pub fn mark_validated(&self, generation: u32) {
        self.record.validated.store(generation, Relaxed);
    }

    /// Drops the copy, so that it is not used any more. Returns whether it was live.
    pub fn drop_copy(&self) -> bool {
        let was_live = self.retire();
        if was_live {
            self.header.dropped.fetch_add(1, SeqCst);
        }
        was_live
    }

    /// Drops the copy without counting it for the launcher. Returns whether it was live.
    pub fn retire(&self) -> bool {
        self.record.state.swap(DROPPED, SeqCst) == LIVE
    }

    /// Counts an open.
    pub fn count_open(&self) {
        self.record.opens.fetch_add(1, Relaxed);
    }

    /// Returns how often the file was opened.
    pub fn opens(&self) -> u32 {
        self.record.opens.load(Relaxed)
    }
}

impl std::fmt::Debug for RecordRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordRef")
            .field("number", &self.number)
            .field("record", &self.record)
            .finish()
    }
}

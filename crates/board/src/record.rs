//! A record: one file of the dataset.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

use crate::facts::Facts;
use crate::head::Head;
use crate::path::PathKey;

/// A file as the kernel knows it: its device and its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FileId {
    pub dev: u64,
    pub ino: u64,
}

/// What a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is a copy in this level.
    Copy { level: usize, copy: FileId },
    /// There is no room for a copy: nobody need ask again.
    Refused,
}

/// What a file is published with.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord {
    pub path: PathKey,
    pub kind: Kind,
    /// Of the source.
    pub facts: Facts,
    /// The name is that of a symbolic link; the facts and bytes are of what it leads to.
    pub is_link: bool,
    /// What was seen before the source was looked at that the copy is like; None if it has to be
    /// compared with it.
    pub proved: Option<Seen>,
}

/// What the job had changed by then: see [`crate::Board::seen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub(crate) generation: u32,
    pub(crate) changes: u64,
}

const LIVE: u32 = 1;
const DROPPED: u32 = 2;
const LINK: u32 = 1;
const REFUSED: u32 = 2;

/// Written before the index tells of it. Only the three counters change then.
#[derive(Debug)]
#[repr(C)]
pub struct Record {
    path: [u64; 2],
    copy: FileId,
    facts: Facts,
    level: u32,
    flags: u32,
    state: AtomicU32,
    /// The generation in which the copy was last found to be like its source; 0 is none.
    proved: AtomicU32,
    opens: AtomicU32,
}

impl Record {
    pub fn new(new: &NewRecord) -> Self {
        let (level, copy, refused) = match new.kind {
            Kind::Copy { level, copy } => (level as u32, copy, 0),
            Kind::Refused => (0, FileId::default(), REFUSED),
        };
        Self {
            path: new.path.0,
            copy,
            facts: new.facts,
            level,
            flags: refused | if new.is_link { LINK } else { 0 },
            state: AtomicU32::new(LIVE),
            proved: AtomicU32::new(0),
            opens: AtomicU32::new(0),
        }
    }

    pub fn source_id(&self) -> FileId {
        FileId { dev: self.facts.dev, ino: self.facts.ino }
    }
}

/// A record that was found.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub(crate) head: &'a Head,
    pub(crate) record: &'a Record,
    /// Which one it is.
    pub number: u32,
}

impl<'a> Entry<'a> {
    pub fn facts(&self) -> &'a Facts {
        &self.record.facts
    }

    pub fn path(&self) -> PathKey {
        PathKey(self.record.path)
    }

    pub fn kind(&self) -> Kind {
        if self.record.flags & REFUSED != 0 {
            Kind::Refused
        } else {
            Kind::Copy { level: self.record.level as usize, copy: self.record.copy }
        }
    }

    pub fn is_link(&self) -> bool {
        self.record.flags & LINK != 0
    }

    pub fn is_live(&self) -> bool {
        self.record.state.load(SeqCst) == LIVE
    }

    /// Whether the copy need not be compared with its source.
    pub fn is_proved(&self) -> bool {
        self.record.proved.load(Relaxed) == self.head.generation.load(SeqCst)
    }

    /// The copy was like its source when this was the generation.
    pub fn prove(&self, generation: u32) {
        self.record.proved.store(generation, Relaxed);
    }

    /// The copy is not to be used any more; whether this was news.
    pub fn drop_copy(&self) -> bool {
        let news = self.retire();
        if news {
            self.head.dropped.fetch_add(1, SeqCst);
        }
        news
    }

    /// The same by the launcher, which need not be told.
    pub fn retire(&self) -> bool {
        self.record.state.swap(DROPPED, SeqCst) == LIVE
    }

    /// It was opened once more.
    pub fn note_open(&self) {
        self.record.opens.fetch_add(1, Relaxed);
    }

    pub fn opens(&self) -> u32 {
        self.record.opens.load(Relaxed)
    }
}

impl std::fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("number", &self.number).field("record", &self.record).finish()
    }
}

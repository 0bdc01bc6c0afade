//! The head of the board: what does not change during a run, and the counters.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::MOST_LEVELS;
use crate::path::{Dataset, LONGEST};

pub const MAGIC: u64 = u64::from_le_bytes(*b"belady\x00\x01");
/// Threads count in one of these each, so that they seldom meet.
const STRIPES: usize = 16;
/// The source stands behind the levels.
const SOURCE: usize = MOST_LEVELS;

/// When a copy is compared with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revalidate {
    /// Once in a run, when it is first used.
    Start,
    /// Each time it is opened.
    Open,
    Never,
}

#[derive(Debug)]
#[repr(C)]
pub struct Text {
    length: u32,
    bytes: [u8; LONGEST],
}

impl Text {
    pub fn set(&mut self, text: &[u8]) -> Option<()> {
        self.bytes.get_mut(..text.len())?.copy_from_slice(text);
        self.length = text.len() as u32;
        Some(())
    }

    pub fn get(&self) -> &[u8] {
        &self.bytes[..LONGEST.min(self.length as usize)]
    }
}

/// A level: a directory that holds copies under the names of their sources.
#[derive(Debug)]
#[repr(C)]
pub struct Level {
    pub dev: u64,
    pub files: Text,
}

/// What is counted of each level and of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Files opened.
    Opens,
    /// Answers about files that were not opened.
    Stats,
    /// Bytes of the files opened, whether they were read or not.
    Bytes,
}

/// Of one level, or of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub opens: u64,
    pub stats: u64,
    pub bytes: u64,
}

#[derive(Debug)]
#[repr(C, align(128))]
struct Stripe([[AtomicU64; 3]; MOST_LEVELS + 1]);

#[derive(Debug)]
#[repr(C)]
pub struct Head {
    pub magic: u64,
    /// Tells this board from others that may have had its name.
    pub token: u64,
    pub records_log2: u32,
    pub revalidate: u32,
    /// The user who runs the launcher.
    pub owner: u32,
    pub level_count: u32,
    /// The device that the dataset's directory is on; 0 if that is not known.
    pub dev: u64,
    pub given: Text,
    pub real: Text,
    pub levels: [Level; MOST_LEVELS],
    /// Copies that were compared with their source in an earlier generation are compared again.
    pub generation: AtomicU32,
    /// Changes of files that the job has made, whether they had copies or not.
    pub changes: AtomicU64,
    /// Which of the hash tables is in use.
    pub index: AtomicU32,
    /// Copies that were given up, by anyone.
    pub dropped: AtomicU64,
    /// Messages that found no room in the pipe.
    pub lost: AtomicU64,
    stripes: [Stripe; STRIPES],
}

impl Head {
    pub fn dataset(&self) -> Dataset<'_> {
        Dataset { given: self.given.get(), real: self.real.get() }
    }

    pub fn levels(&self) -> &[Level] {
        &self.levels[..MOST_LEVELS.min(self.level_count as usize)]
    }

    pub fn revalidate(&self) -> Revalidate {
        match self.revalidate {
            0 => Revalidate::Start,
            1 => Revalidate::Open,
            _ => Revalidate::Never,
        }
    }

    /// `level` is None for the source.
    pub fn count(&self, level: Option<usize>, what: Counted, by: u64) {
        let place = level.unwrap_or(SOURCE).min(SOURCE);
        self.stripes[stripe()].0[place][what as usize].fetch_add(by, Relaxed);
    }

    pub fn totals(&self, level: Option<usize>) -> Totals {
        let place = level.unwrap_or(SOURCE).min(SOURCE);
        let sum = |what: Counted| {
            self.stripes.iter().map(|stripe| stripe.0[place][what as usize].load(Relaxed)).sum()
        };
        Totals {
            opens: sum(Counted::Opens),
            stats: sum(Counted::Stats),
            bytes: sum(Counted::Bytes),
        }
    }
}

/// A number that threads seldom share, without asking anybody: where their stack is.
fn stripe() -> usize {
    let here = 0u8;
    (std::ptr::from_ref(&here).addr() >> 16) % STRIPES
}

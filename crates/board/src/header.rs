//! The header of the board: the run's constants, and the counters.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::MOST_LEVELS;
use crate::path::{DatasetPaths, LONGEST};

pub const MAGIC: u64 = u64::from_le_bytes(*b"belady\x00\x01");
/// Each thread counts in one stripe, so that threads seldom share a cache line.
const STRIPES: usize = 16;
/// The counters of the source follow those of the levels.
const SOURCE: usize = MOST_LEVELS;

/// When a copy is compared with its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revalidate {
    /// Once in a run, when it is first used.
    Start,
    /// Each time it is opened.
    Open,
    /// Not at all.
    Never,
}

/// A path of any length that the kernel allows.
#[derive(Debug)]
#[repr(C)]
pub struct FixedPath {
    length: u32,
    bytes: [u8; LONGEST],
}

impl FixedPath {
    pub fn set(&mut self, text: &[u8]) -> Option<()> {
        self.bytes.get_mut(..text.len())?.copy_from_slice(text);
        self.length = text.len() as u32;
        Some(())
    }

    pub fn get(&self) -> &[u8] {
        &self.bytes[..LONGEST.min(self.length as usize)]
    }
}

/// A level: a directory with copies under the names of their sources.
#[derive(Debug)]
#[repr(C)]
pub struct BoardLevel {
    pub dev: u64,
    pub files: FixedPath,
}

/// A counter that each level and the source have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenCounter {
    /// Files opened.
    Opens,
    /// `stat` calls and their kin.
    Stats,
    /// Bytes of the opened files, whether they were read or not.
    Bytes,
}

/// The counters of one level or of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// See [`OpenCounter::Opens`].
    pub opens: u64,
    /// See [`OpenCounter::Stats`].
    pub stats: u64,
    /// See [`OpenCounter::Bytes`].
    pub bytes: u64,
}

#[derive(Debug)]
#[repr(C, align(128))]
struct CounterStripe([[AtomicU64; 3]; MOST_LEVELS + 1]);

/// The first bytes of the mapping.
#[derive(Debug)]
#[repr(C)]
pub struct BoardHeader {
    pub magic: u64,
    /// A random number that identifies this board.
    pub token: u64,
    pub records_log2: u32,
    pub revalidate: u32,
    /// The user that runs the launcher.
    pub owner: u32,
    pub level_count: u32,
    /// The device of the dataset's directory; 0 if unknown.
    pub dev: u64,
    pub given: FixedPath,
    pub real: FixedPath,
    pub levels: [BoardLevel; MOST_LEVELS],
    /// A copy that was validated in an earlier generation has to be validated again.
    pub generation: AtomicU32,
    /// Changes of files by the job, whether the files had copies or not.
    pub changes: AtomicU64,
    /// The hash table in use.
    pub index: AtomicU32,
    /// Copies that were dropped by any process.
    pub dropped: AtomicU64,
    /// Messages that did not fit into the pipe.
    pub lost: AtomicU64,
    stripes: [CounterStripe; STRIPES],
}

impl BoardHeader {
    pub fn dataset(&self) -> DatasetPaths<'_> {
        DatasetPaths { given: self.given.get(), real: self.real.get() }
    }

    pub fn levels(&self) -> &[BoardLevel] {
        &self.levels[..MOST_LEVELS.min(self.level_count as usize)]
    }

    pub fn revalidate(&self) -> Revalidate {
        match self.revalidate {
            0 => Revalidate::Start,
            1 => Revalidate::Open,
            _ => Revalidate::Never,
        }
    }

    /// Adds to a counter; `level` is None for the source.
    pub fn count(&self, level: Option<usize>, what: OpenCounter, by: u64) {
        let at = level.unwrap_or(SOURCE).min(SOURCE);
        self.stripes[stripe()].0[at][what as usize].fetch_add(by, Relaxed);
    }

    pub fn totals(&self, level: Option<usize>) -> Totals {
        let at = level.unwrap_or(SOURCE).min(SOURCE);
        let sum = |what: OpenCounter| {
            self.stripes.iter().map(|stripe| stripe.0[at][what as usize].load(Relaxed)).sum()
        };
        Totals {
            opens: sum(OpenCounter::Opens),
            stats: sum(OpenCounter::Stats),
            bytes: sum(OpenCounter::Bytes),
        }
    }
}

/// Returns a stripe by the address of the thread's stack, which needs no thread-local state.
fn stripe() -> usize {
    let here = 0u8;
    (std::ptr::from_ref(&here).addr() >> 16) % STRIPES
}

//! The counters of a job.

use std::time::Duration;

use belady_board::Totals;

use crate::order::PrefetchTally;

/// The counters of one level.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelReport {
    /// `ram`, or the directory.
    pub name: String,
    /// The level's quota in bytes.
    pub quota: u64,
    /// The number of copies of this dataset.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The program's use of them.
    pub used: Totals,
}

/// The copies that the job made.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CopyTotals {
    /// The number of copies.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time of all threads together.
    pub busy: Duration,
}

/// The counters of a job since its start.
#[derive(Clone, Debug, PartialEq)]
pub struct TransparentReport {
    /// One report per level, fastest first.
    pub levels: Vec<LevelReport>,
    /// The program's use of the source.
    pub source: Totals,
    /// The copies that the job made.
    pub copied: CopyTotals,
    /// Files that no level has space for.
    pub refused: u64,
    /// Files that could not be copied.
    pub failed: u64,
    /// The first failure.
    pub first_failure: Option<String>,
    /// Copies that were dropped because their source changed or was opened for writing.
    pub dropped: u64,
    /// Messages of the program that did not fit into the pipe.
    pub lost: u64,
    /// The prefetcher's counters; None before the end and without an order.
    pub ahead: Option<PrefetchTally>,
    /// Bytes and time of reading a few copies, to measure the levels' speed.
    pub local: Option<(u64, Duration)>,
}

impl TransparentReport {
    /// Estimates the seconds that the copies saved: bytes opened on levels x (seconds per byte from
    /// the source - seconds per byte from a level). None if the job made no copy.
    pub fn seconds_saved(&self) -> Option<f64> {
        let seconds_per_byte =
            |bytes: u64, time: Duration| (bytes > 0).then(|| time.as_secs_f64() / bytes as f64);
        let served: u64 = self.levels.iter().map(|level| level.used.bytes).sum();
        let source = seconds_per_byte(self.copied.bytes, self.copied.busy)?;
        let local =
            self.local.and_then(|(bytes, time)| seconds_per_byte(bytes, time)).unwrap_or(0.0);
        Some(served as f64 * (source - local).max(0.0))
    }
}

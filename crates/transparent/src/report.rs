//! What came of a run.

use std::time::Duration;

use belady_board::Totals;

use crate::order::Tally;

/// Of one level.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelReport {
    /// `ram`, or the directory.
    pub name: String,
    pub quota: u64,
    /// Files and bytes of this dataset that it holds now.
    pub files: u64,
    pub bytes: u64,
    /// What the program did with them.
    pub used: Totals,
}

/// What was copied from the source.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Copied {
    pub files: u64,
    pub bytes: u64,
    /// What threads spent on it, all together.
    pub busy: Duration,
}

/// Since the start of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    pub levels: Vec<LevelReport>,
    /// What the program did at the source.
    pub source: Totals,
    pub copied: Copied,
    /// Files for which no level has room.
    pub refused: u64,
    /// Files that could not be copied, and the first reason.
    pub failed: u64,
    pub first_failure: Option<String>,
    /// Copies that were given up because their source changed, or was written to.
    pub dropped: u64,
    /// Requests of the program's that were lost, since too many came at once.
    pub lost: u64,
    /// What was fetched ahead of the reader, known at the end.
    pub ahead: Option<Tally>,
    /// How long reading the copies took, measured on a few of them: bytes and time.
    pub local: Option<(u64, Duration)>,
}

impl Report {
    /// Seconds that the program would have waited longer for the source, roughly:
    /// bytes opened in levels x (seconds a byte when copying from the source - seconds a byte from a
    /// level). None if nothing was copied in this run.
    pub fn seconds_saved(&self) -> Option<f64> {
        let pace =
            |bytes: u64, time: Duration| (bytes > 0).then(|| time.as_secs_f64() / bytes as f64);
        let served: u64 = self.levels.iter().map(|level| level.used.bytes).sum();
        let source = pace(self.copied.bytes, self.copied.busy)?;
        let local = self.local.and_then(|(bytes, time)| pace(bytes, time)).unwrap_or(0.0);
        Some(served as f64 * (source - local).max(0.0))
    }
}

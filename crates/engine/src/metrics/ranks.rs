//! What is counted of each rank that an engine serves.

use std::ops::Sub;
use std::time::Duration;

use belady_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use serde::{Deserialize, Serialize};

/// The counters of one rank.
#[derive(Debug, Default)]
pub struct RankMetrics {
    batches: AtomicU64,
    blocked_ns: AtomicU64,
    straggled: AtomicU64,
    straggling_ns: AtomicU64,
}

/// The metrics of one rank: of this node's consumers, the one that is a rank of its jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSnapshot {
    /// The rank's number in the job.
    pub rank: u32,
    /// Batches that its consumer has got.
    pub batches: u64,
    /// Time that its consumer waited for them, in nanoseconds.
    pub blocked_ns: u64,
    /// Iterations that were imbalanced, and in which it was the slowest rank of this node: it would
    /// have waited for its own batch for more than a twentieth of the compute time, and another
    /// rank would not.
    pub straggled: u64,
    /// Time that iterations lost to it, in nanoseconds: its wait for its own batch beyond the mean
    /// of the node's ranks, over all iterations in which it was the slowest.
    pub straggling_ns: u64,
}

impl RankMetrics {
    /// Counts a batch that the rank's consumer got after a wait.
    pub fn waited(&self, time: Duration) {
        self.batches.fetch_add(1, Relaxed);
        self.blocked_ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// Counts an iteration in which the rank was the slowest.
    pub fn was_slowest(&self, lost: Duration, is_imbalanced: bool) {
        self.straggled.fetch_add(u64::from(is_imbalanced), Relaxed);
        self.straggling_ns.fetch_add(lost.as_nanos() as u64, Relaxed);
    }

    pub(super) fn snapshot(&self, rank: u32) -> RankSnapshot {
        RankSnapshot {
            rank,
            batches: self.batches.load(Relaxed),
            blocked_ns: self.blocked_ns.load(Relaxed),
            straggled: self.straggled.load(Relaxed),
            straggling_ns: self.straggling_ns.load(Relaxed),
        }
    }
}

impl RankSnapshot {
    /// Returns the share of iterations in which the rank was the straggler.
    pub fn straggling_share(&self) -> f64 {
        if self.batches == 0 { 0.0 } else { self.straggled as f64 / self.batches as f64 }
    }

    /// Returns the time that the rank's consumer waited, in seconds.
    pub fn blocked_seconds(&self) -> f64 {
        self.blocked_ns as f64 / 1e9
    }

    /// Returns the time that iterations lost to the rank, in seconds.
    pub fn straggling_seconds(&self) -> f64 {
        self.straggling_ns as f64 / 1e9
    }
}

impl Sub for RankSnapshot {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            rank: self.rank,
            batches: self.batches.saturating_sub(earlier.batches),
            blocked_ns: self.blocked_ns.saturating_sub(earlier.blocked_ns),
            straggled: self.straggled.saturating_sub(earlier.straggled),
            straggling_ns: self.straggling_ns.saturating_sub(earlier.straggling_ns),
        }
    }
}

/// Subtracts the earlier figures of each rank.
pub fn difference(now: &[RankSnapshot], earlier: &[RankSnapshot]) -> Vec<RankSnapshot> {
    let before = |rank| earlier.iter().find(|other| other.rank == rank).copied();
    now.iter().map(|&rank| rank - before(rank.rank).unwrap_or_default()).collect()
}

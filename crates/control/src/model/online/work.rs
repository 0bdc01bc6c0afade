//! Sums of what threads did in one iteration.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Work of the same kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkSum {
    /// Samples that were transformed, or reads.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time that threads took for them, added up over threads.
    pub nanoseconds: u64,
}

impl WorkSum {
    /// Returns the sum of so many times the same work.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        let Self { count, bytes, nanoseconds } = self;
        Self { count: count * times, bytes: bytes * times, nanoseconds: nanoseconds * times }
    }
}

impl AddAssign for WorkSum {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
        self.nanoseconds += other.nanoseconds;
    }
}

/// Returns the class of a sample's size: all sizes of a class differ by less than a factor of two.
pub fn size_class(bytes: u64) -> u8 {
    (u64::BITS - bytes.leading_zeros()) as u8
}

/// What the threads of a job did in one iteration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IterationWork {
    /// Transforms, by the class of the sample's size and the number of threads that transformed.
    pub transforms: BTreeMap<(u8, u32), WorkSum>,
    /// Loads, by class of places and number of threads that loaded from there.
    pub loads: [BTreeMap<u32, WorkSum>; 3],
    /// The least nanoseconds of a consumer between two batches: other times have pauses in them.
    pub training: Option<u64>,
}

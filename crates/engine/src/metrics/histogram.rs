//! Histograms of durations, in whole microseconds.
//!
//! Buckets are those of an HDR histogram: exact below 64, and 64 buckets to each power of two
//! above, so that a value is known to 1.6 %. Each bucket is an atomic, so that recording takes no
//! lock, and one snapshot can be subtracted from a later one.

use std::ops::Sub;
use std::time::Duration;

use belady_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use serde::{Deserialize, Serialize};

/// Buckets to a power of two, as a power of two.
const FINE: u32 = 6;
/// Values of 2^36 microseconds (19 hours) and more count as that; no read takes so long.
const POWERS: u32 = 36;
const BUCKETS: usize = ((POWERS - FINE + 1) << FINE) as usize;

fn bucket_of(value: u64) -> usize {
    let value = value.min((1 << POWERS) - 1);
    if value < 1 << FINE {
        return value as usize;
    }
    let shift = value.ilog2() - FINE;
    (shift as usize * (1 << FINE)) + (value >> shift) as usize
}

/// Returns the largest value that a bucket counts.
fn top_of(bucket: usize) -> u64 {
    let shift = (bucket >> FINE).saturating_sub(1);
    let first = (bucket - (shift << FINE)) as u64;
    ((first + 1) << shift) - 1
}

/// A histogram that any thread may record into.
#[derive(Debug)]
pub(super) struct Histogram {
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            max: AtomicU64::new(0),
        }
    }

    pub(super) fn record(&self, time: Duration) {
        let value = time.as_micros() as u64;
        self.counts[bucket_of(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        // Nearly every value is below the largest, so a load spares the write.
        if value > self.max.load(Relaxed) {
            self.max.fetch_max(value, Relaxed);
        }
    }

    pub(super) fn snapshot(&self) -> HistogramSnapshot {
        let counts = self.counts.iter().map(|count| count.load(Relaxed)).enumerate();
        let buckets: Vec<Bucket> = counts
            .filter(|&(_, count)| count > 0)
            .map(|(index, count)| Bucket { up_to: top_of(index), count })
            .collect();
        HistogramSnapshot {
            count: buckets.iter().map(|bucket| bucket.count).sum(),
            sum: self.sum.load(Relaxed),
            max: self.max.load(Relaxed),
            buckets,
        }
    }
}

/// Values up to `up_to` and above the bucket before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// The largest value.
    pub up_to: u64,
    /// The number of values.
    pub count: u64,
}

/// A histogram at one moment, or between two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistogramSnapshot {
    /// The number of values.
    pub count: u64,
    /// The sum of all values.
    pub sum: u64,
    /// The largest value: exact since the start, to the bucket in a difference.
    pub max: u64,
    /// The buckets that are not empty, in rising order.
    pub buckets: Vec<Bucket>,
}

impl HistogramSnapshot {
    /// Returns the smallest value that at least this share of all values does not exceed, to 1.6 %
    /// and never above the largest value; 0 if there are none.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = ((share * self.count as f64).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for bucket in &self.buckets {
            seen += bucket.count;
            if seen >= wanted {
                return bucket.up_to.min(self.max);
            }
        }
        0
    }

    /// Counts the values below a power of two.
    pub(super) fn below_power(&self, power: u32) -> u64 {
        let within = self.buckets.iter().take_while(|bucket| bucket.up_to < 1 << power);
        within.map(|bucket| bucket.count).sum()
    }
}

impl Sub<&HistogramSnapshot> for &HistogramSnapshot {
    type Output = HistogramSnapshot;

    /// Returns what was recorded between an earlier snapshot and this one.
    fn sub(self, earlier: &HistogramSnapshot) -> HistogramSnapshot {
        let mut before = earlier.buckets.iter().peekable();
        let mut buckets = vec![];
        for bucket in &self.buckets {
            let same = before.next_if(|old| old.up_to == bucket.up_to);
            let count = bucket.count.saturating_sub(same.map_or(0, |old| old.count));
            if count > 0 {
                buckets.push(Bucket { up_to: bucket.up_to, count });
            }
        }
        HistogramSnapshot {
            count: buckets.iter().map(|bucket| bucket.count).sum(),
            sum: self.sum.saturating_sub(earlier.sum),
            max: buckets.last().map_or(0, |bucket| bucket.up_to.min(self.max)),
            buckets,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Histogram {
        let histogram = Histogram::new();
        for &value in values {
            histogram.record(Duration::from_micros(value));
        }
        histogram
    }

    /// The reference: sorts all values.
    fn exact(values: &[u64], share: f64) -> u64 {
        let mut sorted = values.to_vec();
        sorted.sort_unstable();
        let rank = ((share * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
        sorted[rank - 1]
    }

    fn values() -> impl Strategy<Value = Vec<u64>> {
        let any_size = (0u32..36, any::<u64>()).prop_map(|(bits, x)| x & ((1 << bits) - 1));
        prop::collection::vec(any_size, 1..200)
    }

    #[test]
    fn every_bucket_ends_where_the_next_begins() {
        for bucket in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(top_of(bucket)), bucket);
            assert_eq!(bucket_of(top_of(bucket) + 1), bucket + 1);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn an_empty_histogram_returns_zero() {
        let empty = Histogram::new().snapshot();
        assert_eq!((empty.quantile(0.5), empty.count, empty.max), (0, 0, 0));
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_values(values in values(), share in 0.0..=1.0f64) {
            let snapshot = of(&values).snapshot();
            let (got, exact) = (snapshot.quantile(share), exact(&values, share));
            prop_assert!(got >= exact && got as f64 <= exact as f64 * (1.0 + 1.0 / 64.0));
            prop_assert_eq!(snapshot.max, *values.iter().max().unwrap());
            prop_assert_eq!(snapshot.sum, values.iter().sum::<u64>());
            for power in 0..40 {
                let below = values.iter().filter(|&&value| value < 1 << power).count() as u64;
                prop_assert_eq!(snapshot.below_power(power), below);
            }
        }

        #[test]
        fn a_difference_is_what_was_recorded_in_between(first in values(), then in values()) {
            let histogram = of(&first);
            let before = histogram.snapshot();
            for &value in &then {
                histogram.record(Duration::from_micros(value));
            }
            let between = &histogram.snapshot() - &before;
            let alone = of(&then).snapshot();
            prop_assert_eq!(&between.buckets, &alone.buckets);
            prop_assert_eq!((between.count, between.sum), (alone.count, alone.sum));
            prop_assert!(between.max >= alone.max);
        }
    }
}

//! All figures at one moment, as plain values that print, serialise and subtract.

use std::ops::{Add, Sub};

use serde::Serialize;

use super::histogram::HistogramSnapshot;
use super::peers::PeerSnapshot;

/// Samples and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Volume {
    pub samples: u64,
    pub bytes: u64,
}

/// Calls on the storage that the datasets rest on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SourceOperations {
    pub list: u64,
    pub open: u64,
    pub stat: u64,
    pub read: u64,
    /// Asked for by reads, what lies between neighbouring samples included.
    pub bytes: u64,
}

/// How attempts to keep a sample ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Puts {
    pub stored: u64,
    pub present: u64,
    pub full: u64,
    pub refused: u64,
}

/// What became of samples that could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BadSamples {
    pub raised: u64,
    pub skipped: u64,
    pub replaced: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TierSnapshot {
    pub name: String,
    /// Copied out of the tier.
    pub read: Volume,
    /// Lent from the tier's own memory.
    pub lent: Volume,
    pub misses: u64,
    pub damaged: u64,
    pub puts: Puts,
    pub read_us: HistogramSnapshot,
}

/// All figures since the start, or between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MetricsSnapshot {
    /// What the consumer was given.
    pub delivered: Volume,
    /// What was read from the source, for delivery or for a tier.
    pub source: Volume,
    /// What was served from a read that was in flight for someone else.
    pub ring: Volume,
    pub tiers: Vec<TierSnapshot>,
    pub peers: PeerSnapshot,
    pub operations: SourceOperations,
    /// Time that the consumer waited for batches, in nanoseconds.
    pub blocked_ns: u64,
    /// Waits for batches other than the first of an epoch.
    pub wait_us: HistogramSnapshot,
    /// Waits for the first batch of an epoch.
    pub boundary_wait_us: HistogramSnapshot,
    pub source_read_us: HistogramSnapshot,
    pub retries: u64,
    pub timeouts: u64,
    pub bad: BadSamples,
    /// Reads that wait for a thread: at that moment, also in a difference.
    pub queue_depth: u64,
    /// Transforms of samples, failed ones included.
    pub transform_us: HistogramSnapshot,
    /// Time that threads which transform had nothing to do, all together, in nanoseconds.
    pub transform_idle_ns: u64,
    /// Samples that could not be transformed.
    pub transform_failures: u64,
}

impl MetricsSnapshot {
    /// Samples that came from somewhere else than the source, as a share of all that came.
    pub fn hit_ratio(&self) -> f64 {
        let near = self.ring.samples
            + self.peers.read.samples
            + self.tiers.iter().map(TierSnapshot::hits).sum::<u64>();
        let all = near + self.source.samples;
        if all == 0 { 0.0 } else { near as f64 / all as f64 }
    }

    pub fn blocked_seconds(&self) -> f64 {
        self.blocked_ns as f64 / 1e9
    }
}

impl TierSnapshot {
    /// Samples that the tier gave, copied or lent.
    pub fn hits(&self) -> u64 {
        self.read.samples + self.lent.samples
    }

    /// Bytes that the tier gave, copied or lent.
    pub fn bytes(&self) -> u64 {
        self.read.bytes + self.lent.bytes
    }
}

/// Field by field. Counters of a later snapshot are never below those of an earlier one,
/// but relaxed atomics may be read in any order, so nothing here may underflow.
macro_rules! subtract {
    ($type:ident: $($field:ident),+) => {
        impl Sub for $type {
            type Output = Self;
            fn sub(self, earlier: Self) -> Self {
                Self { $($field: self.$field.saturating_sub(earlier.$field)),+ }
            }
        }
    };
}
subtract!(Volume: samples, bytes);
subtract!(SourceOperations: list, open, stat, read, bytes);
subtract!(Puts: stored, present, full, refused);
subtract!(BadSamples: raised, skipped, replaced);

impl Add for SourceOperations {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            list: self.list + other.list,
            open: self.open + other.open,
            stat: self.stat + other.stat,
            read: self.read + other.read,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl From<belady_data::source::Operations> for SourceOperations {
    fn from(done: belady_data::source::Operations) -> Self {
        let belady_data::source::Operations { list, open, stat, read, bytes } = done;
        Self { list, open, stat, read, bytes }
    }
}

impl Sub<&TierSnapshot> for &TierSnapshot {
    type Output = TierSnapshot;

    fn sub(self, earlier: &TierSnapshot) -> TierSnapshot {
        TierSnapshot {
            name: self.name.clone(),
            read: self.read - earlier.read,
            lent: self.lent - earlier.lent,
            misses: self.misses.saturating_sub(earlier.misses),
            damaged: self.damaged.saturating_sub(earlier.damaged),
            puts: self.puts - earlier.puts,
            read_us: &self.read_us - &earlier.read_us,
        }
    }
}

impl Sub<&MetricsSnapshot> for &MetricsSnapshot {
    type Output = MetricsSnapshot;

    /// What happened between an earlier snapshot and this one: an epoch, say.
    fn sub(self, earlier: &MetricsSnapshot) -> MetricsSnapshot {
        let unseen = TierSnapshot::default();
        let tiers = self.tiers.iter().enumerate();
        MetricsSnapshot {
            delivered: self.delivered - earlier.delivered,
            source: self.source - earlier.source,
            ring: self.ring - earlier.ring,
            tiers: tiers
                .map(|(at, tier)| tier - earlier.tiers.get(at).unwrap_or(&unseen))
                .collect(),
            peers: self.peers - earlier.peers,
            operations: self.operations - earlier.operations,
            blocked_ns: self.blocked_ns.saturating_sub(earlier.blocked_ns),
            wait_us: &self.wait_us - &earlier.wait_us,
            boundary_wait_us: &self.boundary_wait_us - &earlier.boundary_wait_us,
            source_read_us: &self.source_read_us - &earlier.source_read_us,
            retries: self.retries.saturating_sub(earlier.retries),
            timeouts: self.timeouts.saturating_sub(earlier.timeouts),
            bad: self.bad - earlier.bad,
            queue_depth: self.queue_depth,
            transform_us: &self.transform_us - &earlier.transform_us,
            transform_idle_ns: self.transform_idle_ns.saturating_sub(earlier.transform_idle_ns),
            transform_failures: self.transform_failures.saturating_sub(earlier.transform_failures),
        }
    }
}

//! All metrics at one moment, as plain values that print, serialise and subtract.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

use super::histogram::HistogramSnapshot;
use super::peers::PeerSnapshot;
use super::ranks::{RankSnapshot, difference};
use super::threads::ThreadsSnapshot;

/// Samples and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The number of samples.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Calls on the storage that the datasets rest on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceOperations {
    /// Directory listings.
    pub list: u64,
    /// Files opened.
    pub open: u64,
    /// Attributes read.
    pub stat: u64,
    /// Read requests.
    pub read: u64,
    /// Bytes requested, gaps between neighbouring samples included.
    pub bytes: u64,
}

/// The outcomes of attempts to store a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Puts {
    /// The tier stored it.
    pub stored: u64,
    /// The tier held it already.
    pub present: u64,
    /// The tier had no space.
    pub full: u64,
    /// The tier could not store it.
    pub refused: u64,
}

/// What became of samples that could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadSampleCounts {
    /// The consumer got an error.
    pub raised: u64,
    /// The batch was delivered without it.
    pub skipped: u64,
    /// Another sample took its place.
    pub replaced: u64,
}

/// The metrics of one tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierSnapshot {
    /// `ram` or the directory.
    pub name: String,
    /// The bytes that jobs keep there at that moment, also in a difference.
    pub used: u64,
    /// The bytes that they may keep there.
    pub capacity: u64,
    /// Copied from the tier.
    pub read: Volume,
    /// Lent from the tier's memory.
    pub lent: Volume,
    /// Samples that the tier should have held and did not.
    pub misses: u64,
    /// Copies that did not match their checksum.
    pub damaged: u64,
    /// Attempts to store.
    pub puts: Puts,
    /// Times of reads.
    pub read_us: HistogramSnapshot,
}

/// All metrics since the start, or between two moments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricsSnapshot {
    /// Delivered to consumers.
    pub delivered: Volume,
    /// Read from the source, for delivery or for a tier.
    pub source: Volume,
    /// Copied from a read in flight for another batch.
    pub ring: Volume,
    /// By tier.
    pub tiers: Vec<TierSnapshot>,
    /// Moved between nodes.
    pub peers: PeerSnapshot,
    /// By rank of this engine.
    pub ranks: Vec<RankSnapshot>,
    /// Calls on the storage.
    pub operations: SourceOperations,
    /// Time that consumers waited for batches, in nanoseconds.
    pub blocked_ns: u64,
    /// Waits for batches other than the first of an epoch.
    pub wait_us: HistogramSnapshot,
    /// Waits for the first batch of an epoch.
    pub boundary_wait_us: HistogramSnapshot,
    /// Times of requests to the source.
    pub source_read_us: HistogramSnapshot,
    /// Reads that were tried again.
    pub retries: u64,
    /// Reads that were given up.
    pub timeouts: u64,
    /// Samples that could not be read.
    pub bad: BadSampleCounts,
    /// Reads that wait for a thread at that moment, also in a difference.
    pub queue_depth: u64,
    /// Transforms of samples, failed ones included.
    pub transform_us: HistogramSnapshot,
    /// Idle time of all threads that transform, in nanoseconds.
    pub transform_idle_ns: u64,
    /// Samples that could not be transformed.
    pub transform_failures: u64,
    /// What threads are assigned to, and the model fitted to them.
    pub threads: ThreadsSnapshot,
}

impl MetricsSnapshot {
    /// Returns the share of samples that were not read from the source.
    pub fn hit_ratio(&self) -> f64 {
        let near = self.ring.samples
            + self.peers.read.samples
            + self.tiers.iter().map(TierSnapshot::hits).sum::<u64>();
        let all = near + self.source.samples;
        if all == 0 { 0.0 } else { near as f64 / all as f64 }
    }

    /// Returns the time that consumers waited for batches, in seconds.
    pub fn blocked_seconds(&self) -> f64 {
        self.blocked_ns as f64 / 1e9
    }
}

impl TierSnapshot {
    /// Returns the samples read from the tier, copied or lent.
    pub fn hits(&self) -> u64 {
        self.read.samples + self.lent.samples
    }

    /// Returns the bytes read from the tier, copied or lent.
    pub fn bytes(&self) -> u64 {
        self.read.bytes + self.lent.bytes
    }
}

/// Subtracts field by field. A later snapshot's counters are not below an earlier one's, but
/// relaxed atomics may be read in any order, so the subtraction saturates.
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
subtract!(BadSampleCounts: raised, skipped, replaced);

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
            used: self.used,
            capacity: self.capacity,
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

    /// Returns what happened between an earlier snapshot and this one, such as an epoch.
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
            ranks: difference(&self.ranks, &earlier.ranks),
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
            threads: self.threads.since(&earlier.threads),
        }
    }
}

//! The engine's metrics.
//!
//! Every thread counts in one shared [`Metrics`], at the price of an atomic addition: no locks, and
//! counters that different threads write are on separate cache lines. [`Metrics::snapshot`] returns
//! plain values; a snapshot minus an earlier one is what happened between them. [`exposition`]
//! writes a snapshot as Prometheus text, and [`serve`] offers it on a port.

pub mod exposition;
mod histogram;
mod peers;
mod ranks;
mod server;
mod snapshot;
mod threads;
mod vitals;

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use belady_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use belady_base::sync::{Arc, Mutex, lock};
use belady_data::source::Source;
use belady_data::tier::{Put, Tier, TierStatus};
use crossbeam_utils::CachePadded;
pub use histogram::{Bucket, HistogramSnapshot};
pub use peers::{Moved, PeerEvent, PeerMetrics, PeerSnapshot};
pub use ranks::{RankMetrics, RankSnapshot};
pub use server::{MetricsServer, serve, serve_text};
pub use snapshot::{
    BadSampleCounts, MetricsSnapshot, Puts, SourceOperations, TierSnapshot, Volume,
};
pub use threads::{AssignedThreads, ThreadMetrics, ThreadsSnapshot};
pub use vitals::{
    RankVitals, ThreadVitals, TierVitals, VITALS, Vitals, VitalsPublisher, publish, publish_at,
    unix_ms,
};

use histogram::Histogram;

/// Where samples came from. Tiers count from 1 as in the model: tier 0 is the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The dataset's storage.
    Source,
    /// Copied from a tier.
    Tier(u8),
    /// From a read in flight for another batch.
    Shared,
    /// Lent from a tier's memory.
    Lent(u8),
}

/// What became of a sample that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The consumer got an error.
    Raised,
    /// The batch was delivered without it.
    Skipped,
    /// Another sample took its place.
    Replaced,
}

/// The counters of an engine, shared by all of its threads.
#[derive(Debug)]
pub struct Metrics {
    delivered: Counter2,
    source: Counter2,
    ring: Counter2,
    tiers: Vec<TierMetrics>,
    blocked_ns: CachePadded<AtomicU64>,
    wait_us: Histogram,
    boundary_wait_us: Histogram,
    source_read_us: Histogram,
    retries: CachePadded<AtomicU64>,
    timeouts: AtomicU64,
    bad: [AtomicU64; 3],
    queue_depth: CachePadded<AtomicU64>,
    transform_us: Histogram,
    transform_idle_ns: CachePadded<AtomicU64>,
    transform_failures: AtomicU64,
    peers: PeerMetrics,
    /// By rank; a job takes its own when it starts.
    ranks: Mutex<BTreeMap<u32, Arc<RankMetrics>>>,
    threads: ThreadMetrics,
    sources: Mutex<Sources>,
}

/// Samples and bytes, written together.
type Counter2 = CachePadded<[AtomicU64; 2]>;

#[derive(Debug)]
struct TierMetrics {
    name: String,
    read: Counter2,
    lent: Counter2,
    misses: CachePadded<AtomicU64>,
    damaged: AtomicU64,
    /// By outcome, in the order of [`Put`].
    puts: CachePadded<[AtomicU64; 4]>,
    read_us: Histogram,
    /// The jobs' tiers; a snapshot asks how full they are.
    parts: Mutex<Vec<Weak<dyn Tier>>>,
}

/// Sources count their own operations; a snapshot asks them.
#[derive(Debug, Default)]
struct Sources {
    watched: Vec<Arc<dyn Source>>,
    /// Sources that are not watched any more and may be again, with their operations by then.
    left: Vec<(Weak<dyn Source>, SourceOperations)>,
    /// The operations of sources that are gone.
    gone: SourceOperations,
}

impl Metrics {
    /// Returns counters for tiers of these names. A name that repeats gets a number, so that every
    /// tier has a distinct name.
    pub fn new(tier_names: &[String]) -> Self {
        Self {
            delivered: Counter2::default(),
            source: Counter2::default(),
            ring: Counter2::default(),
            tiers: distinct(tier_names).into_iter().map(TierMetrics::new).collect(),
            blocked_ns: CachePadded::default(),
            wait_us: Histogram::new(),
            boundary_wait_us: Histogram::new(),
            source_read_us: Histogram::new(),
            retries: CachePadded::default(),
            timeouts: AtomicU64::new(0),
            bad: Default::default(),
            queue_depth: CachePadded::default(),
            transform_us: Histogram::new(),
            transform_idle_ns: CachePadded::default(),
            transform_failures: AtomicU64::new(0),
            peers: PeerMetrics::default(),
            ranks: Mutex::default(),
            threads: ThreadMetrics::default(),
            sources: Mutex::default(),
        }
    }

    /// Returns the counters of what moves between nodes.
    pub fn peers(&self) -> &PeerMetrics {
        &self.peers
    }

    /// Returns the counters of a rank, by its number in its job.
    pub fn rank(&self, rank: u32) -> Arc<RankMetrics> {
        lock(&self.ranks).entry(rank).or_default().clone()
    }

    /// Returns the figures of threads.
    pub fn threads(&self) -> &ThreadMetrics {
        &self.threads
    }

    /// Counts samples that were loaded.
    pub fn loaded(&self, place: Served, samples: u64, bytes: u64) {
        match place {
            Served::Source => add(&self.source, samples, bytes),
            Served::Shared => add(&self.ring, samples, bytes),
            Served::Tier(tier) => self.at(tier, |tier| add(&tier.read, samples, bytes)),
            Served::Lent(tier) => self.at(tier, |tier| add(&tier.lent, samples, bytes)),
        }
    }

    /// Counts samples that were delivered to the consumer.
    pub fn delivered(&self, samples: u64, bytes: u64) {
        add(&self.delivered, samples, bytes);
    }

    /// Counts a wait of the consumer for a batch; `boundary` for the first batch of an epoch.
    pub fn waited(&self, time: Duration, boundary: bool) {
        self.blocked_ns.fetch_add(time.as_nanos() as u64, Relaxed);
        let histogram = if boundary { &self.boundary_wait_us } else { &self.wait_us };
        histogram.record(time);
    }

    /// Records the time of a request to the source.
    pub fn source_read(&self, time: Duration) {
        self.source_read_us.record(time);
    }

    /// Records the time of a read from a tier.
    pub fn tier_read(&self, tier: u8, time: Duration) {
        self.at(tier, |tier| tier.read_us.record(time));
    }

    /// Counts a read that is tried again.
    pub fn retry(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    /// Counts a read that was given up after its time limit.
    pub fn timeout(&self) {
        self.timeouts.fetch_add(1, Relaxed);
    }

    /// Counts a sample that could not be read.
    pub fn bad_sample(&self, what: Bad) {
        self.bad[what as usize].fetch_add(1, Relaxed);
    }

    /// Counts an attempt to store a sample.
    pub fn put(&self, tier: u8, outcome: Put) {
        let at = match outcome {
            Put::Stored => 0,
            Put::Present => 1,
            Put::Full => 2,
            Put::Refused => 3,
        };
        self.at(tier, |tier| {
            tier.puts[at].fetch_add(1, Relaxed);
        });
    }

    /// Counts a sample that a tier should have held and did not.
    pub fn tier_miss(&self, tier: u8) {
        self.at(tier, |tier| {
            tier.misses.fetch_add(1, Relaxed);
        });
    }

    /// Counts a copy that did not match its checksum or could not be read.
    pub fn damaged(&self, tier: u8) {
        self.at(tier, |tier| {
            tier.damaged.fetch_add(1, Relaxed);
        });
    }

    /// Sets the number of reads that wait for a thread.
    pub fn queue_depth(&self, reads: usize) {
        self.queue_depth.store(reads as u64, Relaxed);
    }

    /// Counts a sample that was transformed, or could not be.
    pub fn transformed(&self, time: Duration, failed: bool) {
        self.transform_us.record(time);
        if failed {
            self.transform_failures.fetch_add(1, Relaxed);
        }
    }

    /// Counts idle time of a thread that transforms.
    pub fn transform_idle(&self, time: Duration) {
        self.transform_idle_ns.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// Adds a job's tier to the used bytes and the capacity, while it exists.
    pub fn watch_tier(&self, tier: u8, part: &Arc<dyn Tier>) {
        self.at(tier, |tier| {
            let mut parts = lock(&tier.parts);
            parts.retain(|known| {
                known.strong_count() > 0 && !std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(part))
            });
            parts.push(Arc::downgrade(part));
        });
    }

    /// Counts a source's operations while the returned value exists, and keeps the count
    /// afterwards. A source that is watched twice counts once.
    pub fn watch(self: &Arc<Self>, source: Arc<dyn Source>) -> SourceWatch {
        let mut sources = lock(&self.sources);
        sources.left.retain(|(left, _)| !std::ptr::addr_eq(left.as_ptr(), Arc::as_ptr(&source)));
        sources.watched.push(Arc::clone(&source));
        drop(sources);
        SourceWatch { metrics: Arc::clone(self), source }
    }

    /// Returns all counters as plain values.
    pub fn snapshot(&self) -> MetricsSnapshot {
        MetricsSnapshot {
            delivered: volume(&self.delivered),
            source: volume(&self.source),
            ring: volume(&self.ring),
            tiers: self.tiers.iter().map(TierMetrics::snapshot).collect(),
            peers: self.peers.snapshot(),
            ranks: lock(&self.ranks)
                .iter()
                .map(|(&rank, counted)| counted.snapshot(rank))
                .collect(),
            operations: lock(&self.sources).operations(),
            blocked_ns: self.blocked_ns.load(Relaxed),
            wait_us: self.wait_us.snapshot(),
            boundary_wait_us: self.boundary_wait_us.snapshot(),
            source_read_us: self.source_read_us.snapshot(),
            retries: self.retries.load(Relaxed),
            timeouts: self.timeouts.load(Relaxed),
            bad: BadSampleCounts {
                raised: self.bad[Bad::Raised as usize].load(Relaxed),
                skipped: self.bad[Bad::Skipped as usize].load(Relaxed),
                replaced: self.bad[Bad::Replaced as usize].load(Relaxed),
            },
            queue_depth: self.queue_depth.load(Relaxed),
            transform_us: self.transform_us.snapshot(),
            transform_idle_ns: self.transform_idle_ns.load(Relaxed),
            transform_failures: self.transform_failures.load(Relaxed),
            threads: self.threads.snapshot(),
        }
    }

    /// Counts for a tier; does nothing for one that [`Self::new`] was not given.
    fn at(&self, tier: u8, count: impl FnOnce(&TierMetrics)) {
        let found = usize::from(tier).checked_sub(1).and_then(|at| self.tiers.get(at));
        debug_assert!(found.is_some(), "tier {tier} of {}", self.tiers.len());
        if let Some(tier) = found {
            count(tier);
        }
    }
}

fn distinct(names: &[String]) -> Vec<String> {
    let mut unique: Vec<String> = Vec::with_capacity(names.len());
    for name in names {
        let numbered = (2..).map(|number| format!("{name} {number}"));
        let mut candidates = std::iter::once(name.clone()).chain(numbered);
        unique.extend(candidates.find(|candidate| !unique.contains(candidate)));
    }
    unique
}

fn add(counter: &Counter2, samples: u64, bytes: u64) {
    counter[0].fetch_add(samples, Relaxed);
    counter[1].fetch_add(bytes, Relaxed);
}

fn volume(counter: &Counter2) -> Volume {
    Volume { samples: counter[0].load(Relaxed), bytes: counter[1].load(Relaxed) }
}

impl TierMetrics {
    fn new(name: String) -> Self {
        Self {
            name,
            read: Counter2::default(),
            lent: Counter2::default(),
            misses: CachePadded::default(),
            damaged: AtomicU64::new(0),
            puts: CachePadded::default(),
            read_us: Histogram::new(),
            parts: Mutex::default(),
        }
    }

    fn snapshot(&self) -> TierSnapshot {
        let [stored, present, full, refused] =
            [0, 1, 2, 3].map(|outcome: usize| self.puts[outcome].load(Relaxed));
        let parts: Vec<_> = lock(&self.parts).iter().filter_map(Weak::upgrade).collect();
        let parts: Vec<TierStatus> = parts.iter().map(Tier::status).collect();
        TierSnapshot {
            name: self.name.clone(),
            used: parts.iter().map(|part| part.used.0).sum(),
            capacity: parts.iter().map(|part| part.capacity.0).sum(),
            read: volume(&self.read),
            lent: volume(&self.lent),
            misses: self.misses.load(Relaxed),
            damaged: self.damaged.load(Relaxed),
            puts: Puts { stored, present, full, refused },
            read_us: self.read_us.snapshot(),
        }
    }
}

impl Sources {
    /// Adds up the operations of sources that cannot be watched again.
    fn forget_those_gone(&mut self) {
        let gone = self.left.extract_if(.., |(source, _)| source.strong_count() == 0);
        self.gone = gone.fold(self.gone, |sum, (_, done)| sum + done);
    }

    fn operations(&self) -> SourceOperations {
        let watched = self.watched.iter().enumerate();
        let once = watched.filter(|&(at, source)| !holds(&self.watched[..at], source));
        let left = self.left.iter().fold(self.gone, |sum, &(_, left)| sum + left);
        once.fold(left, |sum, (_, source)| sum + source.operations().into())
    }
}

fn holds(sources: &[Arc<dyn Source>], wanted: &Arc<dyn Source>) -> bool {
    sources.iter().any(|source| same(source, wanted))
}

/// Compares addresses only: two vtables of one type may differ.
fn same(one: &Arc<dyn Source>, other: &Arc<dyn Source>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// Counts a source's operations while it exists.
#[derive(Debug)]
#[must_use = "the source is watched only while this exists"]
pub struct SourceWatch {
    metrics: Arc<Metrics>,
    source: Arc<dyn Source>,
}

impl Drop for SourceWatch {
    fn drop(&mut self) {
        let mut sources = lock(&self.metrics.sources);
        if let Some(at) = sources.watched.iter().position(|source| same(source, &self.source)) {
            sources.watched.swap_remove(at);
        }
        if !holds(&sources.watched, &self.source) {
            let done = self.source.operations().into();
            sources.left.push((Arc::downgrade(&self.source), done));
            sources.forget_those_gone();
        }
    }
}

#[cfg(test)]
mod tests;

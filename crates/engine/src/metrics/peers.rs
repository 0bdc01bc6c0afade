//! What is counted of other nodes.

use belady_data::sync::atomic::{AtomicU64, Ordering::Relaxed};
use serde::Serialize;

use super::{Counter2, Volume, add, volume};

/// What happens between this node and its peers.
#[derive(Debug, Default)]
pub struct PeerMetrics {
    read: Counter2,
    served: Counter2,
    pushed: Counter2,
    taken: Counter2,
    counts: [AtomicU64; 6],
    nodes: AtomicU64,
    down: AtomicU64,
}

/// Something that happened once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A peer did not have a sample.
    Missed,
    /// A sample was asked for again.
    Retried,
    /// A peer could not be reached or did not answer in time.
    Failed,
    /// What came was not what was sent.
    Damaged,
    /// A sample that another node was to keep was let go.
    Dropped,
    /// A step ended before all others had loaded it.
    Hurried,
}

/// Samples on their way to or from another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    Read,
    Served,
    Pushed,
    Taken,
}

impl PeerMetrics {
    pub fn count(&self, what: PeerEvent, times: u64) {
        self.counts[what as usize].fetch_add(times, Relaxed);
    }

    pub fn moved(&self, how: Moved, samples: u64, bytes: u64) {
        let counter = match how {
            Moved::Read => &self.read,
            Moved::Served => &self.served,
            Moved::Pushed => &self.pushed,
            Moved::Taken => &self.taken,
        };
        add(counter, samples, bytes);
    }

    /// How many nodes there are besides this one, and how many of them are down.
    pub fn nodes(&self, others: u64, down: u64) {
        self.nodes.store(others, Relaxed);
        self.down.store(down, Relaxed);
    }

    pub fn snapshot(&self) -> PeerSnapshot {
        let count = |what: PeerEvent| self.counts[what as usize].load(Relaxed);
        PeerSnapshot {
            read: volume(&self.read),
            served: volume(&self.served),
            pushed: volume(&self.pushed),
            taken: volume(&self.taken),
            misses: count(PeerEvent::Missed),
            retries: count(PeerEvent::Retried),
            failures: count(PeerEvent::Failed),
            damaged: count(PeerEvent::Damaged),
            dropped: count(PeerEvent::Dropped),
            hurried: count(PeerEvent::Hurried),
            nodes: self.nodes.load(Relaxed),
            down: self.down.load(Relaxed),
        }
    }
}

/// What happened between this node and its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerSnapshot {
    /// Had from peers.
    pub read: Volume,
    /// Given to peers who asked.
    pub served: Volume,
    /// Given to peers to keep.
    pub pushed: Volume,
    /// Kept for peers.
    pub taken: Volume,
    /// Samples that a peer did not have.
    pub misses: u64,
    /// Samples that were asked for again, since they might still come.
    pub retries: u64,
    /// Calls that did not reach a peer or were not answered in time.
    pub failures: u64,
    /// Samples whose bytes did not match their checksum.
    pub damaged: u64,
    /// Samples that another node was to keep and nobody does.
    pub dropped: u64,
    /// Steps that ended before all others had loaded them.
    pub hurried: u64,
    /// Other nodes: at that moment, also in a difference.
    pub nodes: u64,
    /// Those of them that are not asked at the moment.
    pub down: u64,
}

impl std::ops::Sub for PeerSnapshot {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            read: self.read - earlier.read,
            served: self.served - earlier.served,
            pushed: self.pushed - earlier.pushed,
            taken: self.taken - earlier.taken,
            misses: self.misses.saturating_sub(earlier.misses),
            retries: self.retries.saturating_sub(earlier.retries),
            failures: self.failures.saturating_sub(earlier.failures),
            damaged: self.damaged.saturating_sub(earlier.damaged),
            dropped: self.dropped.saturating_sub(earlier.dropped),
            hurried: self.hurried.saturating_sub(earlier.hurried),
            nodes: self.nodes,
            down: self.down,
        }
    }
}

//! The counters of what moves between nodes.

use belady_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use serde::{Deserialize, Serialize};

use super::{Counter2, Volume, add, volume};

/// The counters of what moves between this node and its peers.
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

/// An event between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEvent {
    /// A peer did not have a sample.
    Missed,
    /// A sample was asked for again.
    Retried,
    /// A call did not reach a peer or was not answered in time.
    Failed,
    /// A sample did not match its checksum.
    Damaged,
    /// A sample that another node was to keep was dropped.
    Dropped,
    /// A step retired before all other nodes had filled it.
    Hurried,
}

/// How samples move between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Got from a peer.
    Read,
    /// Given to a peer that asked.
    Served,
    /// Pushed to a peer to keep.
    Pushed,
    /// Accepted from a peer to keep.
    Taken,
}

impl PeerMetrics {
    /// Counts events.
    pub fn count(&self, what: PeerEvent, times: u64) {
        self.counts[what as usize].fetch_add(times, Relaxed);
    }

    /// Counts samples that have moved.
    pub fn moved(&self, how: Moved, samples: u64, bytes: u64) {
        let counter = match how {
            Moved::Read => &self.read,
            Moved::Served => &self.served,
            Moved::Pushed => &self.pushed,
            Moved::Taken => &self.taken,
        };
        add(counter, samples, bytes);
    }

    /// Sets the number of other nodes, and how many of them are down.
    pub fn nodes(&self, others: u64, down: u64) {
        self.nodes.store(others, Relaxed);
        self.down.store(down, Relaxed);
    }

    /// Returns the counters as plain values.
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

/// What has moved between this node and its peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerSnapshot {
    /// Got from peers.
    pub read: Volume,
    /// Given to peers that asked.
    pub served: Volume,
    /// Pushed to peers to keep.
    pub pushed: Volume,
    /// Accepted from peers to keep.
    pub taken: Volume,
    /// Samples that a peer did not have.
    pub misses: u64,
    /// Samples that were asked for again, since they might still come.
    pub retries: u64,
    /// Calls that did not reach a peer or were not answered in time.
    pub failures: u64,
    /// Samples whose bytes did not match their checksum.
    pub damaged: u64,
    /// Samples that another node was to keep and no node keeps.
    pub dropped: u64,
    /// Steps that retired before all other nodes had filled them.
    pub hurried: u64,
    /// The number of other nodes at that moment, also in a difference.
    pub nodes: u64,
    /// The number of them that are not used at that moment.
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

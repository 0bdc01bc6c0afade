//! A node's vitals: a few figures for `belady top`.
//!
//! A node publishes its [`Vitals`] each second ([`publish`]), and the last ones count. They are
//! sums since the start, so two of them give what happened in between, even if some were missed.
//! They are JSON; a reader of another version ignores unknown fields and takes zero for missing
//! ones.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use belady_peer::Cluster;
use serde::{Deserialize, Serialize};

use super::MetricsSnapshot;

/// Their name at the rendezvous.
pub const VITALS: &str = "vitals";

/// Often enough for the eye, and little work for the rendezvous server of a thousand nodes.
const EVERY: Duration = Duration::from_secs(1);

/// A node's figures. Sums are in bytes unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vitals {
    /// The machine's name.
    pub host: String,
    /// Milliseconds since the node began to publish.
    pub ms: u64,
    /// The time of publication by the node's clock, in milliseconds since 1970.
    pub unix_ms: u64,
    /// These are the node's last vitals.
    pub ended: bool,
    /// Delivered to consumers.
    pub delivered: u64,
    /// Time that consumers waited for batches, in milliseconds.
    pub blocked_ms: u64,
    /// Read from the source.
    pub source: u64,
    /// From reads in flight for another batch.
    pub ring: u64,
    /// Got from peers.
    pub peers: u64,
    /// By tier.
    pub tiers: Vec<TierVitals>,
    /// By rank that the node serves.
    pub ranks: Vec<RankVitals>,
    /// The node's threads, as they are assigned.
    pub threads: ThreadVitals,
    /// The number of other nodes.
    pub others: u64,
    /// The number of other nodes that this node does not use now.
    pub down: u64,
}

/// The figures of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankVitals {
    /// Its number in the job.
    pub rank: u32,
    /// Batches given to its consumer.
    pub batches: u64,
    /// Time that its consumer waited, in milliseconds.
    pub blocked_ms: u64,
    /// Imbalanced iterations in which it was the slowest of its node.
    pub straggled: u64,
    /// Time that iterations lost to it, in milliseconds.
    pub straggling_ms: u64,
    /// Threads that may load and transform for it at once; 0 where they are not divided.
    pub threads: ThreadVitals,
}

/// Threads by duty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadVitals {
    /// Threads that load.
    pub loading: u64,
    /// Threads that transform.
    pub transforming: u64,
}

/// The figures of one tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierVitals {
    /// `ram` or the directory.
    pub name: String,
    /// Bytes read from it.
    pub bytes: u64,
    /// Bytes stored in it.
    pub used: u64,
    /// Its limit.
    pub capacity: u64,
}

impl Vitals {
    /// Takes the figures from a snapshot.
    pub fn new(seen: &MetricsSnapshot, host: &str, since: Duration) -> Self {
        let tiers = seen.tiers.iter().map(|tier| TierVitals {
            name: tier.name.clone(),
            bytes: tier.bytes(),
            used: tier.used,
            capacity: tier.capacity,
        });
        let assigned = &seen.threads.assigned;
        let of_rank = |by_rank: &[u64], at: usize| by_rank.get(at).copied().unwrap_or(0);
        let ranks = seen.ranks.iter().enumerate().map(|(at, rank)| RankVitals {
            threads: ThreadVitals {
                loading: of_rank(&assigned.loading_by_rank, at),
                transforming: of_rank(&assigned.transforming_by_rank, at),
            },
            rank: rank.rank,
            batches: rank.batches,
            blocked_ms: rank.blocked_ns / 1_000_000,
            straggled: rank.straggled,
            straggling_ms: rank.straggling_ns / 1_000_000,
        });
        Self {
            host: host.to_owned(),
            ms: since.as_millis() as u64,
            unix_ms: unix_ms(),
            ended: false,
            delivered: seen.delivered.bytes,
            blocked_ms: seen.blocked_ns / 1_000_000,
            source: seen.source.bytes,
            ring: seen.ring.bytes,
            peers: seen.peers.read.bytes,
            tiers: tiers.collect(),
            ranks: ranks.collect(),
            threads: ThreadVitals {
                loading: assigned.loading,
                transforming: assigned.transforming,
            },
            others: seen.peers.nodes,
            down: seen.peers.down,
        }
    }

    fn last(self) -> Self {
        Self { ended: true, ..self }
    }

    /// Returns the vitals as JSON.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses vitals; returns `None` if they are not JSON of this form.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Returns the milliseconds since 1970 by the clock of this machine.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// Publishes a node's vitals until it is dropped.
#[derive(Debug)]
#[must_use = "publishing ends when this is dropped"]
pub struct VitalsPublisher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Passes the vitals of a node with these `figures` to `post` now, each second, and once more at
/// the end.
///
/// # Errors
/// Fails if a thread cannot be started.
pub fn publish(
    figures: impl Fn() -> MetricsSnapshot + Send + 'static,
    post: impl Fn(&Vitals) + Send + 'static,
) -> io::Result<VitalsPublisher> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (stop, stopped) = channel::<()>();
    let thread = std::thread::Builder::new().name("belady-vitals".into()).spawn(move || {
        let start = Instant::now();
        let now = || Vitals::new(&figures(), &host, start.elapsed());
        post(&now());
        while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            post(&now());
        }
        post(&now().last());
    })?;
    Ok(VitalsPublisher { stop: Some(stop), thread: Some(thread) })
}

/// Publishes at the rendezvous of a job. Of several publishers in a process, the oldest one posts,
/// and the last one reports the end.
///
/// # Errors
/// Fails if a thread cannot be started.
pub fn publish_at(
    cluster: &Cluster,
    figures: impl Fn() -> MetricsSnapshot + Send + 'static,
) -> io::Result<VitalsPublisher> {
    let (meet, status_reporter) = (cluster.rendezvous.clone(), cluster.status_reporter());
    publish(figures, move |vitals| {
        let speaks =
            if vitals.ended { status_reporter.is_alone() } else { status_reporter.is_first() };
        if speaks {
            meet.post(VITALS, &vitals.to_bytes());
        }
    })
}

impl Drop for VitalsPublisher {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use belady_base::sync::Arc;
    use belady_control::Sizes;
    use belady_control::model::Bytes;
    use belady_data::tier::{RamTier, Tier};

    use super::super::{AssignedThreads, Metrics, Served};
    use super::*;

    #[test]
    fn vitals_contain_the_counts_and_how_full_tiers_are() {
        let metrics = Arc::new(Metrics::new(&["ram".to_owned()]));
        let sizes = Arc::new(Sizes::of(4, |_| 4096));
        let tier: Arc<dyn Tier> = Arc::new(RamTier::new(Bytes(1 << 20), sizes));
        metrics.watch_tier(1, &tier);
        metrics.watch_tier(1, &tier);
        tier.put(0, &[7; 4096], 0);
        metrics.loaded(Served::Source, 1, 100);
        metrics.loaded(Served::Tier(1), 1, 4096);
        metrics.delivered(2, 4196);
        metrics.waited(Duration::from_millis(30), false);
        metrics.rank(3).waited(Duration::from_millis(30));
        let assigned = AssignedThreads {
            loading: 3,
            transforming: 1,
            loading_by_rank: vec![3],
            transforming_by_rank: vec![],
        };
        metrics.threads().assigned(assigned, true);
        metrics.rank(3).was_slowest(Duration::from_millis(20), true);
        let (post, received) = mpsc::channel();
        let figures = metrics.clone();
        let publisher = publish(
            move || figures.snapshot(),
            move |vitals| {
                post.send(Vitals::from_bytes(&vitals.to_bytes())).unwrap();
            },
        );
        let first = received.recv().unwrap().expect("JSON");
        metrics.delivered(1, 1000);
        drop(publisher);
        let last = received.into_iter().last().unwrap().expect("JSON");
        assert_eq!((first.delivered, last.delivered), (4196, 5196));
        assert_eq!((first.ended, last.ended), (false, true));
        assert_eq!((first.source, first.ring, first.blocked_ms), (100, 0, 30));
        let (batches, straggled) = (1, 1);
        let (blocked_ms, straggling_ms) = (30, 20);
        let threads = ThreadVitals { loading: 3, transforming: 0 };
        let rank = RankVitals { rank: 3, batches, blocked_ms, straggled, straggling_ms, threads };
        assert_eq!(first.ranks, [rank]);
        assert_eq!(first.threads, ThreadVitals { loading: 3, transforming: 1 });
        let ram = &first.tiers[0];
        assert_eq!((ram.name.as_str(), ram.bytes, ram.used), ("ram", 4096, 4096), "counted once");
        assert!(ram.capacity >= 1 << 20 && !first.host.is_empty());
        drop(tier);
        assert_eq!(metrics.snapshot().tiers[0].used, 0, "a tier that is gone is empty");
    }

    #[test]
    fn vitals_of_another_version_are_read_as_far_as_known() {
        let told = br#"{"delivered": 5, "mood": "fine", "tiers": [{"name": "ram"}]}"#;
        let vitals = Vitals::from_bytes(told).expect("JSON");
        assert_eq!((vitals.delivered, vitals.source, vitals.tiers[0].used), (5, 0, 0));
        assert_eq!(Vitals::from_bytes(b"{\"delivered\": -1}"), None);
        assert_eq!(Vitals::from_bytes(b"\xff"), None);
    }
}

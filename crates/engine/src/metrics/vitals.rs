//! How a node is doing, in a few numbers, for whoever watches the job from outside (`belady top`).
//!
//! A node tells its [`Vitals`] each second ([`publish`]), and the last one counts. They are sums since
//! the start: two of them say what happened in between, also if some were missed. They travel as JSON,
//! whose reader leaves out what it does not know and takes nothing for what is not there: the watcher
//! may be of another version.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use belady_data::sync::Arc;
use serde::{Deserialize, Serialize};

use super::{Metrics, MetricsSnapshot};

/// What they are called in the book of a meeting.
pub const VITALS: &str = "vitals";

/// Often enough for the eye, and next to no work for the meeting point of a thousand nodes.
const EVERY: Duration = Duration::from_secs(1);

/// All sums are in bytes unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Vitals {
    /// The machine's name.
    pub host: String,
    /// Since the node began to tell.
    pub ms: u64,
    /// When it told this, by the clock of its machine, in milliseconds since 1970.
    pub unix_ms: u64,
    /// It has told this in the end, and tells nothing any more.
    pub ended: bool,
    pub delivered: u64,
    /// Time that consumers waited for batches.
    pub blocked_ms: u64,
    pub source: u64,
    /// From reads that were in flight for someone else.
    pub ring: u64,
    pub peers: u64,
    pub tiers: Vec<TierVitals>,
    /// Other nodes.
    pub others: u64,
    /// Those of them that this node cannot reach.
    pub down: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierVitals {
    pub name: String,
    /// What it gave.
    pub bytes: u64,
    pub used: u64,
    pub capacity: u64,
}

impl Vitals {
    pub fn new(seen: &MetricsSnapshot, host: &str, since: Duration) -> Self {
        let tiers = seen.tiers.iter().map(|tier| TierVitals {
            name: tier.name.clone(),
            bytes: tier.bytes(),
            used: tier.used,
            capacity: tier.capacity,
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
            others: seen.peers.nodes,
            down: seen.peers.down,
        }
    }

    fn last(self) -> Self {
        Self { ended: true, ..self }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// `None` if a node told something else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

/// Milliseconds since 1970, by the clock of this machine.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// A node tells how it is doing as long as this is there.
#[derive(Debug)]
#[must_use = "nothing is told any more once this is dropped"]
pub struct Publisher {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Tells `tell` how the node is doing, now, each second, and once more at the end.
pub fn publish(
    metrics: Arc<Metrics>,
    tell: impl Fn(&Vitals) + Send + 'static,
) -> io::Result<Publisher> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (stop, stopped) = channel::<()>();
    let thread = std::thread::Builder::new().name("belady-vitals".into()).spawn(move || {
        let start = Instant::now();
        let now = || Vitals::new(&metrics.snapshot(), &host, start.elapsed());
        tell(&now());
        while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            tell(&now());
        }
        tell(&now().last());
    })?;
    Ok(Publisher { stop: Some(stop), thread: Some(thread) })
}

impl Drop for Publisher {
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

    use belady_control::Sizes;
    use belady_control::model::Bytes;
    use belady_data::tier::{RamTier, Tier};

    use super::super::Served;
    use super::*;

    #[test]
    fn what_is_told_says_what_was_counted_and_how_full_tiers_are() {
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
        let (told, hear) = mpsc::channel();
        let publisher = publish(metrics.clone(), move |vitals| {
            told.send(Vitals::from_bytes(&vitals.to_bytes())).unwrap();
        });
        let first = hear.recv().unwrap().expect("JSON");
        metrics.delivered(1, 1000);
        drop(publisher);
        let last = hear.into_iter().last().unwrap().expect("JSON");
        assert_eq!((first.delivered, last.delivered), (4196, 5196));
        assert_eq!((first.ended, last.ended), (false, true));
        assert_eq!((first.source, first.ring, first.blocked_ms), (100, 0, 30));
        let ram = &first.tiers[0];
        assert_eq!((ram.name.as_str(), ram.bytes, ram.used), ("ram", 4096, 4096), "counted once");
        assert!(ram.capacity >= 1 << 20 && !first.host.is_empty());
        drop(tier);
        assert_eq!(metrics.snapshot().tiers[0].used, 0, "a tier that is gone is empty");
    }

    #[test]
    fn another_version_is_understood_as_far_as_it_goes() {
        let told = br#"{"delivered": 5, "mood": "fine", "tiers": [{"name": "ram"}]}"#;
        let vitals = Vitals::from_bytes(told).expect("JSON");
        assert_eq!((vitals.delivered, vitals.source, vitals.tiers[0].used), (5, 0, 0));
        assert_eq!(Vitals::from_bytes(b"{\"delivered\": -1}"), None);
        assert_eq!(Vitals::from_bytes(b"\xff"), None);
    }
}

//! The disk tier: samples in large segment files, found again by the next run.
//!
//! ```text
//!   put:  room in the segments -> data -> checksum -> location in the index
//!   get:  entry of the index -> data -> checksum right? -> hit
//! ```
//!
//! | module | what it knows |
//! |---|---|
//! | `directory` | which files there are, whose they are, who has them open |
//! | `quota` | how much of the quota this dataset may use |
//! | `open` | how these lead to an open cache |
//! | `index`, `granule`, `location` | the index, its format and that of samples in pieces |
//! | `space` | what is free |
//! | `segments`, `io` | how bytes get to the disk and back |
//! | `store` | put, get and evict |
//! | `manage` | looking at, checking and clearing caches |
//!
//! A process may be killed at any point: what it was writing is lost, nothing else. One
//! process writes a cache, others share it as readers. Trouble (a full, read-only or foreign
//! directory) is said once and makes the tier hold less or nothing; it never fails a call.

mod directory;
mod granule;
mod index;
mod io;
mod location;
mod manage;
mod open;
mod quota;
mod segments;
mod space;
mod store;
mod troubles;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use belady_control::Sizes;
use belady_control::model::Bytes;

pub use directory::DirectoryError;
pub use granule::Granule;
pub use index::{Entry, Header, IndexError, IndexView, check_index};
pub use location::Location;
pub use manage::{CacheInfo, ManageError, Verified, VerifyProgress, Which, clear, list, verify};
pub use store::FileVersions;
use store::Store;
use troubles::{Trouble, Troubles};

use super::{Evicted, Get, Put, Tier, TierStatus};
use crate::SampleId;

/// The room in a cache of so many samples is worked out while it is opened: that takes no
/// more than some milliseconds.
const FEW: u32 = 1 << 14;
/// How long a tier that is dropped waits for its disk: one that is only slow has written its index by then.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where and for what a disk tier is.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    pub directory: PathBuf,
    /// For all caches in the directory together, their indexes included.
    pub quota: Bytes,
    /// The most that this cache may use of it. With none, nothing is opened or removed.
    pub share: Bytes,
    /// Tells the dataset from all others and from what it was before a change.
    pub fingerprint: u64,
    /// For people who look at the cache.
    pub name: String,
    pub sizes: Arc<Sizes>,
    /// Length of the segment files of a new cache, a multiple of 4096; by default 1 GiB, or
    /// more where that would be more than 128 files.
    pub segment: Option<Bytes>,
    /// Which version of its file each sample is of: copies are made of that and compared with it.
    pub versions: FileVersions,
}

/// Storage class of a local disk.
#[derive(Debug)]
pub struct DiskTier {
    sizes: Arc<Sizes>,
    /// `None` if the tier does nothing.
    store: Option<Arc<Store>>,
    troubles: Troubles,
    /// Works out the room in a large cache.
    recovery: Option<JoinHandle<()>>,
}

impl DiskTier {
    /// Opens the cache of a dataset, or makes it. What cannot be is left out with a warning
    /// and told by [`Tier::status`].
    ///
    /// Which room the samples of an earlier run leave is worked out by a thread of its own if
    /// they are many. Samples can be had meanwhile, and those that come are refused.
    pub fn open(config: DiskConfig) -> Self {
        let troubles = Troubles::default();
        let store = opened(&config, &troubles).map(Arc::new);
        let recovery = store.as_ref().and_then(|store| begin_recovery(store, &config.sizes));
        Self { sizes: config.sizes, store, troubles, recovery }
    }

    /// Opens what an earlier run or another process keeps of a dataset, to read only; `None` if
    /// there is nothing that can be read.
    pub fn open_to_read(config: DiskConfig) -> Option<Self> {
        let store = open::open_to_read(&config)?;
        let troubles = Troubles::default();
        Some(Self { sizes: config.sizes, store: Some(Arc::new(store)), troubles, recovery: None })
    }

    /// Waits until it is known which room the samples of earlier runs leave.
    pub fn recover(&self) {
        if let Some(store) = &self.store {
            store.recover(&self.sizes);
        }
    }

    fn is_sample(&self, sample: SampleId, length: usize) -> bool {
        sample < self.sizes.len() && self.sizes.get(sample) == length as u64
    }
}

fn opened(config: &DiskConfig, troubles: &Troubles) -> Option<Store> {
    let off = |why: &str| format!("the disk tier in {} is off: {why}", config.directory.display());
    if config.share == Bytes::ZERO {
        // Whoever shares the quota out knows.
        troubles.inform(Trouble::Off, off("none of its quota is left for this job"));
        return None;
    }
    open::open(config, troubles)
        .inspect_err(|why| troubles.warn(Trouble::Off, off(&why.to_string())))
        .ok()
}

fn begin_recovery(store: &Arc<Store>, sizes: &Arc<Sizes>) -> Option<JoinHandle<()>> {
    if store.writer.as_ref()?.is_ready() {
        return None;
    }
    let thread = (sizes.len() > FEW).then(|| {
        let (store, sizes) = (Arc::clone(store), Arc::clone(sizes));
        Builder::new().name("belady-recover".into()).spawn(move || store.recover(&sizes)).ok()
    });
    let thread = thread.flatten();
    if thread.is_none() {
        store.recover(sizes);
    }
    thread
}

impl Tier for DiskTier {
    fn put(&self, sample: SampleId, bytes: &[u8], version: i64) -> Put {
        match &self.store {
            Some(store) if self.is_sample(sample, bytes.len()) => match &store.writer {
                Some(writer) => {
                    store.put(writer, &self.sizes, (sample, version), bytes, &self.troubles)
                }
                None => Put::Refused,
            },
            _ => Put::Refused,
        }
    }

    fn get(&self, sample: SampleId, into: &mut [u8]) -> Get {
        match &self.store {
            Some(store) if self.is_sample(sample, into.len()) => {
                store.get(sample, into, &self.troubles)
            }
            _ => Get::Miss,
        }
    }

    fn evict(&self, sample: SampleId) -> bool {
        match &self.store {
            Some(store) if sample < self.sizes.len() => store
                .writer
                .as_ref()
                .is_some_and(|writer| store.evict(writer, sample, self.sizes.get(sample))),
            _ => false,
        }
    }

    fn evict_now(&self, sample: SampleId) -> Evicted {
        match self.store.as_ref().and_then(|store| Some((store, store.writer.as_ref()?))) {
            Some((store, writer)) if sample < self.sizes.len() => {
                store.evict_now(writer, sample, self.sizes.get(sample))
            }
            _ => Evicted::NotHeld,
        }
    }

    fn holds(&self, sample: SampleId) -> bool {
        self.store.as_ref().is_some_and(|store| store.holds(sample))
    }

    fn is_current(&self, sample: SampleId) -> bool {
        self.store.as_ref().is_some_and(|store| store.is_current(sample))
    }

    fn footprint(&self, size: u64) -> u64 {
        self.store.as_ref().map_or(size, |store| {
            let granule = store.segments.granule();
            granule.count(size) * granule.bytes()
        })
    }

    fn status(&self) -> TierStatus {
        let occupancy = self.store.as_ref().map(|store| store.occupancy(&self.sizes));
        let (samples, used, capacity) = occupancy.unwrap_or_default();
        TierStatus {
            capacity: Bytes(capacity),
            used: Bytes(used),
            samples,
            degraded: self.troubles.summary(),
        }
    }
}

/// A disk that does not answer is left as it is: what was let go may be found again, and what is found is
/// right.
impl Drop for DiskTier {
    fn drop(&mut self) {
        let (recovery, store) = (self.recovery.take(), self.store.take());
        let path = store.as_ref().map(|store| store.cache.path.clone());
        let finish = move || {
            // The writer's lock is ours until it has ended.
            if let Some(recovery) = recovery {
                let _ = recovery.join();
            }
            if let Some(store) = store {
                let _ = store.index.flush();
                store.cache.touch();
            }
        };
        if let Some(path) = path
            && !ends_within(PATIENCE, finish)
        {
            tracing::warn!(
                "the cache disk of {} does not answer: its cache is left as it is, and locked until this \
                 process ends",
                path.display()
            );
        }
    }
}

/// Does something on a thread of its own; whether it has ended within this time.
fn ends_within(limit: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (done, is_done) = std::sync::mpsc::channel();
    let spawned = Builder::new().name("belady-close".into()).spawn(move || {
        work();
        // The receiver may be gone: it has waited long enough.
        let _ = done.send(());
    });
    // Without a thread nothing is done, which need not be waited for either.
    spawned.is_err() || is_done.recv_timeout(limit) != Err(RecvTimeoutError::Timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_hangs_does_not_keep_a_process_from_ending() {
        let (answers, hangs) = std::sync::mpsc::channel::<()>();
        let hanging = move || {
            let _ = hangs.recv();
        };
        assert!(!ends_within(Duration::from_millis(10), hanging));
        drop(answers);
        assert!(ends_within(Duration::from_mins(1), || ()));
    }
}

//! The disk tier: samples in large segment files that outlive the run.
//!
//! ```text
//!   put:  space in the segments -> data -> checksum -> entry in the index
//!   get:  entry in the index -> data -> checksum right? -> hit
//! ```
//!
//! | module | content |
//! |---|---|
//! | `directory` | the files of a cache directory, their owner and their locks |
//! | `quota` | how much of the quota a dataset's cache may use |
//! | `open` | opening a cache as writer or reader |
//! | `index`, `granule`, `location` | the index file, and the encoding of locations and pieces |
//! | `space` | allocation of space in the segments |
//! | `segments`, `segment_file` | reading and writing the segments |
//! | `store`, `writer` | put, get and evict, and what only the writer has |
//! | `degradation` | why a tier does less than configured |
//! | `manage` | listing, verifying and clearing caches |
//!
//! A process that is killed loses only the sample it was writing. One process writes a cache, and
//! others share it as readers. A full, read-only or foreign directory is reported once and makes
//! the tier hold less or nothing; it never fails a call.

mod degradation;
mod directory;
mod granule;
mod index;
mod location;
mod manage;
mod open;
mod quota;
mod segment_file;
mod segments;
mod space;
mod store;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use belady_base::SampleId;
use belady_control::Sizes;
use belady_control::model::Bytes;

use degradation::{Degradation, Degradations};
pub use directory::DirectoryError;
pub use granule::Granule;
pub use index::{CacheIndexError, IndexEntry, IndexHeader, IndexView, check_index};
pub use location::SegmentLocation;
pub use manage::{CacheInfo, ManageError, Verified, VerifyProgress, Which, clear, list, verify};
use store::CacheStore;
pub use store::FileVersions;

use super::{Evicted, Get, Put, Tier, TierStatus};

/// The free space of a cache with up to this many samples is recovered when it is opened, which
/// takes a few milliseconds.
const FEW: u32 = 1 << 14;
/// How long a dropped tier waits for its disk: a disk that is only slow has written the index by
/// then.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The configuration of a disk tier.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The directory of the cache.
    pub directory: PathBuf,
    /// The quota of all caches in the directory together, indexes included.
    pub quota: Bytes,
    /// The part of the quota that this cache may use. With zero, nothing is opened or removed.
    pub share: Bytes,
    /// Identifies the dataset and its version.
    pub fingerprint: u64,
    /// The dataset's name, shown when caches are listed.
    pub name: String,
    /// The sizes of the samples.
    pub sizes: Arc<Sizes>,
    /// The length of the segment files of a new cache, a multiple of 4096; by default 1 GiB, or
    /// more if that would be more than 128 files.
    pub segment: Option<Bytes>,
    /// The current version of each sample's file, which copies are compared with.
    pub versions: FileVersions,
}

/// A tier on a local disk.
#[derive(Debug)]
pub struct DiskTier {
    sizes: Arc<Sizes>,
    /// `None` if the tier is off.
    store: Option<Arc<CacheStore>>,
    degradations: Degradations,
    /// Recovers the free space of a large cache.
    recovery: Option<JoinHandle<()>>,
}

impl DiskTier {
    /// Opens or creates the cache of a dataset. A tier that does less than configured logs a
    /// warning and says so in [`Tier::status`].
    ///
    /// A thread recovers the free space of a large cache. Meanwhile gets succeed and puts are
    /// refused.
    pub fn open(config: DiskConfig) -> Self {
        let degradations = Degradations::default();
        let store = opened(&config, &degradations).map(Arc::new);
        let recovery = store.as_ref().and_then(|store| begin_recovery(store, &config.sizes));
        Self { sizes: config.sizes, store, degradations, recovery }
    }

    /// Opens the cache of an earlier run or another process for reading only; `None` if there is
    /// none that can be read.
    pub fn open_to_read(config: DiskConfig) -> Option<Self> {
        let store = open::open_to_read(&config)?;
        let degradations = Degradations::default();
        Some(Self {
            sizes: config.sizes,
            store: Some(Arc::new(store)),
            degradations,
            recovery: None,
        })
    }

    /// Waits until the free space of the cache is recovered.
    pub fn recover(&self) {
        if let Some(store) = &self.store {
            store.recover(&self.sizes);
        }
    }

    fn is_sample(&self, sample: SampleId, length: usize) -> bool {
        sample < self.sizes.len() && self.sizes.get(sample) == length as u64
    }
}

fn opened(config: &DiskConfig, degradations: &Degradations) -> Option<CacheStore> {
    let off = |why: &str| format!("the disk tier in {} is off: {why}", config.directory.display());
    if config.share == Bytes::ZERO {
        // Not a warning: the caller has divided the quota.
        degradations.inform(Degradation::Off, off("none of its quota is left for this job"));
        return None;
    }
    open::open(config, degradations)
        .inspect_err(|why| degradations.warn(Degradation::Off, off(&why.to_string())))
        .ok()
}

fn begin_recovery(store: &Arc<CacheStore>, sizes: &Arc<Sizes>) -> Option<JoinHandle<()>> {
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
                    store.put(writer, &self.sizes, (sample, version), bytes, &self.degradations)
                }
                None => Put::Refused,
            },
            _ => Put::Refused,
        }
    }

    fn get(&self, sample: SampleId, into: &mut [u8]) -> Get {
        match &self.store {
            Some(store) if self.is_sample(sample, into.len()) => {
                store.get(sample, into, &self.degradations)
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
            degraded: self.degradations.summary(),
        }
    }
}

/// If the disk does not answer, evicted samples may stay in the index. They are still right.
impl Drop for DiskTier {
    fn drop(&mut self) {
        let (recovery, store) = (self.recovery.take(), self.store.take());
        let path = store.as_ref().map(|store| store.cache.path.clone());
        let finish = move || {
            // The recovery thread holds the writer lock until it ends.
            if let Some(recovery) = recovery {
                let _ = recovery.join();
            }
            if let Some(store) = store {
                let _ = store.index.flush();
                store.cache.touch();
            }
        };
        if let Some(path) = path
            && !ends_within(CLOSE_TIMEOUT, finish)
        {
            tracing::warn!(
                "the disk of the cache {} does not answer: the cache is left as it is, and locked \
                 until this process ends",
                path.display()
            );
        }
    }
}

/// Runs work on a new thread, and returns whether it ended within the limit.
fn ends_within(limit: Duration, work: impl FnOnce() + Send + 'static) -> bool {
    let (done, is_done) = std::sync::mpsc::channel();
    let spawned = Builder::new().name("belady-close".into()).spawn(move || {
        work();
        // The receiver may have stopped waiting.
        let _ = done.send(());
    });
    // Without a thread there is nothing to wait for.
    spawned.is_err() || is_done.recv_timeout(limit) != Err(RecvTimeoutError::Timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hung_disk_does_not_keep_a_tier_from_closing() {
        let (answers, hangs) = std::sync::mpsc::channel::<()>();
        let hanging = move || {
            let _ = hangs.recv();
        };
        assert!(!ends_within(Duration::from_millis(10), hanging));
        drop(answers);
        assert!(ends_within(Duration::from_mins(1), || ()));
    }
}

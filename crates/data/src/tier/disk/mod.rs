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
//! | `index`, `location` | the format of the index and of samples in pieces |
//! | `space` | what is free |
//! | `segments`, `io` | how bytes get to the disk and back |
//! | `store` | put, get and evict |
//! | `manage` | looking at, checking and clearing caches |
//!
//! A process may be killed at any point: what it was writing is lost, nothing else. One
//! process writes a cache, others share it as readers. Trouble (a full, read-only or foreign
//! directory) is said once and makes the tier hold less or nothing; it never fails a call.

mod directory;
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

use belady_control::Sizes;
use belady_control::model::Bytes;

pub use directory::DirectoryError;
pub use index::{Entry, Header, IndexError, IndexView, check_index};
pub use location::Location;
pub use manage::{CacheInfo, ManageError, Verified, VerifyProgress, Which, clear, list, verify};
use store::Store;
use troubles::{Trouble, Troubles};

use super::{Get, Put, Tier, TierStatus};
use crate::SampleId;

/// Where and for what a disk tier is.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    pub directory: PathBuf,
    /// For all caches in the directory together, their indexes included.
    pub capacity: Bytes,
    /// Tells the dataset from all others and from what it was before a change.
    pub fingerprint: u64,
    /// For people who look at the cache.
    pub name: String,
    pub sizes: Arc<Sizes>,
    /// Length of the segment files of a new cache, a multiple of 4096; by default 1 GiB, or
    /// more where that would be more than 128 files.
    pub segment: Option<Bytes>,
}

/// Storage class of a local disk.
#[derive(Debug)]
pub struct DiskTier {
    sizes: Arc<Sizes>,
    /// `None` if the tier does nothing.
    store: Option<Store>,
    troubles: Troubles,
}

impl DiskTier {
    /// Opens the cache of a dataset, or makes it. What cannot be is left out with a warning
    /// and told by [`Tier::status`].
    pub fn open(config: DiskConfig) -> Self {
        let troubles = Troubles::default();
        let store = match open::open(&config, &troubles) {
            Ok(store) => Some(store),
            Err(why) => {
                let directory = config.directory.display();
                let sentence = format!("the disk tier in {directory} is off: {why}");
                troubles.warn(Trouble::Off, sentence);
                None
            }
        };
        Self { sizes: config.sizes, store, troubles }
    }

    /// Works out now what the first `put` would otherwise wait for: which room the samples
    /// of earlier runs leave. May run on another thread while samples are read.
    pub fn recover(&self) {
        if let Some(store) = &self.store
            && let Some(writer) = &store.writer
        {
            store.recover(writer, &self.sizes);
        }
    }

    fn is_sample(&self, sample: SampleId, length: usize) -> bool {
        sample < self.sizes.len() && self.sizes.get(sample) == length as u64
    }
}

impl Tier for DiskTier {
    fn put(&self, sample: SampleId, bytes: &[u8]) -> Put {
        match &self.store {
            Some(store) if self.is_sample(sample, bytes.len()) => match &store.writer {
                Some(writer) => store.put(writer, &self.sizes, sample, bytes, &self.troubles),
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

    fn holds(&self, sample: SampleId) -> bool {
        self.store.as_ref().is_some_and(|store| store.index.location(sample).is_some())
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

impl Drop for DiskTier {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            store.cache.touch();
        }
    }
}

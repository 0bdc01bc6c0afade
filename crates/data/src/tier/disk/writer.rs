//! What only the writer of a cache has: the space, and a lock for each group of samples.

use std::time::Instant;

use belady_base::SampleId;
use belady_base::fork::FileLock;
use belady_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use belady_base::sync::{Mutex, MutexGuard, lock, lock_within};

use super::segments::Segments;
use super::space::SegmentSpace;

/// Locks shared by samples: far more than threads, so that two seldom meet.
pub(super) const STRIPES: usize = 256;

/// The writer of a cache.
#[derive(Debug)]
pub(super) struct CacheWriter {
    /// `None` until it is recovered from the index.
    pub space: Mutex<Option<SegmentSpace>>,
    /// Whether it is recovered.
    ready: AtomicBool,
    /// The last known values of the space, readable without its lock.
    pub used: AtomicU64,
    pub capacity: AtomicU64,
    /// The bytes of the segments when they were opened.
    pub made: u64,
    /// The bytes that the segments may have.
    pub limit: u64,
    stripes: Box<[Mutex<()>]>,
    /// Released last.
    _lock: FileLock,
}

impl CacheWriter {
    /// Creates the writer of segments of `made` bytes that may have `limit`.
    pub fn new(made: u64, limit: u64, lock: FileLock) -> Self {
        Self {
            space: Mutex::new(None),
            ready: AtomicBool::new(false),
            used: AtomicU64::new(0),
            capacity: AtomicU64::new(limit),
            made,
            limit,
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            _lock: lock,
        }
    }

    /// Creates the writer of a cache without samples.
    pub fn of_empty(segments: &Segments, limit: u64, lock: FileLock) -> Self {
        let space = Mutex::new(Some(SegmentSpace::empty(segments, limit)));
        Self { space, ready: AtomicBool::new(true), ..Self::new(0, limit, lock) }
    }

    /// Whether the free space is known.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Updates the values of the space. Called with its lock held.
    pub fn note(&self, space: &SegmentSpace) {
        self.used.store(space.used(), Ordering::Relaxed);
        self.capacity.store(space.capacity(), Ordering::Relaxed);
        self.ready.store(true, Ordering::Release);
    }

    pub fn stripe(&self, sample: SampleId) -> MutexGuard<'_, ()> {
        lock(&self.stripes[sample as usize % STRIPES])
    }

    /// Takes the locks that an eviction needs; `None` if that takes too long.
    pub fn lock_within(
        &self,
        sample: SampleId,
        until: Instant,
    ) -> Option<(MutexGuard<'_, ()>, MutexGuard<'_, Option<SegmentSpace>>)> {
        let stripe = lock_within(&self.stripes[sample as usize % STRIPES], until)?;
        Some((stripe, lock_within(&self.space, until)?))
    }
}

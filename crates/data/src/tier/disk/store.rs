//! An open cache: index and segments, and for its writer the room in them.
//!
//! Readers take no lock. They copy a sample out as its entry said and believe it only if
//! its checksum is right. Writing and evicting one sample exclude each other by a lock that
//! it shares with few others. A reader whose checksum fails looks again under that lock,
//! when nothing can move: then it is damage. A process without the writer's lock can only
//! look whether the entry has changed meanwhile.

use std::io;
use std::time::{Duration, Instant};

use belady_control::Sizes;

use super::directory::CacheDirectory;
use super::index::{Entry, Index, checksum};
use super::location::{Location, encode_table, payload_runs};
use super::segments::Segments;
use super::space::{Allocation, Space, is_full};
use super::troubles::{Trouble, Troubles};
use crate::SampleId;
use crate::fork::FileLock;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, lock, lock_within};
use crate::tier::extents::Extent;
use crate::tier::{Evicted, Get, Put};

/// Locks shared by samples: far more than threads, so that two seldom meet.
const STRIPES: usize = 256;
/// A write that takes longer than this is not waited for: it may hang. Almost all take less.
const PATIENCE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Store {
    pub index: Index,
    pub segments: Segments,
    pub cache: CacheDirectory,
    /// `None` if another job or process writes this cache.
    pub writer: Option<Writer>,
}

/// What only the writer of a cache has.
#[derive(Debug)]
pub(super) struct Writer {
    /// `None` until it is worked out from the index.
    space: Mutex<Option<Space>>,
    /// Whether it is.
    ready: AtomicBool,
    /// What the space said last, for those who do not wait for its lock.
    used: AtomicU64,
    capacity: AtomicU64,
    /// What the segments had when they were opened, and may have.
    made: u64,
    limit: u64,
    stripes: Box<[Mutex<()>]>,
    /// Goes last, with the writer.
    _lock: FileLock,
}

/// How a copy out of the segments ended.
enum Copied {
    Right,
    Wrong,
    Failed(io::Error),
}

impl Writer {
    /// For segments of `made` bytes that may have `limit`.
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

    /// For a cache without samples.
    pub fn of_empty(segments: &Segments, limit: u64, lock: FileLock) -> Self {
        let space = Mutex::new(Some(Space::empty(segments, limit)));
        Self { space, ready: AtomicBool::new(true), ..Self::new(0, limit, lock) }
    }

    /// Whether it is known what is free.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// With the lock of the space held.
    fn note(&self, space: &Space) {
        self.used.store(space.used(), Ordering::Relaxed);
        self.capacity.store(space.capacity(), Ordering::Relaxed);
        self.ready.store(true, Ordering::Release);
    }

    fn stripe(&self, sample: SampleId) -> MutexGuard<'_, ()> {
        lock(&self.stripes[sample as usize % STRIPES])
    }
}

impl Store {
    pub fn put(
        &self,
        writer: &Writer,
        sizes: &Sizes,
        sample: SampleId,
        bytes: &[u8],
        troubles: &Troubles,
    ) -> Put {
        let _stripe = writer.stripe(sample);
        if self.index.location(sample).is_some() {
            return Put::Present;
        }
        if !writer.is_ready() {
            return Put::Refused;
        }
        let pieces = if bytes.is_empty() {
            Vec::new()
        } else {
            let allocation = self.with_space(writer, sizes, |space| {
                space.allocate(bytes.len() as u64, &self.segments)
            });
            match self.allocated(allocation, troubles) {
                Some(pieces) => pieces,
                None => return Put::Full,
            }
        };
        if let Err(error) = self.write(&pieces, bytes) {
            self.with_space(writer, sizes, |space| space.retire(&pieces));
            let path = self.cache.path.display();
            troubles.warn(Trouble::WriteFailed, format!("cannot write to {path}: {error}"));
            return if is_full(&error) { Put::Full } else { Put::Refused };
        }
        let location = Location {
            start: pieces.first().map_or(0, |piece| piece.start),
            pieces: (pieces.len() > 1).then_some(pieces.len() as u32),
        };
        self.with_space(writer, sizes, |space| space.keep(sample, pieces));
        let checksum = checksum(self.index.header.fingerprint, sample, bytes);
        self.index.publish(sample, bytes.len() as u64, checksum, location);
        Put::Stored
    }

    pub fn get(&self, sample: SampleId, into: &mut [u8], troubles: &Troubles) -> Get {
        let Some(entry) = self.held(sample) else { return Get::Miss };
        if let Copied::Right = self.copy(sample, entry, into) {
            return Get::Hit;
        }
        match &self.writer {
            Some(writer) => self.get_again(writer, sample, into, troubles),
            None if self.held(sample) == Some(entry) => Get::Damaged,
            None => Get::Miss,
        }
    }

    /// Lets a sample go; whether it was held.
    pub fn evict(&self, writer: &Writer, sample: SampleId, size: u64) -> bool {
        let _stripe = writer.stripe(sample);
        self.drop_sample(writer, sample, size, Space::free)
    }

    /// The same, without waiting for a write to its end.
    pub fn evict_now(&self, writer: &Writer, sample: SampleId, size: u64) -> Evicted {
        let evicted = |was_held| if was_held { Evicted::Gone } else { Evicted::NotHeld };
        if self.index.location(sample).is_none() {
            return Evicted::NotHeld;
        }
        if !writer.is_ready() {
            // Whoever works out the room comes to an end.
            return evicted(self.evict(writer, sample, size));
        }
        let until = Instant::now() + PATIENCE;
        let stripe = &writer.stripes[sample as usize % STRIPES];
        let Some(_stripe) = lock_within(stripe, until) else { return Evicted::Busy };
        let Some(mut space) = lock_within(&writer.space, until) else { return Evicted::Busy };
        evicted(self.drop_within(writer, &mut space, sample, size, Space::free))
    }

    /// Works out what is free, if that was not done yet; waits for whoever is at it.
    pub fn recover(&self, sizes: &Sizes) {
        if let Some(writer) = &self.writer {
            self.with_space(writer, sizes, |_| ());
        }
    }

    /// Samples held, their bytes, and the bytes that there can be.
    pub fn occupancy(&self, sizes: &Sizes) -> (u64, u64, u64) {
        let Some(writer) = &self.writer else {
            let held = self.index.held();
            return (held.samples, held.bytes, held.bytes);
        };
        // A count that never got to the disk must not hide what is there. If nothing is, this
        // does not take long.
        if !writer.is_ready() && self.index.held().samples == 0 {
            self.recover(sizes);
        }
        let held = self.index.held();
        let capacity = writer.capacity.load(Ordering::Relaxed);
        let is_ready = writer.is_ready();
        let used = if is_ready { writer.used.load(Ordering::Relaxed) } else { held.bytes };
        (held.samples, used.min(capacity), capacity)
    }

    /// Whether a sample's bytes are as an entry says; `scratch` saves allocations.
    pub fn is_right(
        &self,
        sample: SampleId,
        entry: Entry,
        size: u64,
        scratch: &mut Vec<u8>,
    ) -> bool {
        // A size from a broken index may be anything.
        if size > self.cache.bytes() {
            return false;
        }
        scratch.resize(size as usize, 0);
        matches!(self.copy(sample, entry, scratch), Copied::Right)
    }

    fn held(&self, sample: SampleId) -> Option<Entry> {
        self.index.entry(sample).filter(|entry| entry.location.is_some())
    }

    fn copy(&self, sample: SampleId, entry: Entry, into: &mut [u8]) -> Copied {
        let Some(location) = entry.location else { return Copied::Wrong };
        if let Err(error) = self.segments.read_sample(location, into) {
            return Copied::Failed(error);
        }
        let found = checksum(self.index.header.fingerprint, sample, into);
        if found == entry.checksum { Copied::Right } else { Copied::Wrong }
    }

    /// The second look, while nobody can move the sample.
    fn get_again(
        &self,
        writer: &Writer,
        sample: SampleId,
        into: &mut [u8],
        troubles: &Troubles,
    ) -> Get {
        let _stripe = writer.stripe(sample);
        let Some(entry) = self.held(sample) else { return Get::Miss };
        let size = into.len() as u64;
        match self.copy(sample, entry, into) {
            Copied::Right => return Get::Hit,
            Copied::Wrong => self.drop_sample(writer, sample, size, Space::free),
            Copied::Failed(error) => {
                let path = self.cache.path.display();
                let sentence = format!("cannot read sample {sample} in {path}: {error}");
                troubles.warn(Trouble::ReadFailed, sentence);
                self.drop_sample(writer, sample, size, Space::retire)
            }
        };
        Get::Damaged
    }

    /// With the sample's stripe locked. The location goes first, then its room is given to
    /// others.
    fn drop_sample(
        &self,
        writer: &Writer,
        sample: SampleId,
        size: u64,
        give: impl FnOnce(&mut Space, &[Extent]),
    ) -> bool {
        // An index that is being read for its free room must not change meanwhile.
        self.drop_within(writer, &mut lock(&writer.space), sample, size, give)
    }

    fn drop_within(
        &self,
        writer: &Writer,
        space: &mut Option<Space>,
        sample: SampleId,
        size: u64,
        give: impl FnOnce(&mut Space, &[Extent]),
    ) -> bool {
        let Some(location) = self.index.location(sample) else { return false };
        self.index.clear(sample, size);
        if let Some(space) = space {
            let pieces = space.forget(sample, location, size);
            give(space, &pieces);
            writer.note(space);
        }
        true
    }

    fn with_space<R>(
        &self,
        writer: &Writer,
        sizes: &Sizes,
        work: impl FnOnce(&mut Space) -> R,
    ) -> R {
        let mut space = lock(&writer.space);
        let space = space.get_or_insert_with(|| {
            Space::recover(&self.index, sizes, &self.segments, writer.made, writer.limit)
        });
        let result = work(space);
        writer.note(space);
        result
    }

    fn allocated(&self, allocation: Allocation, troubles: &Troubles) -> Option<Vec<Extent>> {
        if let Some(error) = allocation.stunted {
            let path = self.cache.path.display();
            let sentence = format!("{path} cannot grow further: {error}; it goes on as it is");
            troubles.warn(Trouble::NoGrowth, sentence);
        }
        (!allocation.pieces.is_empty()).then_some(allocation.pieces)
    }

    fn write(&self, pieces: &[Extent], bytes: &[u8]) -> io::Result<()> {
        let granule = self.segments.granule();
        if let [first, _, ..] = pieces {
            self.segments.write(first.start * granule.bytes(), &encode_table(pieces))?;
        }
        let mut rest = bytes;
        for (at, length) in payload_runs(pieces, bytes.len() as u64, granule) {
            let (part, others) = rest.split_at(length);
            self.segments.write(at, part)?;
            rest = others;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use belady_control::model::Bytes;

    use super::*;
    use crate::tier::Tier;
    use crate::tier::disk::{DiskConfig, DiskTier};

    #[test]
    fn letting_go_does_not_wait_for_a_write_that_hangs() {
        let folder = tempfile::tempdir().unwrap();
        let tier = DiskTier::open(DiskConfig {
            directory: folder.path().into(),
            quota: Bytes(10 << 20),
            share: Bytes(10 << 20),
            fingerprint: 1,
            name: "test".into(),
            sizes: Arc::new(Sizes::Equal { bytes: 10, samples: 1_000 }),
            segment: None,
        });
        for sample in [3, 4, 3 + STRIPES as SampleId] {
            assert_eq!(tier.put(sample, &[1; 10]), Put::Stored);
        }
        let writer = tier.store.as_ref().and_then(|store| store.writer.as_ref()).unwrap();
        let hung_write = writer.stripe(3);
        assert_eq!(tier.evict_now(3), Evicted::Busy);
        assert_eq!(tier.evict_now(3 + STRIPES as SampleId), Evicted::Busy, "shares the lock");
        assert_eq!(tier.evict_now(4), Evicted::Gone);
        assert_eq!(tier.evict_now(4), Evicted::NotHeld);
        drop(hung_write);
        assert!(tier.holds(3));
        let hung_growth = lock(&writer.space);
        assert_eq!(tier.evict_now(3), Evicted::Busy);
        drop(hung_growth);
        assert_eq!(tier.evict_now(3), Evicted::Gone);
        assert!(!tier.holds(3));
    }
}

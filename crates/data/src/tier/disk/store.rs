//! An open cache: index and segments, and for its writer the room in them.
//!
//! Readers take no lock. They copy a sample out as its entry said and believe it only if
//! its checksum is right. Writing and evicting one sample exclude each other by a lock that
//! it shares with few others. A reader whose checksum fails looks again under that lock,
//! when nothing can move: then it is damage. A process without the writer's lock can only
//! look whether the entry has changed meanwhile. A copy of another version of its file than the
//! source has is no copy of the sample, and goes.

use std::io;
use std::sync::Arc;
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
use crate::source::Source;
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
    pub versions: FileVersions,
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

/// Says which version of its file a sample is of.
#[derive(Clone, Debug, Default)]
pub struct FileVersions(pub Option<Arc<dyn Source>>);

impl FileVersions {
    fn of(&self, sample: SampleId) -> i64 {
        self.0.as_ref().map_or(0, |source| source.version(sample).changed)
    }
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
        (sample, version): (SampleId, i64),
        bytes: &[u8],
        troubles: &Troubles,
    ) -> Put {
        let _stripe = writer.stripe(sample);
        if version != self.versions.of(sample) {
            return Put::Refused;
        }
        if self.is_current(sample) {
            return Put::Present;
        }
        if !writer.is_ready() {
            return Put::Refused;
        }
        if self.holds(sample) {
            self.drop_sample(writer, sample, bytes.len() as u64, Space::free);
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
        let failed = |error: &io::Error| {
            let path = self.cache.path.display();
            troubles.warn(Trouble::WriteFailed, format!("cannot write to {path}: {error}"));
            if is_full(error) { Put::Full } else { Put::Refused }
        };
        if let Err(error) = self.index.flush() {
            self.with_space(writer, sizes, |space| space.free(&pieces));
            return failed(&error);
        }
        if let Err(error) = self.write(&pieces, bytes) {
            self.with_space(writer, sizes, |space| space.retire(&pieces));
            return failed(&error);
        }
        let entry = Entry {
            checksum: checksum(self.index.header.fingerprint, sample, bytes),
            location: Some(Location {
                start: pieces.first().map_or(0, |piece| piece.start),
                pieces: (pieces.len() > 1).then_some(pieces.len() as u32),
            }),
            version,
        };
        if let Err(error) = self.index.publish(sample, bytes.len() as u64, entry) {
            self.with_space(writer, sizes, |space| space.free(&pieces));
            return failed(&error);
        }
        self.with_space(writer, sizes, |space| space.keep(sample, pieces));
        Put::Stored
    }

    pub fn get(&self, sample: SampleId, into: &mut [u8], troubles: &Troubles) -> Get {
        let entry = match self.index.entry(sample) {
            Ok(Some(entry)) => entry,
            Ok(None) if !self.holds(sample) => return Get::Miss,
            Ok(None) | Err(_) => return self.get_again(sample, into, troubles),
        };
        if entry.version == self.versions.of(sample)
            && let Copied::Right = self.copy(sample, entry, into)
        {
            return Get::Hit;
        }
        self.get_again(sample, into, troubles)
    }

    /// Whether the tier holds a sample, of whatever version.
    pub fn holds(&self, sample: SampleId) -> bool {
        self.index.location(sample).is_ok_and(|location| location.is_some())
    }

    /// Whether it holds a sample as the source has it.
    pub fn is_current(&self, sample: SampleId) -> bool {
        let entry = self.index.entry(sample).ok().flatten();
        entry.is_some_and(|entry| entry.version == self.versions.of(sample))
    }

    /// Lets a sample go; whether it was held.
    pub fn evict(&self, writer: &Writer, sample: SampleId, size: u64) -> bool {
        let _stripe = writer.stripe(sample);
        let was_held = self.drop_sample(writer, sample, size, Space::free);
        // What is not written here is before the next sample is.
        let _ = self.index.flush();
        was_held
    }

    /// The same, without waiting for a write to its end, nor for the disk at all.
    pub fn evict_now(&self, writer: &Writer, sample: SampleId, size: u64) -> Evicted {
        let evicted = |was_held| if was_held { Evicted::Gone } else { Evicted::NotHeld };
        if writer.is_ready() && !self.holds(sample) {
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
        if !self.cache.bytes().is_ok_and(|all| size <= all) {
            return false;
        }
        scratch.resize(size as usize, 0);
        matches!(self.copy(sample, entry, scratch), Copied::Right)
    }

    fn copy(&self, sample: SampleId, entry: Entry, into: &mut [u8]) -> Copied {
        let Some(location) = entry.location else { return Copied::Wrong };
        if let Err(error) = self.segments.read_sample(location, into) {
            return Copied::Failed(error);
        }
        let found = checksum(self.index.header.fingerprint, sample, into);
        if found == entry.checksum { Copied::Right } else { Copied::Wrong }
    }

    /// The second look, for a writer while no other thread can move the sample. What is not right goes.
    fn get_again(&self, sample: SampleId, into: &mut [u8], troubles: &Troubles) -> Get {
        let Some(writer) = &self.writer else { return self.read_again(sample, into, troubles) };
        let _stripe = writer.stripe(sample);
        let size = into.len() as u64;
        let entry = match self.index.entry(sample) {
            Ok(entry) => entry,
            Err(error) => {
                self.warn_of_index(&error, troubles);
                None
            }
        };
        let Some(entry) = entry else {
            let was_held = self.drop_sample(writer, sample, size, Space::free);
            return if was_held { Get::Damaged } else { Get::Miss };
        };
        if entry.version != self.versions.of(sample) {
            self.drop_sample(writer, sample, size, Space::free);
            return Get::Miss;
        }
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

    /// The second look of a process that does not write: what is there may be moved meanwhile.
    fn read_again(&self, sample: SampleId, into: &mut [u8], troubles: &Troubles) -> Get {
        let entry = self.index.entry(sample);
        match entry {
            Ok(None) => Get::Miss,
            Ok(Some(entry)) if entry.version != self.versions.of(sample) => Get::Miss,
            Ok(Some(entry)) => match self.copy(sample, entry, into) {
                Copied::Right => Get::Hit,
                _ if self.index.entry(sample).is_ok_and(|now| now == Some(entry)) => Get::Damaged,
                _ => Get::Miss,
            },
            Err(error) => {
                self.warn_of_index(&error, troubles);
                Get::Miss
            }
        }
    }

    pub fn warn_of_index(&self, error: &io::Error, troubles: &Troubles) {
        let path = self.cache.index();
        let sentence =
            format!("cannot read {}: {error}; its samples are read elsewhere", path.display());
        troubles.warn(Trouble::ReadFailed, sentence);
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
        let Ok(Some(location)) = self.index.location(sample) else { return false };
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
            versions: FileVersions::default(),
        });
        for sample in [3, 4, 3 + STRIPES as SampleId] {
            assert_eq!(tier.put(sample, &[1; 10], 0), Put::Stored);
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

    /// A file whose version is a number that is set from outside.
    #[derive(Debug)]
    struct Touched(crate::source::Synthetic, std::sync::atomic::AtomicI64);

    impl Source for Touched {
        fn catalog(&self) -> &crate::source::Catalog {
            self.0.catalog()
        }

        fn read(
            &self,
            wants: &mut [crate::source::Want<'_>],
        ) -> Result<(), crate::source::ReadError> {
            self.0.read(wants)
        }

        fn operations(&self) -> crate::source::Operations {
            self.0.operations()
        }

        fn version(&self, _: SampleId) -> crate::source::Version {
            let changed = self.1.load(std::sync::atomic::Ordering::Acquire);
            crate::source::Version { changed, noticed: true }
        }
    }

    #[test]
    fn a_copy_is_of_the_version_that_was_read_and_not_of_the_one_at_hand() {
        let folder = tempfile::tempdir().unwrap();
        let inner = crate::source::Synthetic::of_sizes([10; 9], 0);
        let source = Arc::new(Touched(inner, 1.into()));
        let tier = DiskTier::open(DiskConfig {
            directory: folder.path().into(),
            quota: Bytes(10 << 20),
            share: Bytes(10 << 20),
            fingerprint: 1,
            name: "test".into(),
            sizes: Arc::new(Sizes::Equal { bytes: 10, samples: 9 }),
            segment: None,
            versions: FileVersions(Some(source.clone())),
        });
        let set = |version| source.1.store(version, std::sync::atomic::Ordering::Release);
        let mut into = [0; 10];
        // Read when the file was at version 1, and put when it was at 2.
        set(2);
        assert_eq!(tier.put(3, &[1; 10], 1), Put::Refused);
        assert_eq!(tier.get(3, &mut into), Get::Miss);
        assert_eq!(tier.put(3, &[2; 10], 2), Put::Stored);
        set(3);
        assert_eq!(tier.get(3, &mut into), Get::Miss, "not of version 3");
        assert_eq!(tier.put(3, &[3; 10], 3), Put::Stored);
        assert_eq!((tier.get(3, &mut into), into), (Get::Hit, [3; 10]));
    }
}

//! An open cache: puts, gets and evictions over its index and segments.
//!
//! A get takes no lock: it copies a sample as its entry says and accepts the copy only if its
//! checksum is right. Puts and evictions of a sample exclude each other by a lock that it shares
//! with few others. If the checksum of a get fails, the writer retries under that lock, when the
//! sample cannot be moved: if it fails again, the sample is damaged. A process without the writer
//! lock can only check whether the entry has changed meanwhile. A copy of an outdated version of a
//! file is evicted.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belady_base::SampleId;
use belady_base::sync::atomic::Ordering;
use belady_base::sync::lock;
use belady_control::Sizes;

use super::degradation::{Degradation, Degradations};
use super::directory::CacheDirectory;
use super::index::{CacheIndex, IndexEntry, checksum};
use super::location::{SegmentLocation, encode_table, payload_runs};
use super::segments::Segments;
use super::space::{Allocation, SegmentSpace, is_full};
use super::writer::CacheWriter;
use crate::source::Source;
use crate::tier::extents::Extent;
use crate::tier::{Evicted, Get, Put};

/// How long an eviction waits for a put of the same sample, which may hang. Almost all take less.
const EVICT_TIMEOUT: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct CacheStore {
    pub index: CacheIndex,
    pub segments: Segments,
    pub cache: CacheDirectory,
    pub versions: FileVersions,
    /// `None` if another job or process writes this cache.
    pub writer: Option<CacheWriter>,
}

/// The current versions of samples' files, from the source; without one, files never change.
#[derive(Clone, Debug, Default)]
pub struct FileVersions(pub Option<Arc<dyn Source>>);

impl FileVersions {
    fn of(&self, sample: SampleId) -> i64 {
        self.0.as_ref().map_or(0, |source| source.version(sample).changed)
    }
}

/// How a copy from the segments ended.
enum SampleCopy {
    Right,
    Wrong,
    Failed(io::Error),
}

impl CacheStore {
    pub fn put(
        &self,
        writer: &CacheWriter,
        sizes: &Sizes,
        (sample, version): (SampleId, i64),
        bytes: &[u8],
        degradations: &Degradations,
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
            self.remove(writer, sample, bytes.len() as u64, SegmentSpace::free);
        }
        let pieces = if bytes.is_empty() {
            Vec::new()
        } else {
            let allocation = self.with_space(writer, sizes, |space| {
                space.allocate(bytes.len() as u64, &self.segments)
            });
            match self.allocated(allocation, degradations) {
                Some(pieces) => pieces,
                None => return Put::Full,
            }
        };
        let failed = |error: &io::Error| {
            let path = self.cache.path.display();
            degradations.warn(Degradation::WriteFailed, format!("cannot write to {path}: {error}"));
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
        let entry = IndexEntry {
            checksum: checksum(self.index.header.fingerprint, sample, bytes),
            location: Some(SegmentLocation {
                start: pieces.first().map_or(0, |piece| piece.start),
                pieces: (pieces.len() > 1).then_some(pieces.len() as u32),
            }),
            version,
        };
        if let Err(error) = self.index.publish(sample, bytes.len() as u64, entry) {
            self.with_space(writer, sizes, |space| space.free(&pieces));
            return failed(&error);
        }
        self.with_space(writer, sizes, |space| space.record(sample, pieces));
        Put::Stored
    }

    pub fn get(&self, sample: SampleId, into: &mut [u8], degradations: &Degradations) -> Get {
        let entry = match self.index.entry(sample) {
            Ok(Some(entry)) => entry,
            Ok(None) if !self.holds(sample) => return Get::Miss,
            Ok(None) | Err(_) => return self.get_again(sample, into, degradations),
        };
        if entry.version == self.versions.of(sample)
            && let SampleCopy::Right = self.copy(sample, entry, into)
        {
            return Get::Hit;
        }
        self.get_again(sample, into, degradations)
    }

    /// Whether the tier holds a sample, of any version.
    pub fn holds(&self, sample: SampleId) -> bool {
        self.index.location(sample).is_ok_and(|location| location.is_some())
    }

    /// Whether the tier holds the version of a sample that the source has.
    pub fn is_current(&self, sample: SampleId) -> bool {
        let entry = self.index.entry(sample).ok().flatten();
        entry.is_some_and(|entry| entry.version == self.versions.of(sample))
    }

    /// Evicts a sample, and returns whether it was held.
    pub fn evict(&self, writer: &CacheWriter, sample: SampleId, size: u64) -> bool {
        let _stripe = writer.stripe(sample);
        let was_held = self.remove(writer, sample, size, SegmentSpace::free);
        // If this fails, the next put flushes again.
        let _ = self.index.flush();
        was_held
    }

    /// Evicts a sample without waiting for a put to end, nor for the disk.
    pub fn evict_now(&self, writer: &CacheWriter, sample: SampleId, size: u64) -> Evicted {
        let evicted = |was_held| if was_held { Evicted::Gone } else { Evicted::NotHeld };
        if writer.is_ready() && !self.holds(sample) {
            return Evicted::NotHeld;
        }
        if !writer.is_ready() {
            // The recovery of the free space does end.
            return evicted(self.evict(writer, sample, size));
        }
        let until = Instant::now() + EVICT_TIMEOUT;
        let Some((_stripe, mut space)) = writer.lock_within(sample, until) else {
            return Evicted::Busy;
        };
        evicted(self.remove_within(writer, &mut space, sample, size, SegmentSpace::free))
    }

    /// Recovers the free space if that was not done yet, or waits for the thread that does it.
    pub fn recover(&self, sizes: &Sizes) {
        if let Some(writer) = &self.writer {
            self.with_space(writer, sizes, |_| ());
        }
    }

    /// Returns the samples held, their bytes, and the capacity.
    pub fn occupancy(&self, sizes: &Sizes) -> (u64, u64, u64) {
        let Some(writer) = &self.writer else {
            let held = self.index.held();
            return (held.samples, held.bytes, held.bytes);
        };
        // The totals may not have reached the disk before a crash. If the cache is empty indeed,
        // recovery is quick.
        if !writer.is_ready() && self.index.held().samples == 0 {
            self.recover(sizes);
        }
        let held = self.index.held();
        let capacity = writer.capacity.load(Ordering::Relaxed);
        let is_ready = writer.is_ready();
        let used = if is_ready { writer.used.load(Ordering::Relaxed) } else { held.bytes };
        (held.samples, used.min(capacity), capacity)
    }

    /// Whether a sample's bytes match its entry's checksum; `scratch` saves allocations.
    pub fn is_right(
        &self,
        sample: SampleId,
        entry: IndexEntry,
        size: u64,
        scratch: &mut Vec<u8>,
    ) -> bool {
        // A damaged index may give any size.
        if !self.cache.bytes().is_ok_and(|all| size <= all) {
            return false;
        }
        scratch.resize(size as usize, 0);
        matches!(self.copy(sample, entry, scratch), SampleCopy::Right)
    }

    fn copy(&self, sample: SampleId, entry: IndexEntry, into: &mut [u8]) -> SampleCopy {
        let Some(location) = entry.location else { return SampleCopy::Wrong };
        if let Err(error) = self.segments.read_sample(location, into) {
            return SampleCopy::Failed(error);
        }
        let found = checksum(self.index.header.fingerprint, sample, into);
        if found == entry.checksum { SampleCopy::Right } else { SampleCopy::Wrong }
    }

    /// Retries a get under the sample's lock, and evicts a sample that is damaged or outdated.
    fn get_again(&self, sample: SampleId, into: &mut [u8], degradations: &Degradations) -> Get {
        let Some(writer) = &self.writer else { return self.read_again(sample, into, degradations) };
        let _stripe = writer.stripe(sample);
        let size = into.len() as u64;
        let entry = match self.index.entry(sample) {
            Ok(entry) => entry,
            Err(error) => {
                self.warn_of_index(&error, degradations);
                None
            }
        };
        let Some(entry) = entry else {
            let was_held = self.remove(writer, sample, size, SegmentSpace::free);
            return if was_held { Get::Damaged } else { Get::Miss };
        };
        if entry.version != self.versions.of(sample) {
            self.remove(writer, sample, size, SegmentSpace::free);
            return Get::Miss;
        }
        match self.copy(sample, entry, into) {
            SampleCopy::Right => return Get::Hit,
            SampleCopy::Wrong => self.remove(writer, sample, size, SegmentSpace::free),
            SampleCopy::Failed(error) => {
                let path = self.cache.path.display();
                let sentence = format!("cannot read sample {sample} in {path}: {error}");
                degradations.warn(Degradation::ReadFailed, sentence);
                self.remove(writer, sample, size, SegmentSpace::retire)
            }
        };
        Get::Damaged
    }

    /// Retries a get in a process that is not the writer: the sample may be moved meanwhile.
    fn read_again(&self, sample: SampleId, into: &mut [u8], degradations: &Degradations) -> Get {
        let entry = self.index.entry(sample);
        match entry {
            Ok(None) => Get::Miss,
            Ok(Some(entry)) if entry.version != self.versions.of(sample) => Get::Miss,
            Ok(Some(entry)) => match self.copy(sample, entry, into) {
                SampleCopy::Right => Get::Hit,
                _ if self.index.entry(sample).is_ok_and(|now| now == Some(entry)) => Get::Damaged,
                _ => Get::Miss,
            },
            Err(error) => {
                self.warn_of_index(&error, degradations);
                Get::Miss
            }
        }
    }

    pub fn warn_of_index(&self, error: &io::Error, degradations: &Degradations) {
        let path = self.cache.index();
        let sentence = format!(
            "cannot read {}: {error}; its samples are read from the source",
            path.display()
        );
        degradations.warn(Degradation::ReadFailed, sentence);
    }

    /// Removes a sample. Called with its stripe locked. The location is removed first, then its
    /// space is released.
    fn remove(
        &self,
        writer: &CacheWriter,
        sample: SampleId,
        size: u64,
        release: impl FnOnce(&mut SegmentSpace, &[Extent]),
    ) -> bool {
        // Locked also while the space is recovered from the index, which must not change meanwhile.
        self.remove_within(writer, &mut lock(&writer.space), sample, size, release)
    }

    fn remove_within(
        &self,
        writer: &CacheWriter,
        space: &mut Option<SegmentSpace>,
        sample: SampleId,
        size: u64,
        release: impl FnOnce(&mut SegmentSpace, &[Extent]),
    ) -> bool {
        let Ok(Some(location)) = self.index.location(sample) else { return false };
        self.index.clear(sample, size);
        if let Some(space) = space {
            let pieces = space.forget(sample, location, size);
            release(space, &pieces);
            writer.note(space);
        }
        true
    }

    fn with_space<R>(
        &self,
        writer: &CacheWriter,
        sizes: &Sizes,
        work: impl FnOnce(&mut SegmentSpace) -> R,
    ) -> R {
        let mut space = lock(&writer.space);
        let space = space.get_or_insert_with(|| {
            SegmentSpace::recover(&self.index, sizes, &self.segments, writer.made, writer.limit)
        });
        let result = work(space);
        writer.note(space);
        result
    }

    fn allocated(
        &self,
        allocation: Allocation,
        degradations: &Degradations,
    ) -> Option<Vec<Extent>> {
        if let Some(error) = allocation.stunted {
            let path = self.cache.path.display();
            let sentence = format!("{path} cannot grow further: {error}; it keeps its size");
            degradations.warn(Degradation::NoGrowth, sentence);
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

    use super::super::writer::STRIPES;
    use super::*;
    use crate::tier::Tier;
    use crate::tier::disk::{DiskConfig, DiskTier};

    #[test]
    fn an_eviction_does_not_wait_for_a_hung_put() {
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

    /// A source whose version is set by the test.
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
    fn a_copy_of_an_outdated_version_is_neither_stored_nor_returned() {
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

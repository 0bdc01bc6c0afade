//! The index file: a header page, one entry per sample, and the samples' sizes.
//!
//! ```text
//!   0      magic, version, granule, fingerprint, samples, segment size, width, name ...
//!          samples held, bytes held, checksum of the page without these two
//!   4096   entry 0: checksum u64, location u64, version i64; entry 1; ...
//!          size 0; size 1; ...   (0, 4 or 8 bytes each, as the header's width says)
//! ```
//!
//! The file is read and written by system calls, never mapped: an unreadable part (a disk error, a
//! truncated file, a stale file handle) is then an error of that call, and the sample is read
//! elsewhere. Readers read an entry when they need it. The writer loads all locations into memory
//! ([`CacheIndex::load`]), so that an eviction does not wait for the disk.
//!
//! A put writes the sample's data, then its entry. An eviction removes the location before the
//! space is written to again ([`CacheIndex::flush`]). So whatever a crash leaves half done has no
//! location or fails its checksum. The totals of held samples and bytes save a walk over the
//! entries; a crash between an entry and the totals leaves them wrong until the next writer has
//! read the entries. Sizes are for tools that look at a cache without its dataset.

mod entry;
mod header;
mod view;

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

use belady_base::SampleId;
use belady_base::fork::FileLock;
use belady_base::sync::plain::{AtomicU64, Ordering};
use belady_base::sync::{Mutex, lock};
use belady_control::Sizes;

use self::entry::{ENTRY, entry_at, u64_at};
use self::header::HELD_AT;
use super::location::SegmentLocation;
use super::segment_file::reserve;

pub use self::entry::IndexEntry;
pub(super) use self::entry::{PAGE, checksum};
pub use self::header::{CacheIndexError, IndexHeader};
pub use self::view::{IndexView, check_index};

/// Entries are read this many at a time.
const CHUNK: u32 = 1 << 15;

/// How much an index holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tier::disk) struct HeldTotals {
    pub samples: u64,
    /// The space that they take in the segments.
    pub bytes: u64,
}

/// An open index file.
#[derive(Debug)]
pub(in crate::tier::disk) struct CacheIndex {
    pub header: IndexHeader,
    /// Holds a shared lock, which tells other processes that the cache is in use.
    file: FileLock,
    /// Samples and bytes held, as known to this process.
    held: [AtomicU64; 2],
    /// All encoded locations, for a writer that has loaded them.
    locations: OnceLock<Box<[AtomicU64]>>,
    /// Evicted samples that may still have a location in the file.
    evicted: Mutex<Vec<SampleId>>,
    /// Locked while the file is brought up to date.
    flushing: Mutex<()>,
}

/// Why an index cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(in crate::tier::disk) enum OpenIndexError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Index(#[from] CacheIndexError),
}

impl CacheIndex {
    /// Creates an index without samples: written to a temporary file, then renamed to `path`.
    pub fn create(path: &Path, header: &IndexHeader, sizes: &Sizes) -> io::Result<()> {
        let unfinished = path.with_extension("new");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&unfinished)?;
        // Reserved now, so that entries can be written on a full disk.
        reserve(&file, 0, header.file_bytes())?;
        file.write_all_at(&header.encode(), 0)?;
        write_sizes(&file, header.sizes_at(), sizes)?;
        std::fs::rename(&unfinished, path)
    }

    pub fn open(path: &Path, writable: bool) -> Result<Self, OpenIndexError> {
        let open = || {
            OpenOptions::new().read(true).write(writable).custom_flags(libc::O_NOFOLLOW).open(path)
        };
        // A cache that is locked exclusively is being removed.
        let file =
            FileLock::shared(open)?.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))?;
        let bytes = file.metadata()?.len();
        let mut page = vec![0; bytes.min(PAGE) as usize];
        file.read_exact_at(&mut page, 0)?;
        let header = IndexHeader::parse(&page)?;
        header.check_length(bytes)?;
        let held = [HELD_AT, HELD_AT + 8].map(|at| AtomicU64::new(u64_at(&page, at)));
        let (evicted, flushing) = (Mutex::default(), Mutex::default());
        Ok(Self { header, file, held, locations: OnceLock::new(), evicted, flushing })
    }

    /// Loads all locations into memory, for a writer. Entries that cannot be read count as not
    /// held, and the error is returned.
    pub fn load(&self) -> Option<io::Error> {
        let samples = self.header.samples;
        let locations: Box<[AtomicU64]> = (0..samples).map(|_| AtomicU64::new(0)).collect();
        let mut failure = None;
        let mut bytes = vec![0; ENTRY as usize * samples.min(CHUNK) as usize];
        for first in (0..samples).step_by(CHUNK as usize) {
            let count = (samples - first).min(CHUNK) as usize;
            let bytes = &mut bytes[..count * ENTRY as usize];
            match self.file.read_exact_at(bytes, entry_at(first)) {
                Ok(()) => {
                    let entries = bytes.chunks_exact(ENTRY as usize);
                    for (location, entry) in locations[first as usize..].iter().zip(entries) {
                        location.store(u64_at(entry, 8), Ordering::Relaxed);
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        let _ = self.locations.set(locations);
        failure
    }

    /// Sets the locations of a new index, which holds no samples.
    pub fn load_empty(&self) {
        let none = (0..self.header.samples).map(|_| AtomicU64::new(0)).collect();
        let _ = self.locations.set(none);
    }

    /// Returns a sample's current entry; `None` if it is not held.
    pub fn entry(&self, sample: SampleId) -> io::Result<Option<IndexEntry>> {
        if sample >= self.header.samples || !self.may_hold(sample) {
            return Ok(None);
        }
        let mut bytes = [0; ENTRY as usize];
        self.file.read_exact_at(&mut bytes, entry_at(sample))?;
        Ok(Some(IndexEntry::decode(&bytes)).filter(|entry| entry.location.is_some()))
    }

    /// Returns where a sample lies, without a system call for a writer that has loaded the
    /// locations.
    pub fn location(&self, sample: SampleId) -> io::Result<Option<SegmentLocation>> {
        match self.loaded(sample) {
            Some(location) => Ok(SegmentLocation::decode(location.load(Ordering::Acquire))),
            None => Ok(self.entry(sample)?.and_then(|entry| entry.location)),
        }
    }

    /// Publishes a sample of `size` bytes whose data is written. Only for the writer.
    pub fn publish(&self, sample: SampleId, size: u64, entry: IndexEntry) -> io::Result<()> {
        let Some(at) = entry.location.filter(|_| sample < self.header.samples) else {
            return Ok(());
        };
        self.file.write_all_at(&entry.encode(), entry_at(sample))?;
        if let Some(location) = self.loaded(sample) {
            location.store(at.encode(), Ordering::Release);
        }
        self.count(u64::saturating_add, size, at);
        self.write_held()
    }

    /// Removes a sample of `size` bytes. Only for the writer. A writer that has loaded the
    /// locations makes no system call: [`Self::flush`] brings the file up to date.
    pub fn clear(&self, sample: SampleId, size: u64) {
        let Some(location) = self.loaded(sample) else { return self.clear_in_file(sample, size) };
        if let Some(at) = SegmentLocation::decode(location.swap(0, Ordering::AcqRel)) {
            lock(&self.evicted).push(sample);
            self.count(u64::saturating_sub, size, at);
        }
    }

    fn clear_in_file(&self, sample: SampleId, size: u64) {
        let Ok(Some(IndexEntry { location: Some(at), .. })) = self.entry(sample) else { return };
        if self.file.write_all_at(&[0; 8], entry_at(sample) + 8).is_ok() {
            self.count(u64::saturating_sub, size, at);
            let _ = self.write_held();
        }
    }

    /// Removes the locations of evicted samples from the file. Called before their space is written
    /// to, so that no reader finds other bytes there.
    pub fn flush(&self) -> io::Result<()> {
        // A sample that is put again waits for this, and its entry is written afterwards.
        let _one_at_a_time = lock(&self.flushing);
        let mut gone = std::mem::take(&mut *lock(&self.evicted));
        if gone.is_empty() {
            return Ok(());
        }
        while let Some(&sample) = gone.last() {
            if let Err(error) = self.file.write_all_at(&[0; 8], entry_at(sample) + 8) {
                lock(&self.evicted).append(&mut gone);
                return Err(error);
            }
            gone.pop();
        }
        self.write_held()
    }

    /// Returns how much is held, without reading the entries. A reader asks the file, since another
    /// process writes it.
    pub fn held(&self) -> HeldTotals {
        if self.locations.get().is_none() {
            let mut words = [0; 16];
            if self.file.read_exact_at(&mut words, HELD_AT as u64).is_ok() {
                return self.limited(u64_at(&words, 0), u64_at(&words, 8));
            }
        }
        let [samples, bytes] = self.held.each_ref().map(|word| word.load(Ordering::Relaxed));
        self.limited(samples, bytes)
    }

    fn limited(&self, samples: u64, bytes: u64) -> HeldTotals {
        HeldTotals { samples: samples.min(u64::from(self.header.samples)), bytes }
    }

    /// Corrects the totals. Only for the writer, while entries do not change.
    pub fn set_held(&self, held: HeldTotals) {
        self.held[0].store(held.samples, Ordering::Relaxed);
        self.held[1].store(held.bytes, Ordering::Relaxed);
        // Only estimates depend on the totals in the file.
        let _ = self.write_held();
    }

    fn write_held(&self) -> io::Result<()> {
        let mut words = [0; 16];
        for (bytes, word) in words.chunks_exact_mut(8).zip(&self.held) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        self.file.write_all_at(&words, HELD_AT as u64)
    }

    fn count(&self, change: impl Fn(u64, u64) -> u64, size: u64, at: SegmentLocation) {
        let granule = self.header.granule;
        let pieces = at.pieces.map_or(1, u64::from);
        // The size may come from a damaged index.
        let bytes = granule.count_in_pieces(size, pieces).saturating_mul(granule.bytes());
        for (word, by) in self.held.iter().zip([1, bytes]) {
            let change = |held| Some(change(held, by));
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        }
    }

    /// Returns the location of a sample in memory, if locations are loaded.
    fn loaded(&self, sample: SampleId) -> Option<&AtomicU64> {
        self.locations.get()?.get(sample as usize)
    }

    /// Whether the file may hold the sample. Its entry in the file may be outdated after an
    /// eviction.
    fn may_hold(&self, sample: SampleId) -> bool {
        self.loaded(sample).is_none_or(|location| location.load(Ordering::Acquire) != 0)
    }
}

fn write_sizes(file: &File, at: u64, sizes: &Sizes) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 18, WriteAt { file, at });
    match sizes {
        Sizes::Equal { .. } => {}
        Sizes::Narrow(sizes) => {
            sizes.iter().try_for_each(|size| out.write_all(&size.to_le_bytes()))?;
        }
        Sizes::Wide(sizes) => {
            sizes.iter().try_for_each(|size| out.write_all(&size.to_le_bytes()))?;
        }
    }
    out.flush()
}

/// Writes to a file from an offset on.
struct WriteAt<'a> {
    file: &'a File,
    at: u64,
}

impl Write for WriteAt<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(bytes, self.at)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::entry::u32_at;
    use super::*;

    /// More than the buffer holds.
    #[test]
    fn sizes_of_many_samples_are_written_one_after_the_other() {
        let file = tempfile::tempfile().unwrap();
        let sizes: Vec<u64> = (0..200_000).map(|sample| sample * 7 % 1000).collect();
        write_sizes(&file, PAGE, &Sizes::from_bytes(sizes.clone())).unwrap();
        let mut written = vec![0; 4 * sizes.len()];
        file.read_exact_at(&mut written, PAGE).unwrap();
        assert!(written.chunks_exact(4).map(|bytes| u64::from(u32_at(bytes, 0))).eq(sizes));
        assert_eq!(file.metadata().unwrap().len(), PAGE + 800_000);
    }
}

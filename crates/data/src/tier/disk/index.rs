//! The index file: a header page, one entry a sample, and the samples' sizes.
//!
//! ```text
//!   0      magic, version, granule, fingerprint, samples, segment size, width, name ...
//!          samples held, bytes held, checksum of the page without these two
//!   4096   entry 0: checksum u64, location u64, version i64; entry 1; ...
//!          size 0; size 1; ...   (0, 4 or 8 bytes each, as the header's width says)
//! ```
//!
//! The file is read and written by calls, never mapped: what cannot be read (an error of the disk,
//! a file that was cut off, a server that has forgotten it) is then an error of that call, and the
//! sample is read elsewhere. Readers ask for an entry when they need it. The writer has all
//! locations in memory, once they are read ([`Index::load`]), so that letting a sample go waits for
//! no disk.
//!
//! A sample appears by its data, then its entry, and goes by its location, before its room is written
//! to ([`Index::flush`]); whatever a crash leaves half done either has no location or fails its
//! checksum. What is held is counted beside, so that nobody need walk over the entries to know
//! it; a crash between an entry and the count leaves the count wrong by as much, until the
//! next writer has read the entries. Sizes are there for those who look at a cache without its dataset.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

use belady_control::Sizes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::granule::Granule;
use super::io::reserve;
use super::location::Location;
use crate::SampleId;
use crate::fork::FileLock;
use crate::sync::plain::{AtomicU64, Ordering};
use crate::sync::{Mutex, lock};

const MAGIC: [u8; 8] = *b"BELADYIX";
pub(super) const VERSION: u32 = 2;
pub(super) const PAGE: u64 = 4096;
const ENTRY: u64 = 24;
/// Entries are read by so many at a time.
const CHUNK: u32 = 1 << 15;
const CHECKSUM_AT: usize = PAGE as usize - 8;
const HELD_AT: usize = PAGE as usize - 24;
const NAME_AT: usize = 64;
/// Names are for people; longer ones are cut.
const NAME_BYTES: usize = 512;

/// Why bytes are not an index that this version can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    #[error("it is {bytes} bytes long, too short for a header")]
    Short { bytes: u64 },
    #[error("it is not an index of Belady")]
    Magic,
    #[error("its version is {found}, not {VERSION}")]
    Version { found: u32 },
    #[error("its header fails its checksum")]
    Checksum,
    #[error("its header makes no sense ({0})")]
    Nonsense(&'static str),
    #[error("it is {found} bytes long and should be {expected}")]
    Length { expected: u64, found: u64 },
}

/// What the first page says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub fingerprint: u64,
    pub samples: u32,
    pub granule: Granule,
    pub segment_bytes: u64,
    pub name: String,
    width: Width,
}

/// How sizes are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Equal(u64),
    Narrow,
    Wide,
}

impl Header {
    pub(super) fn new(
        fingerprint: u64,
        name: &str,
        segment_bytes: u64,
        granule: Granule,
        sizes: &Sizes,
    ) -> Self {
        let mut name = name.to_owned();
        name.truncate(name.floor_char_boundary(NAME_BYTES));
        let width = match sizes {
            Sizes::Equal { bytes, .. } => Width::Equal(*bytes),
            Sizes::Narrow(_) => Width::Narrow,
            Sizes::Wide(_) => Width::Wide,
        };
        Self { fingerprint, samples: sizes.len(), granule, segment_bytes, name, width }
    }

    /// Whether it was made for such a dataset.
    pub(super) fn is_of(&self, fingerprint: u64, sizes: &Sizes) -> bool {
        *self == Self::new(fingerprint, &self.name, self.segment_bytes, self.granule, sizes)
    }

    /// Bytes of the whole file.
    pub(super) fn file_bytes(&self) -> u64 {
        let sizes = self.width.bytes() * u64::from(self.samples);
        (self.sizes_at() + sizes).next_multiple_of(PAGE)
    }

    fn sizes_at(&self) -> u64 {
        PAGE + ENTRY * u64::from(self.samples)
    }

    fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; PAGE as usize];
        let (tag, equal) = match self.width {
            Width::Equal(bytes) => (0, bytes),
            Width::Narrow => (4, 0),
            Width::Wide => (8, 0),
        };
        page[..8].copy_from_slice(&MAGIC);
        page[8..12].copy_from_slice(&VERSION.to_le_bytes());
        page[12..16].copy_from_slice(&(self.granule.bytes() as u32).to_le_bytes());
        page[16..24].copy_from_slice(&self.fingerprint.to_le_bytes());
        page[24..32].copy_from_slice(&u64::from(self.samples).to_le_bytes());
        page[32..40].copy_from_slice(&self.segment_bytes.to_le_bytes());
        page[40..48].copy_from_slice(&equal.to_le_bytes());
        page[48..52].copy_from_slice(&u32::to_le_bytes(tag));
        page[52..56].copy_from_slice(&(self.name.len() as u32).to_le_bytes());
        page[NAME_AT..NAME_AT + self.name.len()].copy_from_slice(self.name.as_bytes());
        let checksum = xxh3_64(&page[..CHECKSUM_AT]);
        page[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        page
    }

    fn parse(bytes: &[u8]) -> Result<Self, IndexError> {
        let page =
            bytes.get(..PAGE as usize).ok_or(IndexError::Short { bytes: bytes.len() as u64 })?;
        if page[..8] != MAGIC {
            return Err(IndexError::Magic);
        }
        // Before the checksum: another version may keep its own elsewhere.
        let version = u32_at(page, 8);
        if version != VERSION {
            return Err(IndexError::Version { found: version });
        }
        let mut fixed = page[..CHECKSUM_AT].to_vec();
        fixed[HELD_AT..].fill(0);
        if xxh3_64(&fixed) != u64_at(page, CHECKSUM_AT) {
            return Err(IndexError::Checksum);
        }
        let granule = Granule::of_length(u64::from(u32_at(page, 12)))
            .ok_or(IndexError::Nonsense("granule"))?;
        let samples = u32::try_from(u64_at(page, 24))
            .map_err(|_| IndexError::Nonsense("number of samples"))?;
        let segment_bytes = u64_at(page, 32);
        if segment_bytes == 0 || !segment_bytes.is_multiple_of(PAGE) {
            return Err(IndexError::Nonsense("segment size"));
        }
        let width = match u32_at(page, 48) {
            0 => Width::Equal(u64_at(page, 40)),
            4 => Width::Narrow,
            8 => Width::Wide,
            _ => return Err(IndexError::Nonsense("width of sizes")),
        };
        let length = u32_at(page, 52) as usize;
        if length > NAME_BYTES {
            return Err(IndexError::Nonsense("length of the name"));
        }
        let name = String::from_utf8_lossy(&page[NAME_AT..NAME_AT + length]).into_owned();
        Ok(Self { fingerprint: u64_at(page, 16), samples, granule, segment_bytes, name, width })
    }

    fn check_length(&self, found: u64) -> Result<(), IndexError> {
        let expected = self.file_bytes();
        if found == expected { Ok(()) } else { Err(IndexError::Length { expected, found }) }
    }
}

impl Width {
    fn bytes(self) -> u64 {
        match self {
            Self::Equal(_) => 0,
            Self::Narrow => 4,
            Self::Wide => 8,
        }
    }
}

/// A sample's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub checksum: u64,
    /// `None` if the sample is not held.
    pub location: Option<Location>,
    /// The version of its file that the copy was made of: the file's time of change.
    pub version: i64,
}

impl Entry {
    fn decode(bytes: &[u8]) -> Self {
        Self {
            checksum: u64_at(bytes, 0),
            location: Location::decode(u64_at(bytes, 8)),
            version: u64_at(bytes, 16).cast_signed(),
        }
    }

    fn encode(&self) -> [u8; ENTRY as usize] {
        let mut bytes = [0; ENTRY as usize];
        bytes[..8].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.location.map_or(0, Location::encode).to_le_bytes());
        bytes[16..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }
}

/// How much an index holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub samples: u64,
    /// Room that they take in the segments.
    pub bytes: u64,
}

/// An index in memory that does not change, read without trust.
#[derive(Clone, Debug)]
pub struct IndexView<'a> {
    pub header: Header,
    bytes: &'a [u8],
}

/// Reads an index from bytes of any origin.
pub fn check_index(bytes: &[u8]) -> Result<IndexView<'_>, IndexError> {
    let header = Header::parse(bytes)?;
    header.check_length(bytes.len() as u64)?;
    Ok(IndexView { header, bytes })
}

impl IndexView<'_> {
    /// Samples that have a location, with their sizes. Whether the bytes are there and
    /// right, only their checksum tells.
    pub fn held(&self) -> impl Iterator<Item = (SampleId, Entry, u64)> {
        (0..self.header.samples).filter_map(|sample| {
            let entry = self.entry(sample);
            entry.location.is_some().then(|| (sample, entry, self.size(sample)))
        })
    }

    fn entry(&self, sample: SampleId) -> Entry {
        Entry::decode(&self.bytes[entry_at(sample) as usize..])
    }

    fn size(&self, sample: SampleId) -> u64 {
        let at = (self.header.sizes_at() + self.header.width.bytes() * u64::from(sample)) as usize;
        match self.header.width {
            Width::Equal(bytes) => bytes,
            Width::Narrow => u64::from(u32_at(self.bytes, at)),
            Width::Wide => u64_at(self.bytes, at),
        }
    }
}

/// The checksum of a sample's payload. A sample's bytes never pass for another's.
pub(super) fn checksum(fingerprint: u64, sample: SampleId, payload: &[u8]) -> u64 {
    // The golden ratio spreads neighbouring numbers over all bits.
    let spread = (u64::from(sample) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    xxh3_64_with_seed(payload, fingerprint ^ spread)
}

fn entry_at(sample: SampleId) -> u64 {
    PAGE + ENTRY * u64::from(sample)
}

/// An open index.
#[derive(Debug)]
pub(super) struct Index {
    pub header: Header,
    /// Also holds a shared lock, which tells others that the cache is in use.
    file: FileLock,
    /// Samples and bytes held, as far as this process knows.
    held: [AtomicU64; 2],
    /// All locations as they are encoded, of a writer that has read them.
    locations: OnceLock<Box<[AtomicU64]>>,
    /// Samples that were let go, and may still have a location in the file.
    let_go: Mutex<Vec<SampleId>>,
    /// Held while the file is brought up to date.
    flushing: Mutex<()>,
}

/// Why an index could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl Index {
    /// Writes an index without samples beside `path`, and puts it there once it is whole.
    pub fn create(path: &Path, header: &Header, sizes: &Sizes) -> io::Result<()> {
        let unfinished = path.with_extension("new");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&unfinished)?;
        // So that entries always find room, on a full disk too.
        reserve(&file, 0, header.file_bytes())?;
        file.write_all_at(&header.encode(), 0)?;
        write_sizes(&file, header.sizes_at(), sizes)?;
        std::fs::rename(&unfinished, path)
    }

    pub fn open(path: &Path, writable: bool) -> Result<Self, OpenError> {
        let open = || {
            OpenOptions::new().read(true).write(writable).custom_flags(libc::O_NOFOLLOW).open(path)
        };
        // A cache that is being removed at this moment is as good as gone.
        let file =
            FileLock::shared(open)?.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))?;
        let bytes = file.metadata()?.len();
        let mut page = vec![0; bytes.min(PAGE) as usize];
        file.read_exact_at(&mut page, 0)?;
        let header = Header::parse(&page)?;
        header.check_length(bytes)?;
        let held = [HELD_AT, HELD_AT + 8].map(|at| AtomicU64::new(u64_at(&page, at)));
        let (let_go, flushing) = (Mutex::default(), Mutex::default());
        Ok(Self { header, file, held, locations: OnceLock::new(), let_go, flushing })
    }

    /// Reads all locations into memory, for a writer. What cannot be read counts as not held, and
    /// why is returned.
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

    /// The locations of a new index, of which there are none.
    pub fn load_empty(&self) {
        let none = (0..self.header.samples).map(|_| AtomicU64::new(0)).collect();
        let _ = self.locations.set(none);
    }

    /// A sample's entry as it is now; `None` if it is not held.
    pub fn entry(&self, sample: SampleId) -> io::Result<Option<Entry>> {
        if sample >= self.header.samples || !self.may_hold(sample) {
            return Ok(None);
        }
        let mut bytes = [0; ENTRY as usize];
        self.file.read_exact_at(&mut bytes, entry_at(sample))?;
        Ok(Some(Entry::decode(&bytes)).filter(|entry| entry.location.is_some()))
    }

    /// Where a sample lies; for a writer that has read the locations without a call.
    pub fn location(&self, sample: SampleId) -> io::Result<Option<Location>> {
        match self.known(sample) {
            Some(location) => Ok(Location::decode(location.load(Ordering::Acquire))),
            None => Ok(self.entry(sample)?.and_then(|entry| entry.location)),
        }
    }

    /// Shows a sample of `size` bytes whose data is written. Only for the writer.
    pub fn publish(&self, sample: SampleId, size: u64, entry: Entry) -> io::Result<()> {
        let Some(at) = entry.location.filter(|_| sample < self.header.samples) else {
            return Ok(());
        };
        self.file.write_all_at(&entry.encode(), entry_at(sample))?;
        if let Some(location) = self.known(sample) {
            location.store(at.encode(), Ordering::Release);
        }
        self.count(u64::saturating_add, size, at);
        self.write_held()
    }

    /// Lets a sample of `size` bytes go. Only for the writer. One that has read the locations makes no
    /// call for it: the file is brought up to date by [`Self::flush`].
    pub fn clear(&self, sample: SampleId, size: u64) {
        let Some(location) = self.known(sample) else { return self.clear_in_file(sample, size) };
        if let Some(at) = Location::decode(location.swap(0, Ordering::AcqRel)) {
            lock(&self.let_go).push(sample);
            self.count(u64::saturating_sub, size, at);
        }
    }

    fn clear_in_file(&self, sample: SampleId, size: u64) {
        let Ok(Some(Entry { location: Some(at), .. })) = self.entry(sample) else { return };
        if self.file.write_all_at(&[0; 8], entry_at(sample) + 8).is_ok() {
            self.count(u64::saturating_sub, size, at);
            let _ = self.write_held();
        }
    }

    /// Takes the locations of what was let go out of the file: before anything is written where it
    /// lay, so that no reader finds other bytes there.
    pub fn flush(&self) -> io::Result<()> {
        // One that is put anew meanwhile waits for this, and has its entry written after it.
        let _one_at_a_time = lock(&self.flushing);
        let mut gone = std::mem::take(&mut *lock(&self.let_go));
        if gone.is_empty() {
            return Ok(());
        }
        while let Some(&sample) = gone.last() {
            if let Err(error) = self.file.write_all_at(&[0; 8], entry_at(sample) + 8) {
                lock(&self.let_go).append(&mut gone);
                return Err(error);
            }
            gone.pop();
        }
        self.write_held()
    }

    /// How much is held, as far as is known without looking at the entries. A reader asks the file:
    /// another process writes it.
    pub fn held(&self) -> Held {
        if self.locations.get().is_none() {
            let mut words = [0; 16];
            if self.file.read_exact_at(&mut words, HELD_AT as u64).is_ok() {
                return self.believable(u64_at(&words, 0), u64_at(&words, 8));
            }
        }
        let [samples, bytes] = self.held.each_ref().map(|word| word.load(Ordering::Relaxed));
        self.believable(samples, bytes)
    }

    fn believable(&self, samples: u64, bytes: u64) -> Held {
        Held { samples: samples.min(u64::from(self.header.samples)), bytes }
    }

    /// Puts the count right. Only for the writer, while entries do not change.
    pub fn set_held(&self, held: Held) {
        self.held[0].store(held.samples, Ordering::Relaxed);
        self.held[1].store(held.bytes, Ordering::Relaxed);
        // Of a count that is wrong in the file only an estimate depends.
        let _ = self.write_held();
    }

    fn write_held(&self) -> io::Result<()> {
        let mut words = [0; 16];
        for (bytes, word) in words.chunks_exact_mut(8).zip(&self.held) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        self.file.write_all_at(&words, HELD_AT as u64)
    }

    fn count(&self, change: impl Fn(u64, u64) -> u64, size: u64, at: Location) {
        let granule = self.header.granule;
        let pieces = at.pieces.map_or(1, u64::from);
        // The size may be one that a broken index made up.
        let room = granule.count_in_pieces(size, pieces).saturating_mul(granule.bytes());
        for (word, by) in self.held.iter().zip([1, room]) {
            let change = |held| Some(change(held, by));
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        }
    }

    /// The location of a sample in memory, if locations are there.
    fn known(&self, sample: SampleId) -> Option<&AtomicU64> {
        self.locations.get()?.get(sample as usize)
    }

    /// Whether a look at the file is worth it: it may not be up to date with what was let go.
    fn may_hold(&self, sample: SampleId) -> bool {
        self.known(sample).is_none_or(|location| location.load(Ordering::Acquire) != 0)
    }
}

fn write_sizes(file: &File, at: u64, sizes: &Sizes) -> io::Result<()> {
    let mut out = io::BufWriter::with_capacity(1 << 18, At { file, at });
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

/// Writes on from a place in a file.
struct At<'a> {
    file: &'a File,
    at: u64,
}

impl Write for At<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(bytes, self.at)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, sizes: &Sizes) -> Header {
        Header::new(7, name, 4 * PAGE, Granule::of_length(16).unwrap(), sizes)
    }

    #[test]
    fn a_header_is_read_as_it_was_written_whatever_the_sizes() {
        for sizes in [vec![5, 5, 5], vec![1, 2, 3], vec![1, 1 << 33, 3]] {
            let sizes = Sizes::from_bytes(sizes);
            for name in ["", "a dataset", &"é".repeat(NAME_BYTES)] {
                let header = header(name, &sizes);
                assert_eq!(Header::parse(&header.encode()).unwrap(), header);
                assert!(header.is_of(7, &sizes) && !header.is_of(8, &sizes));
            }
        }
    }

    /// More than one write takes.
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

    #[test]
    fn a_header_that_makes_no_sense_is_refused() {
        let header = header("a dataset", &Sizes::from_bytes(vec![1, 2, 3]));
        let with = |at: usize, value: u32| {
            let mut page = header.encode();
            page[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let checksum = xxh3_64(&page[..CHECKSUM_AT]);
            page[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            Header::parse(&page)
        };
        assert!(with(52, NAME_BYTES as u32).is_ok());
        // Its version, granule, number of samples, segments, width of sizes and name.
        let segments = [(32, 0), (32, PAGE as u32 + 1)];
        for (at, value) in [(8, 99), (12, 17), (28, 1), (48, 5), (52, NAME_BYTES as u32 + 1)]
            .into_iter()
            .chain(segments)
        {
            assert!(with(at, value).is_err(), "{value} at {at}");
        }
    }

    #[test]
    fn a_checksum_is_of_one_sample_of_one_dataset() {
        let of = |fingerprint, sample| checksum(fingerprint, sample, b"the same bytes");
        assert!(of(1, 0) != of(1, 1) && of(1, 0) != of(2, 0));
    }
}

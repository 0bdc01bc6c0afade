//! The index file: a header page, one entry a sample, and the samples' sizes.
//!
//! ```text
//!   0      magic, version, granule, fingerprint, samples, segment size, width, name ...
//!          samples held, bytes held, checksum of the page without these two
//!   4096   entry 0: checksum u64, location u64; entry 1; ...
//!          size 0; size 1; ...   (0, 4 or 8 bytes each, as the header's width says)
//! ```
//!
//! The file is mapped, so its entries live in the page cache and outlive the process. A
//! sample appears by its data, then its checksum, then its location, and goes by its
//! location; whatever a crash leaves half done either has no location or fails its
//! checksum. What is held is counted beside, so that nobody need walk over the entries to know
//! it; a crash between an entry and the count leaves the count wrong by as much, until the
//! next writer has read the entries. Sizes are there for those who look at a cache without its dataset.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
// The words lie in a file shared with other processes, which no schedule explorer can see.
use std::sync::atomic::{AtomicU64, Ordering};

use belady_control::Sizes;
use memmap2::{MmapOptions, MmapRaw};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::granule::Granule;
use super::io::reserve;
use super::location::Location;
use crate::SampleId;
use crate::fork::FileLock;

const MAGIC: [u8; 8] = *b"BELADYIX";
pub(super) const VERSION: u32 = 1;
pub(super) const PAGE: u64 = 4096;
const ENTRY: u64 = 16;
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
        let at = (PAGE + ENTRY * u64::from(sample)) as usize;
        Entry {
            checksum: u64_at(self.bytes, at),
            location: Location::decode(u64_at(self.bytes, at + 8)),
        }
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

/// A mapped index.
#[derive(Debug)]
pub(super) struct Index {
    pub header: Header,
    map: MmapRaw,
    /// Kept for its shared lock, which tells others that the cache is in use.
    _file: FileLock,
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
        // A hole in a mapped file on a full disk would kill the process at a write.
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
        let file = FileLock::try_shared(open)?
            .ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))?;
        let bytes = file.metadata()?.len();
        let mut page = vec![0; bytes.min(PAGE) as usize];
        file.read_exact_at(&mut page, 0)?;
        let header = Header::parse(&page)?;
        header.check_length(bytes)?;
        let options = MmapOptions::new();
        let map =
            if writable { options.map_raw(&*file) } else { options.map_raw_read_only(&*file) };
        Ok(Self { header, map: map?, _file: file })
    }

    /// A sample's entry as it is now. `None` past the last sample.
    pub fn entry(&self, sample: SampleId) -> Option<Entry> {
        let [checksum, location] = self.words(sample)?;
        let location = u64::from_le(location.load(Ordering::Acquire));
        let checksum = u64::from_le(checksum.load(Ordering::Relaxed));
        Some(Entry { checksum, location: Location::decode(location) })
    }

    pub fn location(&self, sample: SampleId) -> Option<Location> {
        let [_, location] = self.words(sample)?;
        Location::decode(u64::from_le(location.load(Ordering::Acquire)))
    }

    /// Shows a sample of `size` bytes whose data is written. Only for a writable index.
    pub fn publish(&self, sample: SampleId, size: u64, checksum_of: u64, at: Location) {
        if let Some([checksum, location]) = self.words(sample) {
            checksum.store(checksum_of.to_le(), Ordering::Relaxed);
            location.store(at.encode().to_le(), Ordering::Release);
            self.count(u64::saturating_add, size, at);
        }
    }

    /// Lets a sample of `size` bytes go. Only for a writable index.
    pub fn clear(&self, sample: SampleId, size: u64) {
        if let Some([_, location]) = self.words(sample)
            && let Some(at) = Location::decode(u64::from_le(location.swap(0, Ordering::AcqRel)))
        {
            self.count(u64::saturating_sub, size, at);
        }
    }

    /// How much is held, as far as is known without looking at the entries.
    pub fn held(&self) -> Held {
        let [samples, bytes] =
            self.held_words().map(|word| u64::from_le(word.load(Ordering::Relaxed)));
        Held { samples: samples.min(u64::from(self.header.samples)), bytes }
    }

    /// Puts the count right. Only for a writable index whose entries do not change meanwhile.
    pub fn set_held(&self, held: Held) {
        let [samples, bytes] = self.held_words();
        samples.store(held.samples.to_le(), Ordering::Relaxed);
        bytes.store(held.bytes.to_le(), Ordering::Relaxed);
    }

    fn count(&self, change: impl Fn(u64, u64) -> u64, size: u64, at: Location) {
        let granule = self.header.granule;
        let pieces = at.pieces.map_or(1, u64::from);
        // The size may be one that a broken index made up.
        let room = granule.count_in_pieces(size, pieces).saturating_mul(granule.bytes());
        for (word, by) in self.held_words().into_iter().zip([1, room]) {
            let change = |held| Some(change(u64::from_le(held), by).to_le());
            let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        }
    }

    fn held_words(&self) -> [&AtomicU64; 2] {
        self.words_at(HELD_AT)
    }

    fn words(&self, sample: SampleId) -> Option<[&AtomicU64; 2]> {
        (sample < self.header.samples)
            .then(|| self.words_at((PAGE + ENTRY * u64::from(sample)) as usize))
    }

    /// Two words in the header or of an entry.
    fn words_at(&self, at: usize) -> [&AtomicU64; 2] {
        #[expect(clippy::cast_ptr_alignment, reason = "the mapping starts on a page")]
        // SAFETY: the mapping was checked to hold the header and every entry, and starts on a
        // page; the words are aligned, and only ever touched as atomic ones.
        unsafe {
            let first = self.map.as_mut_ptr().add(at).cast::<u64>();
            [AtomicU64::from_ptr(first), AtomicU64::from_ptr(first.add(1))]
        }
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

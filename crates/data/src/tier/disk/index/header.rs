//! The header page of an index, and the size of the file that follows from it.

use belady_control::Sizes;
use xxhash_rust::xxh3::xxh3_64;

use super::super::granule::Granule;
use super::entry::{ENTRY, PAGE, u32_at, u64_at};

const MAGIC: [u8; 8] = *b"BELADYIX";
const VERSION: u32 = 2;
const CHECKSUM_AT: usize = PAGE as usize - 8;
/// Where the numbers of samples and bytes held lie, which the checksum does not cover.
pub(super) const HELD_AT: usize = PAGE as usize - 24;
const NAME_AT: usize = 64;
/// Names are for people; longer ones are cut.
const NAME_BYTES: usize = 512;

/// Why bytes are not an index that this version can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum CacheIndexError {
    /// It is shorter than a header.
    #[error("it is {bytes} bytes long, too short for a header")]
    Short { bytes: u64 },
    /// It does not begin with the magic number.
    #[error("it is not an index of Belady")]
    Magic,
    /// Another version of Belady wrote it.
    #[error("its version is {found}, not {VERSION}")]
    Version { found: u32 },
    /// The header is damaged.
    #[error("its header fails its checksum")]
    Checksum,
    /// A field of the header is not valid.
    #[error("its header has an invalid {0}")]
    Invalid(&'static str),
    /// The file has another length than the header says.
    #[error("it is {found} bytes long and should be {expected}")]
    Length { expected: u64, found: u64 },
}

/// The header of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexHeader {
    /// The dataset's fingerprint.
    pub fingerprint: u64,
    /// The number of its samples.
    pub samples: u32,
    /// The unit of space in the segments.
    pub granule: Granule,
    /// The length of a segment file.
    pub segment_bytes: u64,
    /// The dataset's name, for people.
    pub name: String,
    pub(super) width: SizeWidth,
}

/// How sizes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeWidth {
    /// All samples have this size, and none is stored.
    Equal(u64),
    /// 32 bits each.
    Narrow,
    /// 64 bits each.
    Wide,
}

impl IndexHeader {
    pub(in crate::tier::disk) fn new(
        fingerprint: u64,
        name: &str,
        segment_bytes: u64,
        granule: Granule,
        sizes: &Sizes,
    ) -> Self {
        let mut name = name.to_owned();
        name.truncate(name.floor_char_boundary(NAME_BYTES));
        let width = match sizes {
            Sizes::Equal { bytes, .. } => SizeWidth::Equal(*bytes),
            Sizes::Narrow(_) => SizeWidth::Narrow,
            Sizes::Wide(_) => SizeWidth::Wide,
        };
        Self { fingerprint, samples: sizes.len(), granule, segment_bytes, name, width }
    }

    /// Whether it belongs to this dataset.
    pub(in crate::tier::disk) fn is_of(&self, fingerprint: u64, sizes: &Sizes) -> bool {
        *self == Self::new(fingerprint, &self.name, self.segment_bytes, self.granule, sizes)
    }

    /// Returns the length of the whole file.
    pub(in crate::tier::disk) fn file_bytes(&self) -> u64 {
        let sizes = self.width.bytes() * u64::from(self.samples);
        (self.sizes_at() + sizes).next_multiple_of(PAGE)
    }

    pub(super) fn sizes_at(&self) -> u64 {
        PAGE + ENTRY * u64::from(self.samples)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut page = vec![0; PAGE as usize];
        let (tag, equal) = match self.width {
            SizeWidth::Equal(bytes) => (0, bytes),
            SizeWidth::Narrow => (4, 0),
            SizeWidth::Wide => (8, 0),
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

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, CacheIndexError> {
        let page = bytes
            .get(..PAGE as usize)
            .ok_or(CacheIndexError::Short { bytes: bytes.len() as u64 })?;
        if page[..8] != MAGIC {
            return Err(CacheIndexError::Magic);
        }
        // Before the checksum, which another version may store elsewhere.
        let version = u32_at(page, 8);
        if version != VERSION {
            return Err(CacheIndexError::Version { found: version });
        }
        let mut fixed = page[..CHECKSUM_AT].to_vec();
        fixed[HELD_AT..].fill(0);
        if xxh3_64(&fixed) != u64_at(page, CHECKSUM_AT) {
            return Err(CacheIndexError::Checksum);
        }
        let granule = Granule::of_length(u64::from(u32_at(page, 12)))
            .ok_or(CacheIndexError::Invalid("granule"))?;
        let samples = u32::try_from(u64_at(page, 24))
            .map_err(|_| CacheIndexError::Invalid("number of samples"))?;
        let segment_bytes = u64_at(page, 32);
        if segment_bytes == 0 || !segment_bytes.is_multiple_of(PAGE) {
            return Err(CacheIndexError::Invalid("segment size"));
        }
        let width = match u32_at(page, 48) {
            0 => SizeWidth::Equal(u64_at(page, 40)),
            4 => SizeWidth::Narrow,
            8 => SizeWidth::Wide,
            _ => return Err(CacheIndexError::Invalid("width of sizes")),
        };
        let length = u32_at(page, 52) as usize;
        if length > NAME_BYTES {
            return Err(CacheIndexError::Invalid("length of the name"));
        }
        let name = String::from_utf8_lossy(&page[NAME_AT..NAME_AT + length]).into_owned();
        Ok(Self { fingerprint: u64_at(page, 16), samples, granule, segment_bytes, name, width })
    }

    pub(super) fn check_length(&self, found: u64) -> Result<(), CacheIndexError> {
        let expected = self.file_bytes();
        if found == expected { Ok(()) } else { Err(CacheIndexError::Length { expected, found }) }
    }
}

impl SizeWidth {
    pub(super) fn bytes(self) -> u64 {
        match self {
            Self::Equal(_) => 0,
            Self::Narrow => 4,
            Self::Wide => 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, sizes: &Sizes) -> IndexHeader {
        IndexHeader::new(7, name, 4 * PAGE, Granule::of_length(16).unwrap(), sizes)
    }

    #[test]
    fn a_header_is_decoded_as_it_was_encoded_for_all_sizes() {
        for sizes in [vec![5, 5, 5], vec![1, 2, 3], vec![1, 1 << 33, 3]] {
            let sizes = Sizes::from_bytes(sizes);
            for name in ["", "a dataset", &"é".repeat(NAME_BYTES)] {
                let header = header(name, &sizes);
                assert_eq!(IndexHeader::parse(&header.encode()).unwrap(), header);
                assert!(header.is_of(7, &sizes) && !header.is_of(8, &sizes));
            }
        }
    }

    #[test]
    fn a_header_with_an_invalid_field_is_refused() {
        let header = header("a dataset", &Sizes::from_bytes(vec![1, 2, 3]));
        let with = |at: usize, value: u32| {
            let mut page = header.encode();
            page[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let checksum = xxh3_64(&page[..CHECKSUM_AT]);
            page[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            IndexHeader::parse(&page)
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
}

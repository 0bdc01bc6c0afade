//! Reads an index from untrusted bytes in memory.

use belady_base::SampleId;

use super::entry::{IndexEntry, entry_at, u32_at, u64_at};
use super::header::{CacheIndexError, IndexHeader, SizeWidth};

/// An index in memory.
#[derive(Clone, Debug)]
pub struct IndexView<'a> {
    /// Its header.
    pub header: IndexHeader,
    bytes: &'a [u8],
}

/// Reads an index from bytes of any origin.
///
/// # Errors
///
/// If they are not an index of this version.
pub fn check_index(bytes: &[u8]) -> Result<IndexView<'_>, CacheIndexError> {
    let header = IndexHeader::parse(bytes)?;
    header.check_length(bytes.len() as u64)?;
    Ok(IndexView { header, bytes })
}

impl IndexView<'_> {
    /// Returns the samples that have a location, with their sizes. Only the checksum tells whether
    /// their bytes are present and right.
    pub fn held(&self) -> impl Iterator<Item = (SampleId, IndexEntry, u64)> {
        (0..self.header.samples).filter_map(|sample| {
            let entry = self.entry(sample);
            entry.location.is_some().then(|| (sample, entry, self.size(sample)))
        })
    }

    fn entry(&self, sample: SampleId) -> IndexEntry {
        IndexEntry::decode(&self.bytes[entry_at(sample) as usize..])
    }

    fn size(&self, sample: SampleId) -> u64 {
        let at = (self.header.sizes_at() + self.header.width.bytes() * u64::from(sample)) as usize;
        match self.header.width {
            SizeWidth::Equal(bytes) => bytes,
            SizeWidth::Narrow => u64::from(u32_at(self.bytes, at)),
            SizeWidth::Wide => u64_at(self.bytes, at),
        }
    }
}

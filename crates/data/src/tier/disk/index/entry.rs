//! The entries of an index, one per sample, and the checksums in them.

use belady_base::SampleId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::super::location::SegmentLocation;

pub(in crate::tier::disk) const PAGE: u64 = 4096;
/// Bytes of an entry.
pub(super) const ENTRY: u64 = 24;

/// A sample's entry in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The checksum of its payload.
    pub checksum: u64,
    /// Where it lies; `None` if the sample is not held.
    pub location: Option<SegmentLocation>,
    /// The version of its file that was copied: the file's time of change.
    pub version: i64,
}

impl IndexEntry {
    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self {
            checksum: u64_at(bytes, 0),
            location: SegmentLocation::decode(u64_at(bytes, 8)),
            version: u64_at(bytes, 16).cast_signed(),
        }
    }

    pub(super) fn encode(&self) -> [u8; ENTRY as usize] {
        let mut bytes = [0; ENTRY as usize];
        bytes[..8].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[8..16]
            .copy_from_slice(&self.location.map_or(0, SegmentLocation::encode).to_le_bytes());
        bytes[16..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }
}

/// Returns the checksum of a sample's payload, which depends on the sample and the dataset.
pub(in crate::tier::disk) fn checksum(fingerprint: u64, sample: SampleId, payload: &[u8]) -> u64 {
    // The golden ratio spreads neighbouring numbers over all bits.
    let spread = (u64::from(sample) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    xxh3_64_with_seed(payload, fingerprint ^ spread)
}

/// Returns where a sample's entry lies in the file.
pub(super) fn entry_at(sample: SampleId) -> u64 {
    PAGE + ENTRY * u64::from(sample)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_valid_for_one_sample_of_one_dataset() {
        let of = |fingerprint, sample| checksum(fingerprint, sample, b"the same bytes");
        assert!(of(1, 0) != of(1, 1) && of(1, 0) != of(2, 0));
    }
}

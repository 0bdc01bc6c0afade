//! The unit of space in a cache's segments.
//!
//! Small samples need a small unit, since rounding costs quota. Large ones begin at a block of the
//! disk, so that a direct read needs no copy.

/// Bytes of an entry in a table of pieces.
const TABLE_ENTRY: u64 = 16;
/// From this mean size on samples begin at a block: rounding takes less than half a percent.
const LARGE: u64 = 64 << 10;

/// The length of a granule, in bytes; always a divisor of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granule(u64);

impl Granule {
    const SMALL: Self = Self(crate::tier::extents::GRANULE);
    /// The smallest unit of disks, and the alignment for direct reads in [`crate::file`].
    const BLOCK: Self = Self(512);

    /// Chooses the granule for this many samples of this many bytes in total.
    pub(super) fn for_payload(bytes: u64, samples: u32) -> Self {
        let mean = bytes / u64::from(samples.max(1));
        if mean >= LARGE { Self::BLOCK } else { Self::SMALL }
    }

    /// Returns the granule of this length, if this version has one.
    pub(super) fn of_length(bytes: u64) -> Option<Self> {
        [Self::SMALL, Self::BLOCK].into_iter().find(|granule| granule.0 == bytes)
    }

    /// Returns the length of a granule in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the granules that `bytes` take.
    pub(super) fn count(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.0)
    }

    /// Returns the granules of a table of this many pieces; a sample in one piece has no table.
    pub(super) fn count_table(self, pieces: u64) -> u64 {
        if pieces > 1 { self.count(pieces * TABLE_ENTRY) } else { 0 }
    }

    /// Returns the granules of a payload in this many pieces, table included.
    pub(super) fn count_in_pieces(self, size: u64, pieces: u64) -> u64 {
        self.count(size) + self.count_table(pieces)
    }
}

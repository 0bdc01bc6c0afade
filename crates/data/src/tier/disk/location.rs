//! Where a sample lies in the segments, as encoded in the index and in tables of pieces.
//!
//! For a sample in one piece its first granule is enough. A sample in several pieces begins with a
//! table of its pieces; its payload follows from the next granule on. A table may be torn or stale,
//! so its pieces are checked against the sample's size, and the payload against its checksum.

use super::granule::Granule;
use crate::tier::extents::Extent;

const PRESENT: u64 = 1 << 63;
const CHAINED: u64 = 1 << 62;
const START_BITS: u32 = 40;
const START: u64 = (1 << START_BITS) - 1;

/// The granules that a location can address.
pub(super) const ADDRESSABLE: u64 = 1 << START_BITS;
/// The most pieces of a sample: a table of 64 KiB. More would mean gaps of a few bytes each.
pub(super) const MOST_PIECES: u64 = 1 << 12;

/// Where a sample begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLocation {
    /// In granules from the start of the first segment.
    pub start: u64,
    /// Pieces listed in the table at `start`; `None` if there is no table.
    pub pieces: Option<u32>,
}

impl SegmentLocation {
    pub(super) fn encode(self) -> u64 {
        let chain = self.pieces.map_or(0, |pieces| CHAINED | u64::from(pieces) << START_BITS);
        PRESENT | chain | (self.start & START)
    }

    pub(super) fn decode(word: u64) -> Option<Self> {
        if word & PRESENT == 0 {
            return None;
        }
        let pieces = (word & !(PRESENT | CHAINED)) >> START_BITS;
        let chained = word & CHAINED != 0;
        Some(Self { start: word & START, pieces: chained.then_some(pieces as u32) })
    }
}

/// Returns the bytes of a table of this many pieces.
pub(super) fn table_bytes(pieces: u32) -> usize {
    pieces as usize * 16
}

pub(super) fn encode_table(pieces: &[Extent]) -> Vec<u8> {
    pieces
        .iter()
        .flat_map(|piece| [piece.start, piece.granules])
        .flat_map(u64::to_le_bytes)
        .collect()
}

/// Returns the pieces in a table, if they are valid for a sample of `size` bytes that begins at
/// `start`.
pub(super) fn decode_table(
    table: &[u8],
    start: u64,
    size: u64,
    granule: Granule,
) -> Option<Vec<Extent>> {
    let words: Vec<u64> = table
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(std::array::from_fn(|byte| word[byte])))
        .collect();
    let mut total = 0_u64;
    let mut pieces = Vec::with_capacity(words.len() / 2);
    for pair in words.chunks_exact(2) {
        let piece = Extent { start: pair[0], granules: pair[1] };
        if piece.granules == 0 || piece.start.checked_add(piece.granules)? > ADDRESSABLE {
            return None;
        }
        total = total.checked_add(piece.granules)?;
        pieces.push(piece);
    }
    let count = pieces.len() as u64;
    let first = pieces.first()?;
    let sound = first.start == start
        && first.granules >= granule.count_table(count)
        && count > 1
        && total == granule.count_in_pieces(size, count);
    sound.then_some(pieces)
}

/// Returns the runs of bytes that hold the payload: offset in the segments, and length.
pub(super) fn payload_runs(pieces: &[Extent], size: u64, granule: Granule) -> Vec<(u64, usize)> {
    let mut rest = size;
    let mut skip = granule.count_table(pieces.len() as u64);
    let mut runs = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let length = rest.min((piece.granules - skip) * granule.bytes());
        if length > 0 {
            runs.push(((piece.start + skip) * granule.bytes(), length as usize));
        }
        rest -= length;
        skip = 0;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granule() -> Granule {
        Granule::of_length(16).unwrap()
    }

    #[test]
    fn a_location_is_decoded_as_it_was_encoded() {
        for start in [0, 1, START] {
            for pieces in [None, Some(2), Some(MOST_PIECES as u32)] {
                let location = SegmentLocation { start, pieces };
                assert_eq!(SegmentLocation::decode(location.encode()), Some(location));
            }
        }
        assert_eq!(SegmentLocation::decode(0), None);
    }

    #[test]
    fn a_table_that_is_not_valid_for_its_sample_is_refused() {
        let (start, size) = (10, 1000);
        let first = granule().count_table(2) + 5;
        let all = granule().count_in_pieces(size, 2);
        let decode = |pieces: &[Extent], start, size| {
            decode_table(&encode_table(pieces), start, size, granule())
        };
        let two = |first, all| {
            [Extent { start, granules: first }, Extent { start: 200, granules: all - first }]
        };
        assert_eq!(decode(&two(first, all), start, size), Some(two(first, all).to_vec()));
        assert_eq!(decode(&two(first, all), start + 1, size), None, "it begins elsewhere");
        assert_eq!(decode(&two(first, all + 1), start, size), None, "too large");
        assert_eq!(decode(&two(granule().count_table(2) - 1, all), start, size), None, "no table");
        assert_eq!(decode(&two(all, all), start, size), None, "a piece of nothing");
        let one = Extent { start, granules: granule().count_in_pieces(size, 1) };
        assert_eq!(decode(&[one], start, size), None, "one piece has no table");
        assert_eq!(decode(&[], start, size), None);
        let last = all - first;
        let mut far = two(first, all);
        far[1].start = ADDRESSABLE - last;
        assert_eq!(decode(&far, start, size), Some(far.to_vec()), "it ends with the last granule");
        far[1].start += 1;
        assert_eq!(decode(&far, start, size), None, "it ends behind the last granule");
        for granules in [ADDRESSABLE, u64::MAX] {
            let far = Extent { start: 1, granules };
            assert_eq!(decode(&[far, far], 1, size), None, "beyond all segments");
        }
    }

    #[test]
    fn payload_follows_the_table_and_fills_the_pieces_in_turn() {
        let table = granule().count_table(2);
        let pieces =
            [Extent { start: 10, granules: table + 2 }, Extent { start: 100, granules: 3 }];
        let at = |start: u64, length| (start * 16, length);
        assert_eq!(payload_runs(&pieces, 70, granule()), [at(10 + table, 32), at(100, 38)]);
        assert_eq!(payload_runs(&pieces, 20, granule()), [at(10 + table, 20)]);
    }
}

//! Allocates space in the segments, which grow up to the quota.
//!
//! After a restart the free space is recovered from the index, and no sample is accepted before
//! that. Every valid entry keeps its space, and the rest is free. Invalid entries (past the end,
//! overlapping another) are removed.

use std::collections::{HashMap, HashSet};
use std::io;

use belady_base::SampleId;
use belady_control::Sizes;

use super::granule::Granule;
use super::index::{CacheIndex, HeldTotals, PAGE};
use super::location::{MOST_PIECES, SegmentLocation};
use super::segments::Segments;
use crate::tier::extents::{Extent, Extents};

/// The space in the segments of one cache.
#[derive(Debug)]
pub(super) struct SegmentSpace {
    granule: Granule,
    extents: Extents,
    /// The pieces of samples that have several.
    chains: HashMap<SampleId, Vec<Extent>>,
    /// The bytes that the segments have now.
    made: u64,
    /// The bytes that they may have.
    limit: u64,
    /// The granules that are unusable.
    retired: u64,
}

/// The result of [`SegmentSpace::allocate`].
#[derive(Debug)]
pub(super) struct Allocation {
    pub pieces: Vec<Extent>,
    /// Why the segments could not grow to the quota, if this call has found that.
    pub stunted: Option<io::Error>,
}

impl SegmentSpace {
    /// Recovers from the index what is free in `made` bytes of segments.
    pub fn recover(
        index: &CacheIndex,
        sizes: &Sizes,
        segments: &Segments,
        made: u64,
        limit: u64,
    ) -> Self {
        let granule = segments.granule();
        let mut found = RecoveredPieces::new(granule);
        if let Some(error) = index.load() {
            tracing::warn!(
                "cannot read all of a cache's index: {error}; the missing samples are cached again"
            );
        }
        let location = |sample| index.location(sample).ok().flatten();
        for sample in 0..index.header.samples {
            let Some(location) = location(sample) else { continue };
            if found.add(sample, location, sizes.get(sample), segments, made).is_none() {
                index.clear(sample, sizes.get(sample));
            }
        }
        found.sort();
        for sample in found.overlapping(sizes) {
            found.chains.remove(&sample);
            found.held -= 1;
            index.clear(sample, sizes.get(sample));
        }
        let mut extents = Extents::new(Some(segments.segment_granules()));
        let mut free_from = 0;
        for piece in &found.pieces {
            if location(piece.sample).is_some() {
                extents.free(Extent { start: free_from, granules: piece.start - free_from });
                free_from = piece.start + found.length(piece, sizes);
            }
        }
        extents.free(Extent { start: free_from, granules: granule.count(made) - free_from });
        let space = Self { granule, extents, chains: found.chains, made, limit, retired: 0 };
        index.set_held(HeldTotals { samples: found.held, bytes: space.used() });
        space
    }

    /// Creates the space of a cache without samples.
    pub fn empty(segments: &Segments, limit: u64) -> Self {
        let extents = Extents::new(Some(segments.segment_granules()));
        let granule = segments.granule();
        Self { granule, extents, chains: HashMap::new(), made: 0, limit, retired: 0 }
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.made - (self.extents.total_free() + self.retired) * self.granule.bytes()
    }

    /// Returns the bytes that can be in use.
    pub fn capacity(&self) -> u64 {
        self.limit - self.retired * self.granule.bytes()
    }

    /// Allocates space for a payload: in one piece if possible, growing the segments if needed,
    /// else in several pieces, with their table in the first.
    pub fn allocate(&mut self, size: u64, segments: &Segments) -> Allocation {
        let wanted = self.granule.count(size);
        let fits_a_segment = wanted <= segments.segment_granules();
        let mut stunted = None;
        loop {
            if fits_a_segment {
                if let Some(piece) = self.extents.allocate_whole(wanted) {
                    return Allocation { pieces: vec![piece], stunted };
                }
            } else if let Some(pieces) = self.allocate_pieces(size) {
                return Allocation { pieces, stunted };
            }
            if stunted.is_some() || self.made == self.limit {
                break;
            }
            stunted = self.grow(segments).err();
        }
        Allocation { pieces: self.allocate_pieces(size).unwrap_or_default(), stunted }
    }

    /// Records the pieces of a sample that was written.
    pub fn record(&mut self, sample: SampleId, pieces: Vec<Extent>) {
        if pieces.len() > 1 {
            self.chains.insert(sample, pieces);
        }
    }

    /// Returns the pieces of a sample that is evicted.
    pub fn forget(
        &mut self,
        sample: SampleId,
        location: SegmentLocation,
        size: u64,
    ) -> Vec<Extent> {
        match location.pieces {
            Some(_) => self.chains.remove(&sample).unwrap_or_default(),
            None => vec![Extent { start: location.start, granules: self.granule.count(size) }],
        }
    }

    pub fn free(&mut self, pieces: &[Extent]) {
        for &piece in pieces {
            self.extents.free(piece);
        }
    }

    /// Stops using space that cannot be read or written, until the next restart.
    pub fn retire(&mut self, pieces: &[Extent]) {
        self.retired += pieces.iter().map(|piece| piece.granules).sum::<u64>();
    }

    /// Allocates several pieces. Their table takes space too, which may add pieces.
    fn allocate_pieces(&mut self, size: u64) -> Option<Vec<Extent>> {
        let mut count = 2;
        loop {
            let pieces = self.extents.allocate(self.granule.count_in_pieces(size, count))?;
            let needed = pieces.len() as u64;
            if needed == count && pieces[0].granules >= self.granule.count_table(count) {
                return Some(pieces);
            }
            self.free(&pieces);
            // More space never takes fewer pieces: an equal number means that the table does not
            // fit.
            if needed <= count || needed > MOST_PIECES {
                return None;
            }
            count = needed;
        }
    }

    /// Grows the segments by a step, or by what the disk has left.
    fn grow(&mut self, segments: &Segments) -> io::Result<()> {
        let segment_end = (self.made + 1).next_multiple_of(segments.segment_bytes());
        let most = segment_end.min(self.limit) - self.made;
        let mut step = (self.limit / 64).clamp(1 << 20, 256 << 20).next_multiple_of(PAGE).min(most);
        loop {
            match segments.extend(self.made, self.made + step) {
                Ok(()) => break,
                Err(error) if is_full(&error) && step >= 2 * PAGE => {
                    step = (step / 2).next_multiple_of(PAGE);
                }
                Err(error) => {
                    self.limit = self.made;
                    return Err(error);
                }
            }
        }
        let added =
            Extent { start: self.granule.count(self.made), granules: self.granule.count(step) };
        self.extents.free(added);
        self.made += step;
        Ok(())
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

/// The pieces that an index lists.
struct RecoveredPieces {
    granule: Granule,
    pieces: Vec<SamplePiece>,
    chains: HashMap<SampleId, Vec<Extent>>,
    held: u64,
}

/// A piece. Its length follows from its sample, to save memory.
struct SamplePiece {
    start: u64,
    sample: SampleId,
}

impl RecoveredPieces {
    fn new(granule: Granule) -> Self {
        Self { granule, pieces: Vec::new(), chains: HashMap::new(), held: 0 }
    }

    /// Adds the pieces of a sample; `None` if its entry is not valid.
    fn add(
        &mut self,
        sample: SampleId,
        location: SegmentLocation,
        size: u64,
        segments: &Segments,
        made: u64,
    ) -> Option<()> {
        if size > 0 {
            let pieces = segments.pieces(location, size).ok()?;
            let segment = segments.segment_granules();
            let sound = |piece: &Extent| {
                piece.end() <= self.granule.count(made)
                    && piece.start / segment == (piece.end() - 1) / segment
            };
            if !pieces.iter().all(sound) {
                return None;
            }
            self.pieces
                .extend(pieces.iter().map(|piece| SamplePiece { start: piece.start, sample }));
            if location.pieces.is_some() {
                self.chains.insert(sample, pieces);
            }
        }
        self.held += 1;
        Some(())
    }

    fn sort(&mut self) {
        self.pieces.sort_unstable_by_key(|piece| piece.start);
    }

    /// Returns the samples to remove so that no two overlap.
    fn overlapping(&self, sizes: &Sizes) -> HashSet<SampleId> {
        let mut taken_to = 0;
        let mut losers = HashSet::new();
        for piece in &self.pieces {
            if piece.start < taken_to {
                losers.insert(piece.sample);
            } else {
                taken_to = piece.start + self.length(piece, sizes);
            }
        }
        losers
    }

    fn length(&self, piece: &SamplePiece, sizes: &Sizes) -> u64 {
        match self.chains.get(&piece.sample) {
            Some(chain) => chain
                .iter()
                .find(|extent| extent.start == piece.start)
                .map_or(0, |extent| extent.granules),
            None => self.granule.count(sizes.get(piece.sample)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_quota_or_file_without_space_is_full_and_a_broken_disk_is_not() {
        let is = |error| is_full(&io::Error::from_raw_os_error(error));
        assert_eq!([libc::ENOSPC, libc::EDQUOT, libc::EFBIG].map(is), [true; 3]);
        assert_eq!([libc::EIO, libc::EROFS].map(is), [false; 2]);
        assert!(!is_full(&io::ErrorKind::UnexpectedEof.into()));
    }
}

//! Room in the segments: what is free, and how the segments grow up to the quota.
//!
//! After a restart this is worked out from the index, once, and no sample is taken in before
//! that: every entry that can be right keeps its place, and all else is free. Entries
//! that cannot be right (past the end, on top of another) are let go.

use std::collections::{HashMap, HashSet};
use std::io;

use belady_control::Sizes;

use super::granule::Granule;
use super::index::{Held, Index, PAGE};
use super::location::{Location, MOST_PIECES};
use super::segments::Segments;
use crate::SampleId;
use crate::tier::extents::{Extent, Extents};

/// Room in the segments of one cache.
#[derive(Debug)]
pub(super) struct Space {
    granule: Granule,
    extents: Extents,
    /// Pieces of the samples that have several.
    chains: HashMap<SampleId, Vec<Extent>>,
    /// Bytes that the segments have now.
    made: u64,
    /// Bytes that they may have.
    limit: u64,
    /// Granules that turned out to be unusable.
    retired: u64,
}

/// What [`Space::allocate`] found.
#[derive(Debug)]
pub(super) struct Allocation {
    pub pieces: Vec<Extent>,
    /// Why the segments grew less than the quota allows, if they just did.
    pub stunted: Option<io::Error>,
}

impl Space {
    /// Works out from the index what is free in `made` bytes of segments.
    pub fn recover(
        index: &Index,
        sizes: &Sizes,
        segments: &Segments,
        made: u64,
        limit: u64,
    ) -> Self {
        let granule = segments.granule();
        let mut found = Found::new(granule);
        if let Some(error) = index.load() {
            tracing::warn!("cannot read all of a cache's index: {error}; the rest is made anew");
        }
        let location = |sample| index.location(sample).ok().flatten();
        for sample in 0..index.header.samples {
            let Some(location) = location(sample) else { continue };
            if found.add(sample, location, sizes.get(sample), segments, made).is_none() {
                index.clear(sample, sizes.get(sample));
            }
        }
        found.sort();
        for sample in found.on_top_of_another(sizes) {
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
        index.set_held(Held { samples: found.held, bytes: space.used() });
        space
    }

    /// The room of a cache without samples.
    pub fn empty(segments: &Segments, limit: u64) -> Self {
        let extents = Extents::new(Some(segments.segment_granules()));
        let granule = segments.granule();
        Self { granule, extents, chains: HashMap::new(), made: 0, limit, retired: 0 }
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.made - (self.extents.total_free() + self.retired) * self.granule.bytes()
    }

    /// Bytes that can be in use.
    pub fn capacity(&self) -> u64 {
        self.limit - self.retired * self.granule.bytes()
    }

    /// Room for a payload: in one piece if possible, growing the segments if need be, else
    /// in several with room for their table in the first.
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

    /// Remembers the pieces of a sample that was just written.
    pub fn keep(&mut self, sample: SampleId, pieces: Vec<Extent>) {
        if pieces.len() > 1 {
            self.chains.insert(sample, pieces);
        }
    }

    /// The pieces of a sample that goes.
    pub fn forget(&mut self, sample: SampleId, location: Location, size: u64) -> Vec<Extent> {
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

    /// Gives up room that cannot be read or written, until the next restart.
    pub fn retire(&mut self, pieces: &[Extent]) {
        self.retired += pieces.iter().map(|piece| piece.granules).sum::<u64>();
    }

    /// The table of the pieces takes room too, which may make more pieces of it.
    fn allocate_pieces(&mut self, size: u64) -> Option<Vec<Extent>> {
        let mut count = 2;
        loop {
            let pieces = self.extents.allocate(self.granule.count_in_pieces(size, count))?;
            let needed = pieces.len() as u64;
            if needed == count && pieces[0].granules >= self.granule.count_table(count) {
                return Some(pieces);
            }
            self.free(&pieces);
            // More room never takes fewer pieces: equal means that the table does not fit.
            if needed <= count || needed > MOST_PIECES {
                return None;
            }
            count = needed;
        }
    }

    /// Lengthens the segments by a step, or by what the disk has left.
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

/// What an index says is where.
struct Found {
    granule: Granule,
    pieces: Vec<Piece>,
    chains: HashMap<SampleId, Vec<Extent>>,
    held: u64,
}

/// A piece; its length follows from its sample, to keep this small.
struct Piece {
    start: u64,
    sample: SampleId,
}

impl Found {
    fn new(granule: Granule) -> Self {
        Self { granule, pieces: Vec::new(), chains: HashMap::new(), held: 0 }
    }

    /// `None` if the entry cannot be right.
    fn add(
        &mut self,
        sample: SampleId,
        location: Location,
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
            self.pieces.extend(pieces.iter().map(|piece| Piece { start: piece.start, sample }));
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

    /// Samples to let go so that no two overlap.
    fn on_top_of_another(&self, sizes: &Sizes) -> HashSet<SampleId> {
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

    fn length(&self, piece: &Piece, sizes: &Sizes) -> u64 {
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
    fn a_disk_or_a_quota_or_a_file_without_room_is_full_and_a_broken_disk_is_not() {
        let is = |error| is_full(&io::Error::from_raw_os_error(error));
        assert_eq!([libc::ENOSPC, libc::EDQUOT, libc::EFBIG].map(is), [true; 3]);
        assert_eq!([libc::EIO, libc::EROFS].map(is), [false; 2]);
        assert!(!is_full(&io::ErrorKind::UnexpectedEof.into()));
    }
}

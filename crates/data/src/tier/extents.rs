//! Allocates granules of an address space.
//!
//! A hard quota has to be usable to the last byte whatever the samples' sizes are, so an allocation
//! never fails while enough granules are free: it takes the smallest free extent that fits, or if
//! none does, several pieces, the largest first. Freed extents merge with their free neighbours.
//! Free extents are stored twice, by address and by size, so every step is logarithmic in their
//! number.

use std::collections::{BTreeMap, BTreeSet};

/// The unit of allocation: small enough that rounding costs nothing at a kilobyte, large
/// enough that 40 bits address 16 TiB.
pub(crate) const GRANULE: u64 = 16;

/// Returns the granules that `bytes` take.
pub(crate) fn granules(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE)
}

/// A run of granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    pub start: u64,
    pub granules: u64,
}

impl Extent {
    pub fn end(self) -> u64 {
        self.start + self.granules
    }
}

/// The free extents of an address space.
#[derive(Debug)]
pub(crate) struct Extents {
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    free: u64,
    /// No extent crosses a multiple of this: the segments of a disk are separate files.
    boundary: Option<u64>,
}

impl Extents {
    /// Creates an address space without free granules; [`Self::free`] adds some.
    pub fn new(boundary: Option<u64>) -> Self {
        Self { by_start: BTreeMap::new(), by_size: BTreeSet::new(), free: 0, boundary }
    }

    pub fn total_free(&self) -> u64 {
        self.free
    }

    /// Allocates granules, in one piece if any free extent is long enough, else in several. Returns
    /// `None` only if fewer are free, and no pieces for zero granules.
    pub fn allocate(&mut self, granules: u64) -> Option<Vec<Extent>> {
        if granules > self.free {
            return None;
        }
        let mut pieces = Vec::new();
        let mut missing = granules;
        while missing > 0 {
            let piece = self.allocate_whole(missing).or_else(|| self.take_largest())?;
            missing -= piece.granules;
            pieces.push(piece);
        }
        Some(pieces)
    }

    /// Allocates one piece from the smallest free extent that is long enough.
    pub fn allocate_whole(&mut self, granules: u64) -> Option<Extent> {
        let &(size, start) = self.by_size.range((granules, 0)..).next()?;
        self.remove(Extent { start, granules: size });
        if size > granules {
            self.insert(Extent { start: start + granules, granules: size - granules });
        }
        Some(Extent { start, granules })
    }

    /// Frees granules, or adds new ones.
    pub fn free(&mut self, extent: Extent) {
        let mut rest = extent;
        while rest.granules > 0 {
            let within = self.boundary.map_or(u64::MAX, |every| every - rest.start % every);
            let part = Extent { start: rest.start, granules: rest.granules.min(within) };
            self.free_within_boundary(part);
            rest = Extent { start: part.end(), granules: rest.granules - part.granules };
        }
    }

    fn free_within_boundary(&mut self, extent: Extent) {
        let mut merged = extent;
        if !self.is_boundary(extent.start)
            && let Some((&start, &granules)) = self.by_start.range(..extent.start).next_back()
        {
            let before = Extent { start, granules };
            debug_assert!(before.end() <= extent.start, "{extent:?} freed twice");
            if before.end() == extent.start {
                self.remove(before);
                merged = Extent { start, granules: granules + merged.granules };
            }
        }
        if !self.is_boundary(extent.end())
            && let Some(&granules) = self.by_start.get(&extent.end())
        {
            self.remove(Extent { start: extent.end(), granules });
            merged.granules += granules;
        }
        self.insert(merged);
    }

    fn take_largest(&mut self) -> Option<Extent> {
        let &(granules, start) = self.by_size.last()?;
        let extent = Extent { start, granules };
        self.remove(extent);
        Some(extent)
    }

    fn is_boundary(&self, address: u64) -> bool {
        self.boundary.is_some_and(|every| address.is_multiple_of(every))
    }

    fn insert(&mut self, extent: Extent) {
        self.by_start.insert(extent.start, extent.granules);
        self.by_size.insert((extent.granules, extent.start));
        self.free += extent.granules;
    }

    fn remove(&mut self, extent: Extent) {
        self.by_start.remove(&extent.start);
        self.by_size.remove(&(extent.granules, extent.start));
        self.free -= extent.granules;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reference model: one flag per granule.
    struct Bitmap {
        taken: Vec<bool>,
        boundary: Option<u64>,
    }

    impl Bitmap {
        fn take(&mut self, extent: Extent) {
            for at in extent.start..extent.end() {
                assert!(!std::mem::replace(&mut self.taken[at as usize], true), "{at} twice");
            }
            if let Some(every) = self.boundary {
                assert_eq!(extent.start / every, (extent.end() - 1) / every, "{extent:?}");
            }
        }

        fn give(&mut self, extent: Extent) {
            self.taken[extent.start as usize..extent.end() as usize].fill(false);
        }

        fn total_free(&self) -> u64 {
            self.taken.iter().filter(|&&taken| !taken).count() as u64
        }

        /// Returns the lengths of all maximal free runs, in order of size.
        fn runs(&self) -> Vec<u64> {
            let mut runs = vec![0];
            for (at, &taken) in self.taken.iter().enumerate() {
                let crosses = self.boundary.is_some_and(|every| (at as u64).is_multiple_of(every));
                if taken || crosses {
                    runs.push(0);
                }
                if !taken {
                    *runs.last_mut().expect("never empty") += 1;
                }
            }
            runs.retain(|&run| run > 0);
            runs.sort_unstable();
            runs
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_bitmap(
            space in 1_u64..200,
            boundary in proptest::option::of(1_u64..70),
            steps in proptest::collection::vec((any::<bool>(), 0_u64..40), 1..200),
        ) {
            let mut extents = Extents::new(boundary);
            extents.free(Extent { start: 0, granules: space });
            let mut bitmap = Bitmap { taken: vec![false; space as usize], boundary };
            let mut held: Vec<Vec<Extent>> = Vec::new();
            for (allocate, number) in steps {
                if allocate {
                    let runs = bitmap.runs();
                    let got = extents.allocate(number);
                    prop_assert_eq!(got.is_some(), number <= bitmap.total_free());
                    let Some(pieces) = got else { continue };
                    let fits_whole = runs.last().is_some_and(|&largest| largest >= number);
                    prop_assert!(number == 0 || (pieces.len() == 1) == fits_whole);
                    prop_assert!(pieces.is_sorted_by(|a, b| a.granules >= b.granules));
                    prop_assert_eq!(pieces.iter().map(|p| p.granules).sum::<u64>(), number);
                    for &piece in &pieces {
                        bitmap.take(piece);
                    }
                    held.push(pieces);
                } else if !held.is_empty() {
                    for piece in held.swap_remove(number as usize % held.len()) {
                        bitmap.give(piece);
                        extents.free(piece);
                    }
                }
                prop_assert_eq!(extents.total_free(), bitmap.total_free());
                let sizes: Vec<u64> = extents.by_size.iter().map(|&(size, _)| size).collect();
                prop_assert_eq!(sizes, bitmap.runs(), "freed neighbours merge");
            }
        }
    }

    #[test]
    fn a_full_space_is_used_to_the_last_granule_in_pieces() {
        let mut extents = Extents::new(None);
        extents.free(Extent { start: 0, granules: 9 });
        let ones: Vec<Extent> = (0..9).map(|_| extents.allocate(1).expect("space")[0]).collect();
        ones.iter().step_by(2).for_each(|&one| extents.free(one));
        assert_eq!(extents.allocate(5).expect("five are free").len(), 5);
        assert_eq!(extents.total_free(), 0);
    }

    #[test]
    fn a_sample_of_no_bytes_takes_no_extents() {
        assert_eq!(Extents::new(None).allocate(granules(0)), Some(Vec::new()));
    }
}

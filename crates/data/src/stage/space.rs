//! Which part of the area a block gets.
//!
//! Blocks are contiguous and come back in the order in which they were given, so the free
//! part is one stretch, or two when it wraps. A block that fits into half of the area never
//! lies across its middle: then one block still held leaves a whole half free, whatever the
//! sizes were before, and two of the largest batches are room enough to go on for ever.

use std::collections::VecDeque;

use super::layout::Extent;

/// What is given goes on at the start of the area when that has this many times the room of
/// what is in use.
const EARLY: usize = 1;

#[derive(Debug)]
pub struct Space {
    capacity: usize,
    /// Where the second half begins.
    middle: usize,
    /// Blocks given and not yet back, oldest first.
    given: VecDeque<Extent>,
}

impl Space {
    /// `align` is what the size of every block is a multiple of.
    pub fn new(capacity: usize, align: usize) -> Self {
        Self { capacity, middle: capacity / 2 / align * align, given: VecDeque::new() }
    }

    pub fn given(&self) -> usize {
        self.given.len()
    }

    /// Gives a block of `bytes` > 0, if there is room now.
    pub fn give(&mut self, bytes: usize) -> Option<Extent> {
        let start = self.find(bytes)?;
        let extent = Extent { start, bytes };
        self.given.push_back(extent);
        Some(extent)
    }

    /// Takes the oldest block back.
    pub fn take_back(&mut self) {
        self.given.pop_front();
    }

    fn find(&self, bytes: usize) -> Option<usize> {
        let (Some(oldest), Some(newest)) = (self.given.front(), self.given.back()) else {
            // Always from the start when empty: that memory is the warmest.
            return self.find_between(0, self.capacity, bytes);
        };
        let head = newest.start + newest.bytes;
        let tail = oldest.start;
        if newest.start < tail {
            return self.find_between(head, tail, bytes);
        }
        // A consumer that keeps up needs little of the area: back to the start early, to memory
        // that is still in the processor's cache and not to pages never touched.
        if tail / EARLY > head - tail + bytes
            && let Some(start) = self.find_between(0, tail, bytes)
        {
            return Some(start);
        }
        self.find_between(head, self.capacity, bytes).or_else(|| self.find_between(0, tail, bytes))
    }

    fn find_between(&self, from: usize, to: usize, bytes: usize) -> Option<usize> {
        let fits = |start: usize| start <= to && bytes <= to - start;
        let crosses = from < self.middle && from + bytes.min(self.capacity) > self.middle;
        let start = if crosses && bytes <= self.middle { self.middle } else { from };
        fits(start).then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALIGN: usize = 64;

    #[test]
    fn one_held_block_never_blocks_the_next_of_half_the_area() {
        // Small, large, large: packed one behind the other the third would not fit.
        let mut space = Space::new(2048, ALIGN);
        for bytes in [64, 1024, 1024, 64, 960, 1024] {
            space.give(bytes).expect("room beside the one before");
            if space.given() == 2 {
                space.take_back();
            }
        }
    }

    proptest! {
        #[test]
        fn blocks_are_apart_and_one_held_leaves_room(
            capacity in 2usize..64,
            moves in prop::collection::vec((1usize..40, any::<bool>()), 1..200),
        ) {
            let capacity = capacity * ALIGN;
            let mut space = Space::new(capacity, ALIGN);
            for (lines, take_back) in moves {
                let bytes = lines * ALIGN;
                if take_back {
                    space.take_back();
                }
                let held: Vec<_> = space.given.iter().copied().collect();
                if let Some(new) = space.give(bytes) {
                    prop_assert!(new.start % ALIGN == 0 && new.bytes == bytes);
                    prop_assert!(new.start + bytes <= capacity);
                    for other in &held {
                        prop_assert!(
                            new.start + bytes <= other.start
                                || other.start + other.bytes <= new.start
                        );
                    }
                } else {
                    let beside_one =
                        held.len() == 1 && bytes.max(held[0].bytes) <= space.middle;
                    let must_fit = beside_one || held.is_empty() && bytes <= capacity;
                    prop_assert!(!must_fit, "{bytes} beside {held:?} of {capacity}");
                }
            }
        }
    }
}

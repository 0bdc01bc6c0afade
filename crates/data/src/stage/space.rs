//! Which part of the area a block gets.
//!
//! A block goes into the lowest gap that is large enough: what lies low was used last and is
//! still in the processor's cache, and a consumer that keeps up never makes us touch the
//! rest. Blocks come back in any order, so one that never does costs only its own bytes.
//!
//! What is held splits what is free. Two rules bound the harm:
//!
//! - A block that fits into half of the area never lies across its middle. One such block
//!   still held leaves a whole half free, whatever the sizes were before: two of the largest
//!   batches are room enough to go on for ever.
//! - `k` blocks held leave at most `k + 2` gaps, the middle counted as an end of two. So
//!   `2k + 2` of the largest batches are room enough for `k` held and one more.

use std::ops::Range;

use super::layout::Extent;

#[derive(Debug)]
pub struct Space {
    /// Where the second half begins.
    middle: usize,
    /// What is free, in order; never two that touch, none empty.
    gaps: Vec<Range<usize>>,
}

impl Space {
    /// `align` is what the size of every block is a multiple of.
    pub fn new(capacity: usize, align: usize) -> Self {
        let mut gaps = Vec::new();
        put_unless_empty(&mut gaps, 0, 0..capacity);
        Self { middle: capacity / 2 / align * align, gaps }
    }

    /// Gives a block of `bytes` > 0, if there is room now.
    pub fn give(&mut self, bytes: usize) -> Option<Extent> {
        let fit = |(at, gap)| Some((at, self.start_in(gap, bytes)?));
        let (at, start) = self.gaps.iter().enumerate().find_map(fit)?;
        let gap = self.gaps[at].clone();
        if start == gap.start && start + bytes < gap.end {
            // What nearly always happens, without moving the gaps behind.
            self.gaps[at].start += bytes;
        } else {
            self.gaps.remove(at);
            put_unless_empty(&mut self.gaps, at, start + bytes..gap.end);
            put_unless_empty(&mut self.gaps, at, gap.start..start);
        }
        Some(Extent { start, bytes })
    }

    /// Takes back a block that was given.
    pub fn take_back(&mut self, block: Extent) {
        let end = block.start + block.bytes;
        let at = self.gaps.partition_point(|gap| gap.start < block.start);
        let follows = at > 0 && self.gaps[at - 1].end == block.start;
        let precedes = self.gaps.get(at).is_some_and(|gap| gap.start == end);
        match (follows, precedes) {
            (true, true) => self.gaps[at - 1].end = self.gaps.remove(at).end,
            (true, false) => self.gaps[at - 1].end = end,
            (false, true) => self.gaps[at].start = block.start,
            (false, false) => self.gaps.insert(at, block.start..end),
        }
    }

    /// What is free, in order.
    pub fn gaps(&self) -> &[Range<usize>] {
        &self.gaps
    }

    /// The lowest place in a gap for a block of this size.
    fn start_in(&self, gap: &Range<usize>, bytes: usize) -> Option<usize> {
        let fits = |start| start <= gap.end && bytes <= gap.end - start;
        if !fits(gap.start) {
            return None;
        }
        let crosses = gap.start < self.middle && gap.start + bytes > self.middle;
        let start = if crosses && bytes <= self.middle { self.middle } else { gap.start };
        fits(start).then_some(start)
    }
}

fn put_unless_empty(gaps: &mut Vec<Range<usize>>, at: usize, gap: Range<usize>) {
    if !gap.is_empty() {
        gaps.insert(at, gap);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALIGN: usize = 64;

    /// The lowest place for a block that touches none of those held: every place is tried.
    fn naive(capacity: usize, held: &[Extent], bytes: usize) -> Option<usize> {
        let middle = capacity / 2 / ALIGN * ALIGN;
        let crosses = |start| start < middle && start + bytes > middle;
        (0..capacity).step_by(ALIGN).find(|&start| {
            let apart =
                |held: &Extent| start + bytes <= held.start || held.start + held.bytes <= start;
            let allowed = bytes > middle || !crosses(start);
            start + bytes <= capacity && allowed && held.iter().all(apart)
        })
    }

    #[test]
    fn one_held_block_never_blocks_the_next_of_half_the_area() {
        // Small, large, large: packed one behind the other the third would not fit.
        let mut space = Space::new(2048, ALIGN);
        let mut held = None;
        for bytes in [64, 1024, 1024, 64, 960, 1024] {
            let next = space.give(bytes).expect("room beside the one before");
            if let Some(before) = held.replace(next) {
                space.take_back(before);
            }
        }
    }

    #[test]
    fn an_area_too_small_for_anything_gives_nothing() {
        for capacity in [0, 1, 63] {
            assert_eq!(Space::new(capacity, ALIGN).give(ALIGN), None);
        }
    }

    proptest! {
        #[test]
        fn blocks_lie_where_trying_every_place_would_put_them(
            lines in 2usize..64,
            rest in 0..ALIGN,
            moves in prop::collection::vec(
                (1usize..40, prop::option::weighted(0.6, any::<prop::sample::Index>())),
                1..200,
            ),
        ) {
            let capacity = lines * ALIGN + rest;
            let mut space = Space::new(capacity, ALIGN);
            let mut held = Vec::<Extent>::new();
            for (lines, take_back) in moves {
                if let Some(which) = take_back.filter(|_| !held.is_empty()) {
                    space.take_back(held.swap_remove(which.index(held.len())));
                }
                let bytes = lines * ALIGN;
                let given = space.give(bytes);
                prop_assert_eq!(given.map(|new| new.start), naive(capacity, &held, bytes));
                held.extend(given);
            }
            for block in held.drain(..) {
                space.take_back(block);
            }
            prop_assert_eq!(space.gaps, vec![0..capacity]);
        }

        #[test]
        fn room_is_left_beside_what_is_held_whatever_came_before(
            largest in 1usize..20,
            held_for_ever in 1usize..5,
            rest in 0usize..200,
            moves in prop::collection::vec((1usize..20, any::<prop::sample::Index>()), 1..300),
        ) {
            let sizes = if held_for_ever == 1 { 2 } else { 2 * held_for_ever + 2 };
            let mut space = Space::new(sizes * largest * ALIGN + rest, ALIGN);
            let mut held = Vec::<Extent>::new();
            for (lines, which) in moves {
                // As many more as there is room for, then back to what must leave room.
                let bytes = lines.min(largest) * ALIGN;
                if let Some(new) = space.give(bytes) {
                    held.push(new);
                    continue;
                }
                while held.len() > held_for_ever {
                    space.take_back(held.swap_remove(which.index(held.len())));
                }
                let new = space.give(largest * ALIGN);
                prop_assert!(new.is_some(), "no room beside {held:?}");
                held.extend(new);
            }
        }
    }
}

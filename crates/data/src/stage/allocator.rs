//! Allocates blocks in a ring's area.
//!
//! A block goes into the lowest gap that is large enough: low addresses were used last and are
//! still in the processor's cache, and with a consumer that keeps up the rest of the area is never
//! touched. Blocks are freed in any order, so one that is never freed costs only its own bytes.
//!
//! Two rules bound the fragmentation:
//!
//! - A block that fits into half of the area never crosses its middle. So one held block leaves a
//!   whole half free, whatever the sizes were before: a ring of two of the largest batches never
//!   blocks for good (`one_held_block_never_blocks_the_next_of_half_the_area`).
//! - `k` held blocks leave at most `k + 2` gaps, where the middle ends one gap and begins another.
//!   So `2k + 2` of the largest batches are enough for `k` held blocks and one more
//!   (`space_is_left_beside_held_blocks_whatever_came_before`).

use std::ops::Range;

use super::layout::BlockExtent;

#[derive(Debug)]
pub struct BlockAllocator {
    /// Start of the second half.
    middle: usize,
    /// Free ranges in order; no two touch, none is empty.
    gaps: Vec<Range<usize>>,
}

impl BlockAllocator {
    /// Creates an allocator for blocks whose sizes are multiples of `align`.
    pub fn new(capacity: usize, align: usize) -> Self {
        let mut gaps = Vec::new();
        put_unless_empty(&mut gaps, 0, 0..capacity);
        Self { middle: capacity / 2 / align * align, gaps }
    }

    /// Allocates a block of `bytes` > 0, if a gap is large enough.
    pub fn allocate(&mut self, bytes: usize) -> Option<BlockExtent> {
        let fit = |(at, gap)| Some((at, self.start_in(gap, bytes)?));
        let (at, start) = self.gaps.iter().enumerate().find_map(fit)?;
        let gap = self.gaps[at].clone();
        if start == gap.start && start + bytes < gap.end {
            // The common case moves no other gap.
            self.gaps[at].start += bytes;
        } else {
            self.gaps.remove(at);
            put_unless_empty(&mut self.gaps, at, start + bytes..gap.end);
            put_unless_empty(&mut self.gaps, at, gap.start..start);
        }
        Some(BlockExtent { start, bytes })
    }

    /// Frees an allocated block.
    pub fn free(&mut self, block: BlockExtent) {
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

    /// Returns the free ranges, in order.
    pub fn gaps(&self) -> &[Range<usize>] {
        &self.gaps
    }

    /// Returns the lowest start in a gap for a block of this size.
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

    /// Finds the lowest start of a block that touches no held one by trying every start.
    fn naive(capacity: usize, held: &[BlockExtent], bytes: usize) -> Option<usize> {
        let middle = capacity / 2 / ALIGN * ALIGN;
        let crosses = |start| start < middle && start + bytes > middle;
        (0..capacity).step_by(ALIGN).find(|&start| {
            let apart = |held: &BlockExtent| {
                start + bytes <= held.start || held.start + held.bytes <= start
            };
            let allowed = bytes > middle || !crosses(start);
            start + bytes <= capacity && allowed && held.iter().all(apart)
        })
    }

    #[test]
    fn one_held_block_never_blocks_the_next_of_half_the_area() {
        // Small, large, large: packed one behind the other the third would not fit.
        let mut allocator = BlockAllocator::new(2048, ALIGN);
        let mut held = None;
        for bytes in [64, 1024, 1024, 64, 960, 1024] {
            let next = allocator.allocate(bytes).expect("space beside the one before");
            if let Some(before) = held.replace(next) {
                allocator.free(before);
            }
        }
    }

    #[test]
    fn an_area_smaller_than_a_block_allocates_nothing() {
        for capacity in [0, 1, 63] {
            assert_eq!(BlockAllocator::new(capacity, ALIGN).allocate(ALIGN), None);
        }
    }

    proptest! {
        #[test]
        fn blocks_lie_where_the_naive_search_puts_them(
            lines in 2usize..64,
            rest in 0..ALIGN,
            moves in prop::collection::vec(
                (1usize..40, prop::option::weighted(0.6, any::<prop::sample::Index>())),
                1..200,
            ),
        ) {
            let capacity = lines * ALIGN + rest;
            let mut allocator = BlockAllocator::new(capacity, ALIGN);
            let mut held = Vec::<BlockExtent>::new();
            for (lines, free) in moves {
                if let Some(which) = free.filter(|_| !held.is_empty()) {
                    allocator.free(held.swap_remove(which.index(held.len())));
                }
                let bytes = lines * ALIGN;
                let allocated = allocator.allocate(bytes);
                prop_assert_eq!(allocated.map(|new| new.start), naive(capacity, &held, bytes));
                held.extend(allocated);
            }
            for block in held.drain(..) {
                allocator.free(block);
            }
            prop_assert_eq!(allocator.gaps, vec![0..capacity]);
        }

        #[test]
        fn space_is_left_beside_held_blocks_whatever_came_before(
            largest in 1usize..20,
            held_forever in 1usize..5,
            rest in 0usize..200,
            moves in prop::collection::vec((1usize..20, any::<prop::sample::Index>()), 1..300),
        ) {
            let sizes = if held_forever == 1 { 2 } else { 2 * held_forever + 2 };
            let mut allocator = BlockAllocator::new(sizes * largest * ALIGN + rest, ALIGN);
            let mut held = Vec::<BlockExtent>::new();
            for (lines, which) in moves {
                // Blocks until the area is full, then down to the number that must leave space.
                let bytes = lines.min(largest) * ALIGN;
                if let Some(new) = allocator.allocate(bytes) {
                    held.push(new);
                    continue;
                }
                while held.len() > held_forever {
                    allocator.free(held.swap_remove(which.index(held.len())));
                }
                let new = allocator.allocate(largest * ALIGN);
                prop_assert!(new.is_some(), "no space beside {held:?}");
                held.extend(new);
            }
        }
    }
}

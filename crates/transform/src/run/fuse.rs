//! Fuses operations on an image.
//!
//! - Flips move to the end, where writing the tensor includes them. A crop or a padding that a flip
//!   passes is mirrored. Flips stop before a resize, whose rounding is not symmetric.
//! - Successive crops become one. A crop before a resize becomes the part that is resized, and one
//!   after it the window of the result, so that no pixel is copied or computed in vain.
//!
//! The first operation then shows which part of a file has to be decoded. The result is the same
//! bit for bit: `a_jpeg_in_part_and_fused_is_as_one_step_after_another`.

use super::op::Op;
use crate::geometry;
use crate::image::Rect;
use crate::ops::Flip;
use crate::ops::resize::Resize;

/// Rewrites `ops` on an image of this size. Returns the flip to do at the end.
pub fn fuse(ops: &mut Vec<Op>, size: (u32, u32)) -> Flip {
    let flip = move_flips(ops, size);
    merge_crops(ops);
    flip
}

fn move_flips(ops: &mut Vec<Op>, size: (u32, u32)) -> Flip {
    let mut size = size;
    let mut pending = Flip::default();
    let mut at = 0;
    while at < ops.len() {
        match &mut ops[at] {
            Op::Flip(flip) => {
                pending.horizontal ^= flip.horizontal;
                pending.vertical ^= flip.vertical;
                ops.remove(at);
                continue;
            }
            Op::Crop(part) => {
                mirror(part, size, pending);
                size = (part.width, part.height);
            }
            Op::Pad { padding, .. } => {
                size = geometry::padded(size, *padding);
                let [left, top, right, bottom] = padding;
                if pending.horizontal {
                    std::mem::swap(left, right);
                }
                if pending.vertical {
                    std::mem::swap(top, bottom);
                }
            }
            Op::Resize(resize) => {
                size = (resize.width, resize.height);
                if pending != Flip::default() {
                    ops.insert(at, Op::Flip(std::mem::take(&mut pending)));
                    at += 1;
                }
            }
            // Does not depend on a pixel's position.
            Op::Jitter(_) => {}
        }
        at += 1;
    }
    pending
}

fn mirror(part: &mut Rect, (width, height): (u32, u32), flip: Flip) {
    if flip.horizontal {
        part.left = width - part.left - part.width;
    }
    if flip.vertical {
        part.top = height - part.top - part.height;
    }
}

fn merge_crops(ops: &mut Vec<Op>) {
    let mut at = 1;
    while at < ops.len() {
        match merged(ops[at - 1], ops[at]) {
            Some(one) => {
                ops[at - 1] = one;
                ops.remove(at);
            }
            None => at += 1,
        }
    }
}

/// Merges two operations, if possible.
fn merged(first: Op, second: Op) -> Option<Op> {
    match (first, second) {
        (Op::Crop(outer), Op::Crop(inner)) => Some(Op::Crop(within(outer, inner))),
        (Op::Crop(outer), Op::Resize(resize)) => {
            Some(Op::Resize(Resize { part: within(outer, resize.part), ..resize }))
        }
        (Op::Resize(resize), Op::Crop(inner)) => {
            Some(Op::Resize(Resize { window: within(resize.window, inner), ..resize }))
        }
        _ => None,
    }
}

/// Returns a part of a part.
fn within(outer: Rect, inner: Rect) -> Rect {
    Rect { left: outer.left + inner.left, top: outer.top + inner.top, ..inner }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::{Interpolation, PaddingMode};

    const ACROSS: Op = Op::Flip(Flip { horizontal: true, vertical: false });

    fn rect(left: u32, top: u32, width: u32, height: u32) -> Rect {
        Rect { left, top, width, height }
    }

    fn resize(part: Rect, width: u32, height: u32, window: Rect) -> Op {
        let (interpolation, antialias) = (Interpolation::Bilinear, true);
        Op::Resize(Resize { part, width, height, window, interpolation, antialias })
    }

    #[test]
    fn a_training_chain_is_one_resize_of_a_part_and_a_final_flip() {
        let whole = Rect::whole(9, 9);
        let mut ops =
            vec![Op::Crop(rect(10, 20, 50, 40)), resize(Rect::whole(50, 40), 9, 9, whole), ACROSS];
        assert!(fuse(&mut ops, (100, 100)).horizontal);
        assert_eq!(ops, [resize(rect(10, 20, 50, 40), 9, 9, whole)]);
    }

    #[test]
    fn an_evaluation_chain_is_one_resize_with_a_window() {
        let all = Rect::whole(100, 80);
        let mut ops = vec![resize(all, 50, 40, Rect::whole(50, 40)), Op::Crop(rect(10, 5, 30, 30))];
        assert_eq!(fuse(&mut ops, (100, 80)), Flip::default());
        assert_eq!(ops, [resize(all, 50, 40, rect(10, 5, 30, 30))]);
    }

    #[test]
    fn a_flip_mirrors_what_it_passes_and_stops_before_a_resize() {
        let pad = |padding| Op::Pad { padding, mode: PaddingMode::Edge, filled_by: None };
        let last = resize(Rect::whole(5, 10), 3, 3, Rect::whole(3, 3));
        let mut ops = vec![ACROSS, pad([1, 2, 3, 4]), Op::Crop(rect(0, 0, 5, 10)), last];
        assert_eq!(fuse(&mut ops, (10, 10)), Flip::default());
        assert_eq!(ops, [pad([3, 2, 1, 4]), Op::Crop(rect(9, 0, 5, 10)), ACROSS, last]);
    }
}

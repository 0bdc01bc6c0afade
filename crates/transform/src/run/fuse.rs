//! Doing less for the same pixels.
//!
//! [`fuse`] rewrites the list of what is to be done to an image:
//!
//! - flips move towards the end, where laying out the tensor does them on its way; a crop or a
//!   padding that a flip passes is mirrored. They stop before a resize, whose rounding knows left
//!   from right;
//! - crops that follow each other become one, and a crop before a resize becomes the part that is
//!   resized, so that nothing is copied;
//! - a crop at the beginning, or the part of a first resize, is all that has to be decoded
//!   ([`region`]).
//!
//! What comes out is the same, bit for bit; the tests hold it against doing one step after another.

use super::op::Op;
use crate::geometry;
use crate::image::Rect;
use crate::ops::Flip;

/// Rewrites `ops`, which work on an image of this size. Gives the flip that is left to be done at
/// the end.
pub fn fuse(ops: &mut Vec<Op>, size: (u32, u32)) -> Flip {
    let flip = move_flips(ops, size);
    merge_crops(ops);
    flip
}

/// The part of the image that has to be decoded, if it is not all of it.
pub fn region(ops: &[Op], (width, height): (u32, u32)) -> Option<Rect> {
    match ops.first() {
        Some(&Op::Crop(part) | &Op::Resize { part, .. }) => {
            (part != Rect::whole(width, height)).then_some(part)
        }
        _ => None,
    }
}

/// Lets the first op work on the decoded part, which covers its region, as it would on all.
pub fn shift(ops: &mut [Op], covered: Rect) {
    if let Some(Op::Crop(part) | Op::Resize { part, .. }) = ops.first_mut() {
        part.left -= covered.left;
        part.top -= covered.top;
    }
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
            &mut Op::Resize { width, height, .. } => {
                size = (width, height);
                if pending != Flip::default() {
                    ops.insert(at, Op::Flip(std::mem::take(&mut pending)));
                    at += 1;
                }
            }
            // The same for every pixel, wherever it lies.
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
        let Op::Crop(outer) = ops[at - 1] else {
            at += 1;
            continue;
        };
        match &mut ops[at] {
            Op::Crop(part) | Op::Resize { part, .. } => {
                part.left += outer.left;
                part.top += outer.top;
                ops.remove(at - 1);
            }
            _ => at += 1,
        }
    }
}

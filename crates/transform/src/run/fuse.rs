//! Doing less for the same pixels.
//!
//! [`fuse`] rewrites the list of what is to be done to an image:
//!
//! - flips move towards the end, where laying out the tensor does them on its way; a crop or a
//!   padding that a flip passes is mirrored. They stop before a resize, whose rounding knows left
//!   from right;
//! - crops that follow each other become one. A crop before a resize becomes the part that is
//!   resized, and one behind it the window that is made, so that nothing is copied or made in vain.
//!
//! What the first of them needs is then all that has to be decoded. What comes out is the same, bit for bit; the tests hold it against doing one step after another.

use super::op::Op;
use crate::geometry;
use crate::image::Rect;
use crate::ops::Flip;
use crate::ops::resize::Resize;

/// Rewrites `ops`, which work on an image of this size. Gives the flip that is left to be done at
/// the end.
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
        match merged(ops[at - 1], ops[at]) {
            Some(one) => {
                ops[at - 1] = one;
                ops.remove(at);
            }
            None => at += 1,
        }
    }
}

/// Both in one, if they can be.
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

/// A part of a part.
fn within(outer: Rect, inner: Rect) -> Rect {
    Rect { left: outer.left + inner.left, top: outer.top + inner.top, ..inner }
}

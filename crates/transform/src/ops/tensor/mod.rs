//! Pixels become a tensor.
//!
//! A pixel is a byte, so whatever a chain does with each number on its own (`ToTensor`,
//! `Normalize`, a scale, a logarithm, another dtype) is a table of 256 numbers a channel.
//! [`Tables`] are made once a chain, with exactly torch's arithmetic: every operation rounds to the
//! dtype it has at that step. So the tensor is bit-equal to torchvision's.
//!
//! [`write`] then looks every byte up while it flips and lays out, in one pass straight into the
//! batch. Where the tables are those of `ToTensor` and `Normalize` in float32, as they nearly always
//! are, arithmetic is faster than looking up; [`Tables`] finds out for all 256 bytes whether it gives
//! the same bits, and only then is it used.

mod kernel;
mod tables;

pub use tables::Tables;

use super::Flip;
use crate::error::TransformError;
use crate::image::Pixels;
use crate::step::Layout;

/// Writes an image's tensor into `into`, which is exactly as long as it: one number of
/// [`Tables::dtype`] a byte, in the machine's byte order.
pub fn write(
    from: &Pixels,
    flip: Flip,
    tables: &Tables,
    layout: Layout,
    into: &mut [u8],
) -> Result<(), TransformError> {
    let channels = from.channels as usize;
    if !(1..=4).contains(&channels) {
        return Err(TransformError(format!("it has {channels} channels, where 1 to 4 are known")));
    }
    if tables.channels() != 1 && tables.channels() != channels {
        return Err(TransformError(format!(
            "it has {channels} channels where {} are normalised; decode to RGB or GRAY, or give as \
             many numbers",
            tables.channels()
        )));
    }
    let bytes = from.bytes.len() * tables.dtype().size();
    if into.len() != bytes {
        return Err(TransformError(format!(
            "its tensor has {bytes} bytes, where there is room for {}; make all images of one size",
            into.len()
        )));
    }
    if !from.bytes.is_empty() {
        kernel::write(from, flip, tables, layout, into);
    }
    Ok(())
}

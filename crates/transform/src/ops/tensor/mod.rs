//! Converts pixels to a tensor.
//!
//! A pixel is a byte, so an operation on single numbers (`ToTensor`, `Normalize`, a scale, a
//! logarithm, another dtype) is a table of 256 numbers per channel. [`Tables`] are made once per
//! chain with torch's arithmetic: every operation rounds to the dtype of its step. So the tensor is
//! bit-equal to torchvision's.
//!
//! [`write()`] looks every byte up while it flips and lays out the pixels, in one pass into the
//! batch. For `ToTensor` and `Normalize` in float32 arithmetic is faster than the lookup;
//! [`Tables`] uses it if it computes the same bits for all 256 bytes.

mod kernel;
mod tables;

pub use tables::Tables;

use super::Flip;
use crate::error::TransformError;
use crate::image::Pixels;
use crate::step::AxisLayout;

/// Writes an image's tensor into `into`, which has exactly its length: one number of
/// [`Tables::dtype`] per byte, in the machine's byte order.
///
/// # Errors
/// If the channels do not fit the tables, or `into` has another length.
pub fn write(
    from: &Pixels,
    flip: Flip,
    tables: &Tables,
    layout: AxisLayout,
    into: &mut [u8],
) -> Result<(), TransformError> {
    let channels = from.channels as usize;
    if !(1..=4).contains(&channels) {
        return Err(TransformError(format!("it has {channels} channels instead of 1 to 4")));
    }
    if tables.channels() != 1 && tables.channels() != channels {
        return Err(TransformError(format!(
            "it has {channels} channels, but {} are normalised; decode to RGB or GRAY, or give as \
             many numbers",
            tables.channels()
        )));
    }
    let bytes = from.bytes.len() * tables.dtype().size();
    if into.len() != bytes {
        return Err(TransformError(format!(
            "its tensor has {bytes} bytes instead of {}; make all images of one size",
            into.len()
        )));
    }
    if !from.bytes.is_empty() {
        kernel::write(from, flip, tables, layout, into);
    }
    Ok(())
}

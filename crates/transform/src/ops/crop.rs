//! Crops and flips images.

use super::{Flip, check_part};
use crate::error::TransformError;
use crate::image::{Pixels, Rect};

/// Copies a part of an image.
///
/// # Errors
/// If the image does not contain the part.
pub fn crop(from: &Pixels, part: Rect, into: &mut Pixels) -> Result<(), TransformError> {
    check_part(from, part)?;
    into.shape(part.width, part.height, from.channels);
    let pixel = from.channels as usize;
    let (stride, row) = (from.width as usize * pixel, part.width as usize * pixel);
    let start = part.top as usize * stride + part.left as usize * pixel;
    for (y, out) in into.bytes.chunks_exact_mut(row).enumerate() {
        out.copy_from_slice(&from.bytes[start + y * stride..][..row]);
    }
    Ok(())
}

/// Flips an image in place.
pub fn flip(pixels: &mut Pixels, flip: Flip) {
    let pixel = pixels.channels as usize;
    let row = pixels.width as usize * pixel;
    if row == 0 {
        return;
    }
    if flip.vertical {
        let half = pixels.height as usize / 2 * row;
        let (upper, lower) = pixels.bytes.split_at_mut(half);
        for (above, below) in upper.chunks_exact_mut(row).zip(lower.rchunks_exact_mut(row)) {
            above.swap_with_slice(below);
        }
    }
    if flip.horizontal {
        for line in pixels.bytes.chunks_exact_mut(row) {
            mirror(line, pixel);
        }
    }
}

/// Reverses a row of pixels.
pub(super) fn mirror(line: &mut [u8], channels: usize) {
    match channels {
        1 => line.reverse(),
        2 => line.as_chunks_mut::<2>().0.reverse(),
        3 => line.as_chunks_mut::<3>().0.reverse(),
        _ => line.as_chunks_mut::<4>().0.reverse(),
    }
}

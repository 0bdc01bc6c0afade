//! Pads images.

use crate::error::TransformError;
use crate::image::Pixels;
use crate::step::{PadFill, PaddingMode};

/// Adds pixels on the left, at the top, on the right and at the bottom.
///
/// # Errors
/// If the padding does not fit the image or the fill its channels.
pub fn pad(
    from: &Pixels,
    padding: [u32; 4],
    fill: &PadFill,
    mode: PaddingMode,
    into: &mut Pixels,
) -> Result<(), TransformError> {
    check(from, padding, fill, mode)?;
    let [left, top, right, bottom] = padding.map(|count| count as usize);
    let (width, height) = (from.width as usize, from.height as usize);
    let channels = from.channels as usize;
    into.shape((left + width + right) as u32, (top + height + bottom) as u32, from.channels);
    let row = (left + width + right) * channels;
    let inner = left * channels..(left + width) * channels;
    for (y, line) in from.bytes.chunks_exact(width * channels).enumerate() {
        let out = &mut into.bytes[(top + y) * row..][..row];
        out[inner.clone()].copy_from_slice(line);
        for x in (0..left).chain(left + width..left + width + right) {
            let pixel = &mut out[x * channels..][..channels];
            match source(x, left, width, mode) {
                Some(x) => pixel.copy_from_slice(&line[x * channels..][..channels]),
                None => paint(pixel, fill),
            }
        }
    }
    for y in (0..top).chain(top + height..top + height + bottom) {
        match source(y, top, height, mode) {
            Some(like) => {
                let start = (top + like) * row;
                into.bytes.copy_within(start..start + row, y * row);
            }
            None => paint(&mut into.bytes[y * row..][..row], fill),
        }
    }
    Ok(())
}

fn paint(pixels: &mut [u8], fill: &PadFill) {
    for pixel in pixels.chunks_mut(fill.0.len()) {
        pixel.copy_from_slice(&fill.0[..pixel.len()]);
    }
}

/// Returns which of `length` pixels, which start at `before`, is repeated at `place`; `None` for a
/// constant.
fn source(place: usize, before: usize, length: usize, mode: PaddingMode) -> Option<usize> {
    let (place, length) = (place.cast_signed() - before.cast_signed(), length.cast_signed());
    let seen = match mode {
        PaddingMode::Constant => return None,
        PaddingMode::Edge => place.clamp(0, length - 1),
        PaddingMode::Reflect if place < 0 => -place,
        PaddingMode::Reflect => 2 * (length - 1) - place,
        PaddingMode::Symmetric if place < 0 => -place - 1,
        PaddingMode::Symmetric => 2 * length - 1 - place,
    };
    Some(seen as usize)
}

fn check(
    from: &Pixels,
    padding: [u32; 4],
    fill: &PadFill,
    mode: PaddingMode,
) -> Result<(), TransformError> {
    let (Pixels { width, height, channels, .. }, [left, top, right, bottom]) = (from, padding);
    let most = match mode {
        PaddingMode::Edge if from.bytes.is_empty() => [0; 2],
        PaddingMode::Constant | PaddingMode::Edge => [u32::MAX; 2],
        PaddingMode::Reflect => [width.saturating_sub(1), height.saturating_sub(1)],
        PaddingMode::Symmetric => [*width, *height],
    };
    if left.max(right) > most[0] || top.max(bottom) > most[1] {
        return Err(TransformError(format!(
            "a padding of {padding:?} with mode {mode:?} is wider than the image of {width}x{height}; \
             pad with less, or with mode constant or edge"
        )));
    }
    let fits =
        |a: u32, b: u32, c: u32| a.checked_add(b).is_some_and(|ab| ab.checked_add(c).is_some());
    if !fits(left, *width, right) || !fits(top, *height, bottom) {
        return Err(TransformError(format!(
            "a padding of {padding:?} is too large; pad with less"
        )));
    }
    let fills = fill.0.len();
    if mode == PaddingMode::Constant && fills != 1 && fills != *channels as usize {
        return Err(TransformError(format!(
            "it has {channels} channels but {fills} fill values; give one, or one per channel"
        )));
    }
    Ok(())
}

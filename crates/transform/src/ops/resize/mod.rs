//! Resizes images.
//!
//! Written by hand for bit parity with torch: its arithmetic for uint8 is Pillow's with shorter
//! weights, which no crate has. A horizontal pass (`horizontal`) is followed by a vertical one
//! (`vertical`). Both are sums of bytes times 16-bit integers (`weights`), rounded to a byte,
//! so results do not depend on the processor.
//!
//! Only the requested part is read, in place; pixels beyond it have no influence. (Kernels read 16
//! bytes at a time; the one or two rows at the end of the image that are too short for that are
//! copied first.)

mod horizontal;
mod vertical;
mod weights;

use self::weights::{AxisRequest, AxisWeights, Filter};
use super::{check_part, crop};
use crate::error::TransformError;
use crate::image::{Pixels, Rect};
use crate::step::Interpolation;

/// Resizes images. Its memory is reused.
#[derive(Debug, Default)]
pub struct Resizer {
    across: AxisWeights,
    down: AxisWeights,
    /// The part after the horizontal pass.
    narrowed: Lines,
    scratch: horizontal::RowScratch,
}

/// Rows of bytes with padding after each.
#[derive(Debug, Default)]
struct Lines {
    stride: usize,
    bytes: Vec<u8>,
}

/// A resize of a `part` to `width` x `height`, of which only `window` is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resize {
    /// The part of the image.
    pub part: Rect,
    /// The new width of the part.
    pub width: u32,
    /// The new height of the part.
    pub height: u32,
    /// The pixels of the result that are computed.
    pub window: Rect,
    /// The filter.
    pub interpolation: Interpolation,
    /// For bilinear and bicubic: whether all pixels influence a smaller result.
    pub antialias: bool,
}

impl Resizer {
    /// Resizes `part` of an image to `width` x `height`. Pixels beyond the part have no influence.
    ///
    /// # Errors
    /// If the image does not contain the part.
    #[expect(
        clippy::too_many_arguments,
        reason = "the fields of `Resize`, the input and the output"
    )]
    pub fn resize(
        &mut self,
        from: &Pixels,
        part: Rect,
        width: u32,
        height: u32,
        interpolation: Interpolation,
        antialias: bool,
        into: &mut Pixels,
    ) -> Result<(), TransformError> {
        check_part(from, part)?;
        let window = Rect::whole(width, height);
        let resize = Resize { part, width, height, window, interpolation, antialias };
        self.resize_window(from, (0, 0), &resize, into)
    }

    /// Returns the pixels that [`Resizer::resize_window`] reads.
    pub fn needed(&mut self, resize: &Resize) -> Rect {
        let Resize { part, width, height, window, .. } = *resize;
        let filter = Filter::of(resize.interpolation);
        let axis =
            |weights: &mut AxisWeights, from: u32, to: u32, first: u32, count: u32| match filter {
                _ if from == to => first..first + count,
                None => nearest_to(first, from, to)..nearest_to(first + count - 1, from, to) + 1,
                Some(filter) => {
                    let antialias = resize.antialias;
                    weights.compute(AxisRequest { from, to, first, count, filter, antialias })
                }
            };
        let x = axis(&mut self.across, part.width, width, window.left, window.width);
        let y = axis(&mut self.down, part.height, height, window.top, window.height);
        Rect {
            left: part.left + x.start,
            top: part.top + y.start,
            width: x.end - x.start,
            height: y.end - y.start,
        }
    }

    /// Computes the window of a resize, bit-equal to that of the whole result. `from` contains the
    /// pixels of the image from `origin` (x, y) on: the [`Resizer::needed`] ones, or more.
    ///
    /// # Errors
    /// If `from` lacks needed pixels or has more than four channels.
    pub fn resize_window(
        &mut self,
        from: &Pixels,
        origin: (u32, u32),
        resize: &Resize,
        into: &mut Pixels,
    ) -> Result<(), TransformError> {
        if !(1..=4).contains(&from.channels) {
            let text = format!("it has {} channels instead of 1 to 4", from.channels);
            return Err(TransformError(text));
        }
        let Resize { part, width, height, window, .. } = *resize;
        if window.width == 0 || window.height == 0 {
            into.shape(window.width, window.height, from.channels);
            return Ok(());
        }
        let mut needed = self.needed(resize);
        needed.left = needed.left.wrapping_sub(origin.0);
        needed.top = needed.top.wrapping_sub(origin.1);
        check_part(from, needed)?;
        let changes = (part.width != width, part.height != height);
        if changes == (false, false) {
            return crop(from, needed, into);
        }
        into.shape(window.width, window.height, from.channels);
        if Filter::of(resize.interpolation).is_none() {
            nearest(from, needed, resize, into);
        } else {
            self.convolve(from, needed, changes, into);
        }
        Ok(())
    }

    /// Runs the passes that change something.
    fn convolve(
        &mut self,
        from: &Pixels,
        part: Rect,
        (across, down): (bool, bool),
        into: &mut Pixels,
    ) {
        let channels = from.channels as usize;
        let row = into.width as usize * channels;
        let source = PartRows::new(from, part);
        if !across {
            vertical::run(&self.down, source.bytes, source.stride, row, &mut into.bytes);
            return;
        }
        let Lines { stride, bytes } = &mut self.narrowed;
        *stride = row + horizontal::PADDING;
        bytes.resize(*stride * source.rows.next_multiple_of(horizontal::ROWS), 0);
        horizontal::run(&self.across, &source, channels, &mut self.scratch, *stride, bytes);
        if !down {
            for (line, out) in bytes.chunks_exact(*stride).zip(into.bytes.chunks_exact_mut(row)) {
                out.copy_from_slice(&line[..row]);
            }
            return;
        }
        vertical::run(&self.down, bytes, *stride, row, &mut into.bytes);
    }
}

/// The rows of a part, in place.
struct PartRows<'a> {
    /// From the part's first byte to the image's last.
    bytes: &'a [u8],
    stride: usize,
    /// Bytes of a row of the part.
    row: usize,
    rows: usize,
}

impl<'a> PartRows<'a> {
    fn new(from: &'a Pixels, part: Rect) -> Self {
        let channels = from.channels as usize;
        let stride = from.width as usize * channels;
        let start = part.top as usize * stride + part.left as usize * channels;
        let (row, rows) = (part.width as usize * channels, part.height as usize);
        Self { bytes: &from.bytes[start..], stride, row, rows }
    }

    /// From a row's first byte to the image's last.
    fn line(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.stride..]
    }
}

/// Returns torchvision's nearest pixel, `floor(place * scale)` in `f32`.
fn nearest_to(place: u32, from: u32, to: u32) -> u32 {
    let scale = from as f32 / to as f32;
    ((place as f32 * scale) as u32).min(from - 1)
}

fn nearest(from: &Pixels, part: Rect, resize: &Resize, into: &mut Pixels) {
    let source = PartRows::new(from, part);
    let channels = from.channels as usize;
    let Resize { part: whole, width, height, window, .. } = *resize;
    // Both are relative to the first needed pixel.
    let column = |x: usize| {
        nearest_to(window.left + x as u32, whole.width, width)
            - nearest_to(window.left, whole.width, width)
    };
    let line = |y: usize| {
        nearest_to(window.top + y as u32, whole.height, height)
            - nearest_to(window.top, whole.height, height)
    };
    let row = into.width as usize * channels;
    for (y, out) in into.bytes.chunks_exact_mut(row).enumerate() {
        let line = source.line(line(y) as usize);
        for (x, pixel) in out.chunks_exact_mut(channels).enumerate() {
            pixel.copy_from_slice(&line[column(x) as usize * channels..][..channels]);
        }
    }
}

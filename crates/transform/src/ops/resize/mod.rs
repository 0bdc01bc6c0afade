//! Images of another size.
//!
//! The arithmetic is torch's for uint8, which is Pillow's with shorter weights: first every row is
//! made as wide as it shall be ([`horizontal`]), then columns are made as high ([`vertical`]). Both
//! are sums of bytes times whole numbers of 16 bits ([`weights`]), rounded to a byte. So results do
//! not depend on the processor, and are bit-equal to torchvision's.
//!
//! Only the part asked for is read, where it lies; as if it had been cut out first, pixels beyond
//! it have no influence. (Kernels read sixteen bytes at a time; the one or two rows at the image's end
//! that are too short for that are copied first.)

mod horizontal;
mod vertical;
mod weights;

use self::weights::{Filter, Weights};
use super::{check_part, crop};
use crate::error::TransformError;
use crate::image::{Pixels, Rect};
use crate::step::Interpolation;

/// Changes sizes. Its memory is used again.
#[derive(Debug, Default)]
pub struct Resizer {
    across: Weights,
    down: Weights,
    /// The part after [`horizontal`].
    narrowed: Lines,
    scratch: horizontal::Scratch,
}

/// Rows of bytes, with some room after each.
#[derive(Debug, Default)]
struct Lines {
    stride: usize,
    bytes: Vec<u8>,
}

impl Resizer {
    /// Makes `part` of an image `width` x `height` large. Pixels beyond the part have no influence.
    /// `antialias` is for bilinear and bicubic: without it, pixels that are not next to one of the
    /// result's have no influence, which makes a smaller image grainy.
    #[expect(clippy::too_many_arguments, reason = "all of them say something else")]
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
        if !(1..=4).contains(&from.channels) {
            let text = format!("it has {} channels, where 1 to 4 are resized", from.channels);
            return Err(TransformError(text));
        }
        if (part.width, part.height) == (width, height) {
            return crop(from, part, into);
        }
        into.shape(width, height, from.channels);
        if into.bytes.is_empty() {
            return Ok(());
        }
        let filter = match interpolation {
            Interpolation::Nearest => {
                nearest(from, part, into);
                return Ok(());
            }
            Interpolation::Bilinear => Filter::Linear,
            Interpolation::Bicubic => Filter::Cubic,
        };
        self.across.compute(part.width, width, filter, antialias);
        self.down.compute(part.height, height, filter, antialias);
        self.convolve(from, part, into);
        Ok(())
    }

    /// Across and then down, leaving out what would change nothing.
    fn convolve(&mut self, from: &Pixels, part: Rect, into: &mut Pixels) {
        let channels = from.channels as usize;
        let row = into.width as usize * channels;
        let source = Source::new(from, part);
        if part.width == into.width {
            vertical::run(&self.down, source.bytes, source.stride, row, &mut into.bytes);
            return;
        }
        let Lines { stride, bytes } = &mut self.narrowed;
        *stride = row + horizontal::ROOM;
        bytes.resize(*stride * source.rows.next_multiple_of(horizontal::ROWS), 0);
        horizontal::run(&self.across, &source, channels, &mut self.scratch, *stride, bytes);
        if part.height == into.height {
            for (line, out) in bytes.chunks_exact(*stride).zip(into.bytes.chunks_exact_mut(row)) {
                out.copy_from_slice(&line[..row]);
            }
            return;
        }
        vertical::run(&self.down, bytes, *stride, row, &mut into.bytes);
    }
}

/// The rows of a part where they lie.
struct Source<'a> {
    /// From the part's first byte to the image's last.
    bytes: &'a [u8],
    stride: usize,
    /// Bytes of a row of the part.
    row: usize,
    rows: usize,
}

impl<'a> Source<'a> {
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

/// torchvision's `nearest`: the pixel at `floor(place * scale)`, in `f32` as torch computes it.
fn nearest(from: &Pixels, part: Rect, into: &mut Pixels) {
    let source = Source::new(from, part);
    let channels = from.channels as usize;
    let place = |place: usize, of: u32, to: u32| {
        let scale = of as f32 / to as f32;
        ((place as f32 * scale) as usize).min(of as usize - 1)
    };
    let row = into.width as usize * channels;
    for (y, out) in into.bytes.chunks_exact_mut(row).enumerate() {
        let line = source.line(place(y, part.height, into.height));
        for (x, pixel) in out.chunks_exact_mut(channels).enumerate() {
            let x = place(x, part.width, into.width);
            pixel.copy_from_slice(&line[x * channels..][..channels]);
        }
    }
}

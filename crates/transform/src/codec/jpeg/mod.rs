//! JPEG, by libjpeg-turbo.
//!
//! Its slow and exact inverse transform and its smooth upsampling of colours are used, so pixels
//! are those of Pillow and torchvision to the last bit.
//!
//! A region is decoded so: rows above are passed over (their Huffman codes have to be read, nothing
//! else), columns are decoded from where a block begins to the left of the region to a little to
//! its right, rows below are not touched. Colours that are stored at half the width are smoothed
//! with their neighbours, and at the edge of what is decoded there are none; so two columns more
//! than the region are decoded on both sides, and every pixel in it is that of a whole decode. A
//! progressive file may lack scans, and is then smoothed across blocks: it gets two blocks more.

mod header;
mod native;

use super::{Format, Info, colour, contradictory, cut_off};
use crate::error::TransformError;
use crate::image::{Pixels, Rect};
use crate::step::Mode;

/// Columns beyond the region whose colours its own depend on: smoothing looks at one sample to
/// each side, which is two columns wide.
const MARGIN: u32 = 2;

/// Columns of the two blocks to each side that smoothing of unfinished scans looks at, for a
/// component that is stored at its full width.
const SMOOTHED: u32 = 16;

/// Narrower than this libjpeg upsamples in another way.
const NARROW: u32 = 16;

/// Lossless coding, which has no blocks: it cannot be decoded in part.
const LOSSLESS: u8 = 0xc3;

pub(super) fn probe(bytes: &[u8]) -> Result<Info, TransformError> {
    let header = header::read(bytes)?;
    Ok(Info {
        format: Format::Jpeg,
        width: header.width,
        height: header.height,
        channels: header.components,
        orientation: header.orientation,
    })
}

/// libjpeg's state, made when the first JPEG comes.
#[derive(Debug, Default)]
pub(super) struct Decoder(Option<native::Handle>);

impl Decoder {
    /// Decodes at 1 / `shrink` (1, 2, 4 or 8) of its size; `region` and the answer are in pixels of
    /// that size. A file that cannot be shrunk is an error.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        info: &Info,
        mode: Mode,
        shrink: u32,
        region: Option<Rect>,
        into: &mut Pixels,
    ) -> Result<Rect, TransformError> {
        let handle = match &mut self.0 {
            Some(handle) => handle,
            none => none.insert(native::Handle::new()?),
        };
        let mut image = handle.open(bytes)?;
        let header = image.header;
        if (header.width, header.height, header.components)
            != (info.width, info.height, info.channels)
        {
            return Err(contradictory(Format::Jpeg));
        }
        // Data that end too early are an error also if they end below the region.
        if !ends(image.scans()) {
            return Err(cut_off(Format::Jpeg));
        }
        let size = (info.width.div_ceil(shrink), info.height.div_ceil(shrink));
        let part = match region {
            Some(region) if can_be_shrunk(bytes)? => widened(region, size.0, &header),
            _ => Rect::whole(size.0, size.1),
        };
        let channels = match (info.channels, mode) {
            // libjpeg writes grey as RGB while it is at it.
            (1, Mode::Rgb) => 3,
            (channels, _) => channels,
        };
        let (left, width) = image.start(channels, shrink, part)?;
        into.shape(width, part.height, channels);
        image.read(&mut into.bytes)?;
        if channels == 4 {
            colour::cmyk_to_mode(into, mode);
        } else {
            colour::to_mode(into, mode);
        }
        Ok(Rect { left, width, ..part })
    }
}

/// Whether it is made of blocks, which can be left out or made smaller.
pub(super) fn can_be_shrunk(bytes: &[u8]) -> Result<bool, TransformError> {
    Ok(header::read(bytes)?.process != LOSSLESS)
}

/// The columns, of so many, that have to be decoded for those of the region to be right.
fn widened(region: Rect, columns: u32, header: &native::Header) -> Rect {
    let upsampled = if header.horizontal_sampling > 1 { MARGIN } else { 0 };
    let margin = upsampled + header.many_scans * SMOOTHED * header.horizontal_sampling;
    let right = region.left + region.width;
    let left = region.left.saturating_sub(margin).min(right.saturating_sub(NARROW));
    let right = (right + margin).max(left + NARROW).min(columns);
    Rect { left, width: right - left, ..region }
}

/// Whether the mark of the end is there. It cannot occur in the coded data.
fn ends(scans: &[u8]) -> bool {
    scans.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

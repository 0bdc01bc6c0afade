//! JPEG, by libjpeg-turbo.
//!
//! The decoder uses the exact inverse transform and smooth upsampling, so pixels are bit-equal to
//! Pillow's and torchvision's.
//!
//! Decoding a region skips the rows above it (only their Huffman codes are read), decodes the
//! columns of the blocks that overlap it, and does not read the rows below. Subsampled colours are
//! smoothed with their neighbours, which are missing at the edge of the decoded part. So two more
//! columns are decoded on both sides, and every pixel of the region equals that of a full decode. A
//! progressive file may lack scans and is then smoothed across blocks; for those, two more blocks
//! are decoded.

mod header;
mod native;

use super::{ImageFormat, ImageInfo, colour, contradictory, cut_off};
use crate::error::TransformError;
use crate::image::{Pixels, Rect};
use crate::step::Mode;

/// Columns beyond the region that its colours depend on: smoothing reads one sample on each side,
/// which is two columns wide.
const MARGIN: u32 = 2;

/// Columns of the two blocks on each side that smoothing of missing scans reads, for a component of
/// full width.
const SMOOTHED: u32 = 16;

/// libjpeg upsamples narrower images in another way.
const NARROW: u32 = 16;

/// Lossless coding, which has no blocks and cannot be decoded in part.
const LOSSLESS: u8 = 0xc3;

pub(super) fn probe(bytes: &[u8]) -> Result<ImageInfo, TransformError> {
    let header = header::read(bytes)?;
    Ok(ImageInfo {
        format: ImageFormat::Jpeg,
        width: header.width,
        height: header.height,
        channels: header.components,
        orientation: header.orientation,
    })
}

/// libjpeg's state, created with the first JPEG.
#[derive(Debug, Default)]
pub(super) struct JpegDecoder(Option<native::JpegHandle>);

impl JpegDecoder {
    /// Decodes at 1 / `shrink` (1, 2, 4 or 8) of the size. `region` and the returned part are in
    /// pixels of that size. A file that cannot be shrunk is an error.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        info: &ImageInfo,
        mode: Mode,
        shrink: u32,
        region: Option<Rect>,
        into: &mut Pixels,
    ) -> Result<Rect, TransformError> {
        let handle = match &mut self.0 {
            Some(handle) => handle,
            none => none.insert(native::JpegHandle::new()?),
        };
        let mut image = handle.open(bytes)?;
        let header = image.header;
        if (header.width, header.height, header.components)
            != (info.width, info.height, info.channels)
        {
            return Err(contradictory(ImageFormat::Jpeg));
        }
        // Truncated data are an error, also below the region.
        if !ends(image.scans()) {
            return Err(cut_off(ImageFormat::Jpeg));
        }
        let size = (info.width.div_ceil(shrink), info.height.div_ceil(shrink));
        let part = match region {
            Some(region) if can_be_shrunk(bytes)? => widened(region, size.0, &header),
            _ => Rect::whole(size.0, size.1),
        };
        let channels = match (info.channels, mode) {
            // libjpeg can write grey as RGB.
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

/// Returns whether the file consists of blocks, which can be skipped or shrunk.
pub(super) fn can_be_shrunk(bytes: &[u8]) -> Result<bool, TransformError> {
    Ok(header::read(bytes)?.process != LOSSLESS)
}

/// Returns the part to decode for the region's pixels to be right.
fn widened(region: Rect, columns: u32, header: &native::NativeHeader) -> Rect {
    let upsampled = if header.horizontal_sampling > 1 { MARGIN } else { 0 };
    let margin = upsampled + header.many_scans * SMOOTHED * header.horizontal_sampling;
    let right = region.left + region.width;
    let left = region.left.saturating_sub(margin).min(right.saturating_sub(NARROW));
    let right = (right + margin).max(left + NARROW).min(columns);
    Rect { left, width: right - left, ..region }
}

/// Returns whether the end marker exists. It cannot occur in the coded data.
fn ends(scans: &[u8]) -> bool {
    scans.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

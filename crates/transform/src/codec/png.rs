//! PNG, by the crate `png`. Palettes are expanded; 16-bit channels become their upper eight bits
//! (also in grey images, which Pillow clips to white).
//!
//! A chunk with a wrong checksum is refused, as in libpng and torchvision, and so is a file without
//! its end. Pillow checks neither.

use std::io::{Cursor, ErrorKind};

use png::{ColorType, DecodingError, Limits, Transformations};

use super::orientation::Orientation;
use super::{ImageFormat, ImageInfo, contradictory, cut_off, exif, refused};
use crate::error::TransformError;
use crate::image::Pixels;

const SIGNATURE: usize = 8;

/// The memory limit for chunks other than pixels.
const AUXILIARY: usize = 16 << 20;

pub(super) fn probe(bytes: &[u8]) -> Result<ImageInfo, TransformError> {
    let mut chunks = PngChunks { rest: &bytes[SIGNATURE.min(bytes.len())..] };
    let Some((b"IHDR", &[w0, w1, w2, w3, h0, h1, h2, h3, _, colour, ..])) = chunks.next() else {
        return Err(cut_off(ImageFormat::Png));
    };
    let width = u32::from_be_bytes([w0, w1, w2, w3]);
    let height = u32::from_be_bytes([h0, h1, h2, h3]);
    if width == 0 || height == 0 {
        return Err(refused(ImageFormat::Png, format!("it has {width} x {height} pixels")));
    }
    let mut channels = match colour {
        0 => 1,
        2 | 3 => 3,
        4 => 2,
        6 => 4,
        _ => return Err(refused(ImageFormat::Png, format!("its colour type is {colour}"))),
    };
    let mut orientation = Orientation::UPRIGHT;
    let mut before_pixels = true;
    for (kind, body) in chunks {
        match kind {
            b"IDAT" => before_pixels = false,
            // A colour, or each colour of the palette, has an alpha.
            b"tRNS" if before_pixels && matches!(colour, 0 | 2 | 3) => {
                channels = if colour == 0 { 2 } else { 4 };
            }
            b"eXIf" => orientation = exif::orientation(body),
            _ => {}
        }
    }
    Ok(ImageInfo { format: ImageFormat::Png, width, height, channels, orientation })
}

/// The complete chunks of a file.
struct PngChunks<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for PngChunks<'a> {
    type Item = (&'a [u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (length, rest) = self.rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (body, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        // A checksum follows.
        self.rest = rest.get(4..).unwrap_or_default();
        Some((kind, body))
    }
}

pub(super) fn decode(
    bytes: &[u8],
    info: &ImageInfo,
    into: &mut Pixels,
) -> Result<(), TransformError> {
    let limits = Limits { bytes: AUXILIARY };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(|error| sentence(&error))?;
    let channels = match reader.output_color_type().0 {
        ColorType::Grayscale => 1,
        ColorType::GrayscaleAlpha => 2,
        ColorType::Rgb | ColorType::Indexed => 3,
        ColorType::Rgba => 4,
    };
    into.shape(info.width, info.height, channels);
    if channels != info.channels || reader.output_buffer_size() != Some(into.bytes.len()) {
        return Err(contradictory(ImageFormat::Png));
    }
    reader.next_frame(&mut into.bytes).map(drop).map_err(|error| sentence(&error))
}

fn sentence(error: &DecodingError) -> TransformError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            cut_off(ImageFormat::Png)
        }
        _ => refused(ImageFormat::Png, error),
    }
}

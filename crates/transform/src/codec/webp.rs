//! WebP, by the crate `image-webp`; of an animation the first frame on a transparent canvas.
//!
//! The first frame of an animation is extracted and decoded as a separate file, because it must not
//! be blended with the canvas: Pillow (through libwebp) does not blend it.

use std::io::{Cursor, ErrorKind};

use image_webp::{DecodingError, WebPDecoder};

use super::orientation::Orientation;
use super::{ImageFormat, ImageInfo, contradictory, cut_off, exif, refused};
use crate::error::TransformError;
use crate::image::{Pixels, Rect};

/// `RIFF`, a length, `WEBP`.
const SIGNATURE: usize = 12;

/// The most pixels of a bitstream, 16384 per side. Only the canvas of an animation could have more.
const MOST_PIXELS: u64 = 1 << 28;

/// The memory limit for chunks other than pixels.
const AUXILIARY: usize = 16 << 20;

pub(super) fn probe(bytes: &[u8]) -> Result<ImageInfo, TransformError> {
    let mut decoder = open(bytes)?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 || u64::from(width) * u64::from(height) > MOST_PIXELS {
        return Err(refused(ImageFormat::WebP, format!("it has {width} x {height} pixels")));
    }
    let orientation = match decoder.exif_metadata() {
        Ok(Some(data)) => exif::orientation(data.strip_prefix(b"Exif\0\0").unwrap_or(&data)),
        _ => Orientation::UPRIGHT,
    };
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    Ok(ImageInfo { format: ImageFormat::WebP, width, height, channels, orientation })
}

pub(super) fn decode(
    bytes: &[u8],
    info: &ImageInfo,
    into: &mut Pixels,
) -> Result<(), TransformError> {
    let mut decoder = open(bytes)?;
    if decoder.is_animated() {
        return decode_animation(bytes, info, into);
    }
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let (width, height) = decoder.dimensions();
    if (width, height, channels) != (info.width, info.height, info.channels) {
        return Err(contradictory(ImageFormat::WebP));
    }
    into.shape(width, height, channels);
    decoder.read_image(&mut into.bytes).map_err(|error| sentence(&error))
}

fn open(bytes: &[u8]) -> Result<WebPDecoder<Cursor<&[u8]>>, TransformError> {
    let length = bytes.get(4..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
    // The length counts the bytes after it.
    if bytes.len() < u32::from_le_bytes(length) as usize + 8 {
        return Err(cut_off(ImageFormat::WebP));
    }
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|error| sentence(&error))?;
    decoder.set_memory_limit(AUXILIARY);
    Ok(decoder)
}

fn decode_animation(
    bytes: &[u8],
    info: &ImageInfo,
    into: &mut Pixels,
) -> Result<(), TransformError> {
    let rest = bytes.get(SIGNATURE..).unwrap_or_default();
    let body = WebPChunks { rest }.find(|(kind, _)| *kind == b"ANMF").map(|(_, body)| body);
    let frame = body.and_then(AnimationFrame::read).ok_or_else(|| cut_off(ImageFormat::WebP))?;
    if !frame.lies_within(info) {
        return Err(refused(ImageFormat::WebP, "its first frame is outside its canvas"));
    }
    // A frame contains pixels only. Nested animations would recurse until the stack overflows.
    if let Some((b"VP8X", _)) = (WebPChunks { rest: frame.image }).next() {
        return Err(refused(ImageFormat::WebP, "its first frame is an animation"));
    }
    let still = frame.to_file();
    let still_info = probe(&still)?;
    if (still_info.width, still_info.height) != (frame.place.width, frame.place.height) {
        return Err(contradictory(ImageFormat::WebP));
    }
    let mut pixels = Pixels::default();
    decode(&still, &still_info, &mut pixels)?;
    into.shape(info.width, info.height, info.channels);
    into.bytes.fill(0);
    lay(&pixels, frame.place, into);
    Ok(())
}

/// Copies a frame onto a canvas; either may have an alpha channel.
fn lay(from: &Pixels, place: Rect, canvas: &mut Pixels) {
    let (from_channels, channels) = (from.channels as usize, canvas.channels as usize);
    let rows = canvas.bytes.chunks_exact_mut(canvas.width as usize * channels);
    let sources = from.bytes.chunks_exact(from.width as usize * from_channels);
    for (row, source) in rows.skip(place.top as usize).zip(sources) {
        let pixels = row.chunks_exact_mut(channels).skip(place.left as usize);
        for (pixel, source) in pixels.zip(source.chunks_exact(from_channels)) {
            pixel[..3].copy_from_slice(&source[..3]);
            if let Some(alpha) = pixel.get_mut(3) {
                *alpha = source.get(3).copied().unwrap_or(255);
            }
        }
    }
}

/// A frame of an animation.
struct AnimationFrame<'a> {
    place: Rect,
    /// The chunks of one image.
    image: &'a [u8],
}

impl<'a> AnimationFrame<'a> {
    fn read(body: &'a [u8]) -> Option<Self> {
        let (header, image) = body.split_first_chunk::<16>()?;
        let three = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], 0]);
        let place = Rect {
            left: three(0) * 2,
            top: three(3) * 2,
            width: three(6) + 1,
            height: three(9) + 1,
        };
        Some(Self { place, image })
    }

    fn lies_within(&self, info: &ImageInfo) -> bool {
        let Rect { left, top, width, height } = self.place;
        left + width <= info.width && top + height <= info.height
    }

    /// Returns the image as a file.
    fn to_file(&self) -> Vec<u8> {
        let mut chunks = WebPChunks { rest: self.image };
        let mut body: Vec<u8> = Vec::with_capacity(self.image.len() + 32);
        // Lossy pixels with alpha need an extended header.
        if let Some((b"ALPH", _)) = chunks.next() {
            body.extend(b"VP8X\x0a\0\0\0\x10\0\0\0");
            body.extend(&(self.place.width - 1).to_le_bytes()[..3]);
            body.extend(&(self.place.height - 1).to_le_bytes()[..3]);
        }
        body.extend(self.image);
        let mut file = b"RIFF".to_vec();
        file.extend((body.len() as u32 + 4).to_le_bytes());
        file.extend(b"WEBP");
        file.extend(body);
        file
    }
}

/// The complete chunks of a file.
struct WebPChunks<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for WebPChunks<'a> {
    type Item = (&'a [u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, rest) = self.rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        // Chunks begin at even offsets.
        self.rest = rest.get(body.len() % 2..).unwrap_or_default();
        Some((kind, body))
    }
}

fn sentence(error: &DecodingError) -> TransformError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            cut_off(ImageFormat::WebP)
        }
        _ => refused(ImageFormat::WebP, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(kind: [u8; 4], body: &[u8]) -> Vec<u8> {
        [&kind, &(body.len() as u32).to_le_bytes()[..], body].concat()
    }

    /// Returns an animation of 1 x 1 pixels with these chunks in its first frame.
    fn animation(frame: &[u8]) -> Vec<u8> {
        let header = chunk(*b"VP8X", &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let frame = chunk(*b"ANMF", &[&[0; 16], frame].concat());
        [header, chunk(*b"ANIM", &[0; 6]), frame].concat()
    }

    #[test]
    fn nested_animations_do_not_overflow_the_stack() {
        let mut body = chunk(*b"VP8L", &[0x2f, 0, 0, 0, 0, 0]);
        for _ in 0..6000 {
            body = animation(&body);
        }
        let length = (body.len() as u32 + 4).to_le_bytes();
        let file = [b"RIFF", &length[..], b"WEBP", &body].concat();
        let info = probe(&file).unwrap();
        let error = decode(&file, &info, &mut Pixels::default()).unwrap_err().to_string();
        assert!(error.contains("its first frame is an animation"), "{error}");
    }
}

//! WebP, by the crate `image-webp`; of an animation the first frame, on a canvas of nothing.
//!
//! The first frame is cut out of an animation and decoded as a file of its own: it is to lie on the
//! canvas as it is, and not to be blended with it, as Pillow (through libwebp) has it.

use std::io::{Cursor, ErrorKind};

use image_webp::{DecodingError, WebPDecoder};

use super::orientation::Orientation;
use super::{Format, Info, contradictory, cut_off, exif, refused};
use crate::error::TransformError;
use crate::image::{Pixels, Rect};

/// `RIFF`, a length, `WEBP`.
const SIGNATURE: usize = 12;

/// Pixels that the bitstream can have, 16384 to a side; only the canvas of an animation could
/// claim more.
const MOST_PIXELS: u64 = 1 << 28;

/// What may be read of chunks that are not pixels.
const AUXILIARY: usize = 16 << 20;

pub(super) fn probe(bytes: &[u8]) -> Result<Info, TransformError> {
    let mut decoder = open(bytes)?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 || u64::from(width) * u64::from(height) > MOST_PIXELS {
        return Err(refused(Format::WebP, format!("it has {width} x {height} pixels")));
    }
    let orientation = match decoder.exif_metadata() {
        Ok(Some(data)) => exif::orientation(data.strip_prefix(b"Exif\0\0").unwrap_or(&data)),
        _ => Orientation::UPRIGHT,
    };
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    Ok(Info { format: Format::WebP, width, height, channels, orientation })
}

pub(super) fn decode(bytes: &[u8], info: &Info, into: &mut Pixels) -> Result<(), TransformError> {
    let mut decoder = open(bytes)?;
    if decoder.is_animated() {
        return decode_animation(bytes, info, into);
    }
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let (width, height) = decoder.dimensions();
    if (width, height, channels) != (info.width, info.height, info.channels) {
        return Err(contradictory(Format::WebP));
    }
    into.shape(width, height, channels);
    decoder.read_image(&mut into.bytes).map_err(|error| sentence(&error))
}

fn open(bytes: &[u8]) -> Result<WebPDecoder<Cursor<&[u8]>>, TransformError> {
    let length = bytes.get(4..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
    // It counts what comes after it.
    if bytes.len() < u32::from_le_bytes(length) as usize + 8 {
        return Err(cut_off(Format::WebP));
    }
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|error| sentence(&error))?;
    decoder.set_memory_limit(AUXILIARY);
    Ok(decoder)
}

fn decode_animation(bytes: &[u8], info: &Info, into: &mut Pixels) -> Result<(), TransformError> {
    let rest = bytes.get(SIGNATURE..).unwrap_or_default();
    let body = Chunks { rest }.find(|(kind, _)| *kind == b"ANMF").map(|(_, body)| body);
    let frame = body.and_then(Frame::read).ok_or_else(|| cut_off(Format::WebP))?;
    if !frame.lies_within(info) {
        return Err(refused(Format::WebP, "its first frame lies outside of its canvas"));
    }
    // A frame has chunks of pixels only. One that is a file with frames of its own would lead ever
    // deeper, until the stack ends.
    if let Some((b"VP8X", _)) = (Chunks { rest: frame.image }).next() {
        return Err(refused(Format::WebP, "its first frame is a file of its own"));
    }
    let still = frame.alone();
    let still_info = probe(&still)?;
    if (still_info.width, still_info.height) != (frame.place.width, frame.place.height) {
        return Err(contradictory(Format::WebP));
    }
    let mut pixels = Pixels::default();
    decode(&still, &still_info, &mut pixels)?;
    into.shape(info.width, info.height, info.channels);
    into.bytes.fill(0);
    lay(&pixels, frame.place, into);
    Ok(())
}

/// Puts the pixels of a frame onto a canvas; either may have an alpha.
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
struct Frame<'a> {
    place: Rect,
    /// Chunks of one image.
    image: &'a [u8],
}

impl<'a> Frame<'a> {
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

    fn lies_within(&self, info: &Info) -> bool {
        let Rect { left, top, width, height } = self.place;
        left + width <= info.width && top + height <= info.height
    }

    /// The image as a file of its own.
    fn alone(&self) -> Vec<u8> {
        let mut chunks = Chunks { rest: self.image };
        let mut body: Vec<u8> = Vec::with_capacity(self.image.len() + 32);
        // Alpha beside lossy pixels is only understood if it is announced.
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

/// The chunks of a file, as far as they are there.
struct Chunks<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Chunks<'a> {
    type Item = (&'a [u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (kind, rest) = self.rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (body, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        // Chunks begin at even places.
        self.rest = rest.get(body.len() % 2..).unwrap_or_default();
        Some((kind, body))
    }
}

fn sentence(error: &DecodingError) -> TransformError {
    match error {
        DecodingError::IoError(error) if error.kind() == ErrorKind::UnexpectedEof => {
            cut_off(Format::WebP)
        }
        _ => refused(Format::WebP, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(kind: [u8; 4], body: &[u8]) -> Vec<u8> {
        [&kind, &(body.len() as u32).to_le_bytes()[..], body].concat()
    }

    /// The chunks of an animation of 1 x 1 pixels whose first frame has these.
    fn animation(frame: &[u8]) -> Vec<u8> {
        let header = chunk(*b"VP8X", &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let frame = chunk(*b"ANMF", &[&[0; 16], frame].concat());
        [header, chunk(*b"ANIM", &[0; 6]), frame].concat()
    }

    #[test]
    fn animations_within_animations_do_not_end_the_stack() {
        let mut body = chunk(*b"VP8L", &[0x2f, 0, 0, 0, 0, 0]);
        for _ in 0..6000 {
            body = animation(&body);
        }
        let length = (body.len() as u32 + 4).to_le_bytes();
        let file = [b"RIFF", &length[..], b"WEBP", &body].concat();
        let info = probe(&file).unwrap();
        let error = decode(&file, &info, &mut Pixels::default()).unwrap_err().to_string();
        assert!(error.contains("its first frame is a file of its own"), "{error}");
    }
}

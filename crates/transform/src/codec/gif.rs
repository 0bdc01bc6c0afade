//! GIF, by the crate `gif`: the first frame on its canvas.
//!
//! As in Pillow, the canvas grows to contain the frame. Pixels outside the frame have its
//! transparent colour, or the first one.

use std::io::{Cursor, ErrorKind};

use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};

use super::orientation::Orientation;
use super::palette::ColourPalette;
use super::{ImageFormat, ImageInfo, cut_off, refused};
use crate::error::TransformError;
use crate::image::Pixels;

type Decoder<'a> = gif::Decoder<Cursor<&'a [u8]>>;

pub(super) fn probe(bytes: &[u8]) -> Result<ImageInfo, TransformError> {
    let mut decoder = open(bytes)?;
    let (screen_width, screen_height) = (u32::from(decoder.width()), u32::from(decoder.height()));
    let frame = first_frame(&mut decoder)?;
    let width = screen_width.max(u32::from(frame.left) + u32::from(frame.width));
    let height = screen_height.max(u32::from(frame.top) + u32::from(frame.height));
    Ok(ImageInfo {
        format: ImageFormat::Gif,
        width,
        height,
        channels: 3,
        orientation: Orientation::UPRIGHT,
    })
}

/// Decodes the first frame. `indices` is reused memory.
pub(super) fn decode(
    bytes: &[u8],
    info: &ImageInfo,
    indices: &mut Vec<u8>,
    into: &mut Pixels,
) -> Result<(), TransformError> {
    let mut decoder = open(bytes)?;
    let frame = first_frame(&mut decoder)?;
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let row = usize::from(frame.width);
    let background = frame.transparent.unwrap_or(0);
    indices.resize(decoder.buffer_size(), 0);
    decoder.read_into_buffer(indices).map_err(|error| sentence(&error))?;
    into.shape(info.width, info.height, 1);
    into.bytes.fill(background);
    let rows = into.bytes.chunks_exact_mut(info.width as usize).skip(top);
    for (onto, from) in rows.zip(indices.chunks_exact(row)) {
        onto[left..left + row].copy_from_slice(from);
    }
    let colours = decoder.palette().unwrap_or_default().chunks_exact(3);
    ColourPalette::new(colours.map(|colour| [colour[0], colour[1], colour[2]])).look_up(into);
    Ok(())
}

fn open(bytes: &[u8]) -> Result<Decoder<'_>, TransformError> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // The canvas was checked against `max_pixels` and contains the frame.
    options.set_memory_limit(MemoryLimit::Unlimited);
    options.read_info(Cursor::new(bytes)).map_err(|error| sentence(&error))
}

/// Reads up to the pixels of the first frame.
fn first_frame(decoder: &mut Decoder<'_>) -> Result<FirstFrame, TransformError> {
    let frame = decoder.next_frame_info().map_err(|error| sentence(&error))?;
    let frame = frame.ok_or_else(|| refused(ImageFormat::Gif, "it contains no image"))?;
    let first = FirstFrame {
        left: frame.left,
        top: frame.top,
        width: frame.width,
        height: frame.height,
        transparent: frame.transparent,
    };
    if first.width == 0 || first.height == 0 {
        let text = format!("its first frame has {} x {} pixels", first.width, first.height);
        return Err(refused(ImageFormat::Gif, text));
    }
    Ok(first)
}

struct FirstFrame {
    left: u16,
    top: u16,
    width: u16,
    height: u16,
    transparent: Option<u8>,
}

fn sentence(error: &DecodingError) -> TransformError {
    match error {
        DecodingError::UnexpectedEof => cut_off(ImageFormat::Gif),
        DecodingError::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
            cut_off(ImageFormat::Gif)
        }
        _ => refused(ImageFormat::Gif, error),
    }
}

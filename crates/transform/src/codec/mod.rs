//! From the bytes of an image file to pixels.
//!
//! [`probe`] reads the header: what format it is (told by the content, never by a name), how large,
//! and which way up. Nothing is decoded and no memory is taken, so a file that claims to be
//! gigantic is refused there. A [`Decoder`] then decodes it. Who needs only a part of the image
//! says so by [`Wanted::region`], which for JPEG saves more than a quarter of the work: rows and
//! columns outside are passed over.
//!
//! Pixels are those that Pillow gives for `Image.open(file).convert("RGB")` (or `"L"`), bit for bit,
//! and what Pillow refuses is refused. The few exceptions are told where they are made.

mod bmp;
mod colour;
mod exif;
mod gif;
mod jpeg;
mod orientation;
mod palette;
mod png;
mod webp;

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::TransformError;
use crate::image::{Pixels, Rect};
use crate::step::Mode;

pub use orientation::Orientation;

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Jpeg,
    Png,
    WebP,
    Bmp,
    Gif,
}

impl Format {
    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Bmp => "BMP",
            Self::Gif => "GIF",
        }
    }
}

/// What the header of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    pub format: Format,
    /// As the pixels lie in the file; [`Info::size`] turns it.
    pub width: u32,
    pub height: u32,
    /// Those that [`Mode::Unchanged`] gives: grey, grey with alpha, RGB, and RGBA or CMYK.
    pub channels: u32,
    /// How the file is to be turned to be upright.
    pub orientation: Orientation,
}

impl Info {
    /// Width and height as the user sees them.
    pub const fn size(&self, apply_exif_orientation: bool) -> (u32, u32) {
        if apply_exif_orientation && self.orientation.swaps_sides() {
            (self.height, self.width)
        } else {
            (self.width, self.height)
        }
    }
}

/// What is to be decoded of a file, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub mode: Mode,
    pub apply_exif_orientation: bool,
    /// An image of more pixels is refused.
    pub max_pixels: u64,
    /// If only a part is needed: which, of the image as the user sees it.
    pub region: Option<Rect>,
}

/// Reads what the header says, without decoding.
pub fn probe(bytes: &[u8]) -> Result<Info, TransformError> {
    match format(bytes)? {
        Format::Jpeg => jpeg::probe(bytes),
        Format::Png => png::probe(bytes),
        Format::WebP => guarded(Format::WebP, || webp::probe(bytes)),
        Format::Bmp => bmp::probe(bytes),
        Format::Gif => guarded(Format::Gif, || gif::probe(bytes)),
    }
}

/// The format, by the first bytes.
fn format(bytes: &[u8]) -> Result<Format, TransformError> {
    match bytes {
        [] => Err(TransformError("it is empty, where an image was expected".into())),
        [0xff, 0xd8, 0xff, ..] => Ok(Format::Jpeg),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(Format::Png),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(Format::WebP),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(Format::Gif),
        [b'B', b'M', ..] => Ok(Format::Bmp),
        _ => {
            let start: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
            Err(TransformError(format!(
                "it is not an image that can be decoded (JPEG, PNG, WebP, BMP, GIF): it starts with {}",
                start.join(" ")
            )))
        }
    }
}

/// Decodes one file after another; each thread has one. Its memory is used again.
#[derive(Debug, Default)]
pub struct Decoder {
    jpeg: jpeg::Decoder,
    /// Pixels as they lie in a file that has to be turned.
    lying: Pixels,
    /// A frame of a GIF.
    indices: Vec<u8>,
}

impl Decoder {
    /// Decodes a file, or the part of it that is wanted and perhaps more. Gives the part of the
    /// image, as the user sees it, that `into` then has. What `into` has after an error is
    /// nothing to rely on.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        wanted: &Wanted,
        into: &mut Pixels,
    ) -> Result<Rect, TransformError> {
        let info = probe(bytes)?;
        check_size(&info, wanted)?;
        if !wanted.apply_exif_orientation || info.orientation == Orientation::UPRIGHT {
            return self.decode_lying(bytes, &info, wanted.mode, wanted.region, into);
        }
        let region = wanted.region.map(|seen| info.orientation.lay(seen, info.width, info.height));
        let mut lying = std::mem::take(&mut self.lying);
        let part = self.decode_lying(bytes, &info, wanted.mode, region, &mut lying);
        if part.is_ok() {
            info.orientation.turn(&lying, into);
        }
        self.lying = lying;
        Ok(info.orientation.raise(part?, info.width, info.height))
    }

    /// Decodes a JPEG at 1 / `shrink` (2, 4 or 8) of its size, which takes less time: blocks are
    /// computed smaller. `region` and the answer are in pixels of that size. `None` for files
    /// that are not made of blocks, or have to be turned.
    pub(crate) fn decode_shrunk(
        &mut self,
        bytes: &[u8],
        wanted: &Wanted,
        shrink: u32,
        region: Rect,
        into: &mut Pixels,
    ) -> Result<Option<Rect>, TransformError> {
        let info = probe(bytes)?;
        check_size(&info, &Wanted { region: None, ..*wanted })?;
        let turned = wanted.apply_exif_orientation && info.orientation != Orientation::UPRIGHT;
        if info.format != Format::Jpeg || turned || !jpeg::can_be_shrunk(bytes)? {
            return Ok(None);
        }
        self.jpeg.decode(bytes, &info, wanted.mode, shrink, Some(region), into).map(Some)
    }

    /// Decodes without turning.
    fn decode_lying(
        &mut self,
        bytes: &[u8],
        info: &Info,
        mode: Mode,
        region: Option<Rect>,
        into: &mut Pixels,
    ) -> Result<Rect, TransformError> {
        match info.format {
            Format::Jpeg => return self.jpeg.decode(bytes, info, mode, 1, region, into),
            Format::Png => guarded(info.format, || png::decode(bytes, info, into))?,
            Format::WebP => guarded(info.format, || webp::decode(bytes, info, into))?,
            Format::Bmp => bmp::decode(bytes, into)?,
            Format::Gif => {
                guarded(info.format, || gif::decode(bytes, info, &mut self.indices, into))?;
            }
        }
        colour::to_mode(into, mode);
        Ok(Rect::whole(info.width, info.height))
    }
}

/// Whether the image is not too large, and has the part that is wanted.
pub(crate) fn check_size(info: &Info, wanted: &Wanted) -> Result<(), TransformError> {
    let (width, height) = info.size(wanted.apply_exif_orientation);
    if u64::from(width) * u64::from(height) > wanted.max_pixels {
        return Err(TransformError(format!(
            "it has {width} x {height} pixels, more than the {} that max_pixels allows",
            wanted.max_pixels
        )));
    }
    let Some(region) = wanted.region else { return Ok(()) };
    let fits = |from: u32, count: u32, end: u32| {
        count > 0 && from.checked_add(count).is_some_and(|to| to <= end)
    };
    if fits(region.left, region.width, width) && fits(region.top, region.height, height) {
        return Ok(());
    }
    Err(TransformError(format!(
        "it has {width} x {height} pixels, where {} x {} from ({}, {}) on are wanted",
        region.width, region.height, region.left, region.top
    )))
}

/// Runs a decoder that others wrote. One that panics on a hostile file is a bug, but it is no reason
/// to end a training: the file is refused like others.
fn guarded<T>(
    format: Format,
    decode: impl FnOnce() -> Result<T, TransformError>,
) -> Result<T, TransformError> {
    // What is half written is pixels and scratch memory, which nobody reads after an error.
    catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|_| Err(refused(format, "the decoder has given up")))
}

fn refused(format: Format, why: impl Display) -> TransformError {
    TransformError(format!("it is a {} that cannot be decoded: {why}", format.name()))
}

fn cut_off(format: Format) -> TransformError {
    let name = format.name();
    TransformError(format!("it is a {name} that is cut off: its data end before the image does"))
}

fn contradictory(format: Format) -> TransformError {
    TransformError(format!("it is a {} whose header contradicts itself", format.name()))
}

//! Decodes image files to pixels.
//!
//! [`probe`] reads the header: the format (recognised by the content, never by a name), the size
//! and the orientation. It decodes nothing and allocates no memory, so a file that claims to be
//! gigantic is refused there. A [`Decoder`] then decodes the file. With [`DecodeRequest::region`]
//! it decodes a part, which for JPEG saves more than a quarter of the work.
//!
//! Pixels are bit-equal to Pillow's `Image.open(file).convert("RGB")` (or `"L"`), and files that
//! Pillow refuses are refused. The modules of the formats list the exceptions.

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

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    WebP,
    /// BMP.
    Bmp,
    /// GIF.
    Gif,
}

impl ImageFormat {
    /// Returns the usual name.
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

/// The header of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// The format.
    pub format: ImageFormat,
    /// The stored width; [`ImageInfo::size`] includes the rotation.
    pub width: u32,
    /// The stored height.
    pub height: u32,
    /// The channels of [`Mode::Unchanged`]: grey, grey with alpha, RGB, and RGBA or CMYK.
    pub channels: u32,
    /// The EXIF orientation.
    pub orientation: Orientation,
}

impl ImageInfo {
    /// Returns the displayed width and height.
    pub const fn size(&self, apply_exif_orientation: bool) -> (u32, u32) {
        if apply_exif_orientation && self.orientation.swaps_sides() {
            (self.height, self.width)
        } else {
            (self.width, self.height)
        }
    }
}

/// What to decode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeRequest {
    /// The channels of the result.
    pub mode: Mode,
    /// Whether to rotate the image by its EXIF data.
    pub apply_exif_orientation: bool,
    /// An image with more pixels is refused.
    pub max_pixels: u64,
    /// The part of the displayed image to decode; `None` for all of it.
    pub region: Option<Rect>,
}

/// Reads the header without decoding.
///
/// # Errors
/// If the format is unknown, or the header is damaged.
pub fn probe(bytes: &[u8]) -> Result<ImageInfo, TransformError> {
    match format(bytes)? {
        ImageFormat::Jpeg => jpeg::probe(bytes),
        ImageFormat::Png => png::probe(bytes),
        ImageFormat::WebP => guarded(ImageFormat::WebP, || webp::probe(bytes)),
        ImageFormat::Bmp => bmp::probe(bytes),
        ImageFormat::Gif => guarded(ImageFormat::Gif, || gif::probe(bytes)),
    }
}

/// Recognises the format by the first bytes.
fn format(bytes: &[u8]) -> Result<ImageFormat, TransformError> {
    match bytes {
        [] => Err(TransformError("it is empty; an image is expected".into())),
        [0xff, 0xd8, 0xff, ..] => Ok(ImageFormat::Jpeg),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(ImageFormat::Png),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(ImageFormat::WebP),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(ImageFormat::Gif),
        [b'B', b'M', ..] => Ok(ImageFormat::Bmp),
        _ => {
            let start: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
            Err(TransformError(format!(
                "it is not an image that can be decoded (JPEG, PNG, WebP, BMP, GIF): it starts with {}",
                start.join(" ")
            )))
        }
    }
}

/// Decodes files, one at a time. Its memory is reused.
#[derive(Debug, Default)]
pub struct Decoder {
    jpeg: jpeg::JpegDecoder,
    /// Stored pixels of a file that has to be rotated.
    stored: Pixels,
    /// A frame of a GIF.
    indices: Vec<u8>,
}

impl Decoder {
    /// Decodes a file, or the requested part of it and perhaps more. Returns the part of the
    /// displayed image in `into`, whose contents are unspecified after an error.
    ///
    /// # Errors
    /// If the file cannot be decoded, or the request does not fit it.
    pub fn decode(
        &mut self,
        bytes: &[u8],
        wanted: &DecodeRequest,
        into: &mut Pixels,
    ) -> Result<Rect, TransformError> {
        let info = probe(bytes)?;
        check_size(&info, wanted)?;
        if !wanted.apply_exif_orientation || info.orientation == Orientation::UPRIGHT {
            return self.decode_stored(bytes, &info, wanted.mode, wanted.region, into);
        }
        let region = wanted
            .region
            .map(|displayed| info.orientation.to_stored(displayed, info.width, info.height));
        let mut stored = std::mem::take(&mut self.stored);
        let part = self.decode_stored(bytes, &info, wanted.mode, region, &mut stored);
        if part.is_ok() {
            info.orientation.turn(&stored, into);
        }
        self.stored = stored;
        Ok(info.orientation.to_displayed(part?, info.width, info.height))
    }

    /// Decodes a JPEG at 1 / `shrink` (2, 4 or 8) of its size, which takes less time. `region` and
    /// the returned part are in pixels of that size. `None` for files that do not consist of
    /// blocks, or have to be rotated.
    pub(crate) fn decode_shrunk(
        &mut self,
        bytes: &[u8],
        wanted: &DecodeRequest,
        shrink: u32,
        region: Rect,
        into: &mut Pixels,
    ) -> Result<Option<Rect>, TransformError> {
        let info = probe(bytes)?;
        check_size(&info, &DecodeRequest { region: None, ..*wanted })?;
        let turned = wanted.apply_exif_orientation && info.orientation != Orientation::UPRIGHT;
        if info.format != ImageFormat::Jpeg || turned || !jpeg::can_be_shrunk(bytes)? {
            return Ok(None);
        }
        self.jpeg.decode(bytes, &info, wanted.mode, shrink, Some(region), into).map(Some)
    }

    /// Decodes without rotating.
    fn decode_stored(
        &mut self,
        bytes: &[u8],
        info: &ImageInfo,
        mode: Mode,
        region: Option<Rect>,
        into: &mut Pixels,
    ) -> Result<Rect, TransformError> {
        match info.format {
            ImageFormat::Jpeg => return self.jpeg.decode(bytes, info, mode, 1, region, into),
            ImageFormat::Png => guarded(info.format, || png::decode(bytes, info, into))?,
            ImageFormat::WebP => guarded(info.format, || webp::decode(bytes, info, into))?,
            ImageFormat::Bmp => bmp::decode(bytes, into)?,
            ImageFormat::Gif => {
                guarded(info.format, || gif::decode(bytes, info, &mut self.indices, into))?;
            }
        }
        colour::to_mode(into, mode);
        Ok(Rect::whole(info.width, info.height))
    }
}

/// Checks that the image is not too large and contains the requested part.
pub(crate) fn check_size(info: &ImageInfo, wanted: &DecodeRequest) -> Result<(), TransformError> {
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
        "it has {width} x {height} pixels, which do not contain {} x {} from ({}, {}) on",
        region.width, region.height, region.left, region.top
    )))
}

/// Runs a third-party decoder. If it panics on a hostile file, the file is refused instead of
/// ending the training.
fn guarded<T>(
    format: ImageFormat,
    decode: impl FnOnce() -> Result<T, TransformError>,
) -> Result<T, TransformError> {
    // Partially written pixels and scratch memory are not read after an error.
    catch_unwind(AssertUnwindSafe(decode))
        .unwrap_or_else(|_| Err(refused(format, "the decoder failed")))
}

fn refused(format: ImageFormat, why: impl Display) -> TransformError {
    TransformError(format!("it is a {} that cannot be decoded: {why}", format.name()))
}

fn cut_off(format: ImageFormat) -> TransformError {
    let name = format.name();
    TransformError(format!("it is a truncated {name}: its data end before the image does"))
}

fn contradictory(format: ImageFormat) -> TransformError {
    TransformError(format!("it is a {} whose header contradicts itself", format.name()))
}

//! The header of a JPEG. Parsed by hand for speed: it suffices to draw a crop, and takes a
//! microsecond.

use crate::codec::orientation::Orientation;
use crate::codec::{ImageFormat, cut_off, exif, refused};
use crate::error::TransformError;

/// The frame header and the orientation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JpegHeader {
    /// The coding process: the marker, 0xC0 to 0xCF.
    pub process: u8,
    pub width: u32,
    pub height: u32,
    pub components: u32,
    pub orientation: Orientation,
}

const START_OF_SCAN: u8 = 0xda;
const END_OF_IMAGE: u8 = 0xd9;
const APP1: u8 = 0xe1;

/// Reads the segments up to the first scan.
pub(super) fn read(bytes: &[u8]) -> Result<JpegHeader, TransformError> {
    let mut frame = None;
    let mut orientation = None;
    let mut at = 2;
    loop {
        let marker = next_marker(bytes, &mut at).ok_or_else(|| cut_off(ImageFormat::Jpeg))?;
        match marker {
            START_OF_SCAN | END_OF_IMAGE => break,
            // Markers without a segment.
            0x01 | 0xd0..=0xd8 => continue,
            _ => {}
        }
        let body = segment(bytes, &mut at)?;
        match marker {
            // 0xC4, 0xC8 and 0xCC are not frame headers.
            0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf if frame.is_none() => {
                frame = Some((marker, body));
            }
            APP1 if orientation.is_none() => {
                orientation = body.strip_prefix(b"Exif\0\0").map(exif::orientation);
            }
            _ => {}
        }
    }
    let Some((process, body)) = frame else {
        return Err(refused(ImageFormat::Jpeg, "it contains no image"));
    };
    parse(process, body, orientation.unwrap_or(Orientation::UPRIGHT))
}

/// Skips bytes that are no marker, like libjpeg, and returns the next marker.
fn next_marker(bytes: &[u8], at: &mut usize) -> Option<u8> {
    loop {
        *at += bytes.get(*at..)?.iter().position(|&byte| byte == 0xff)?;
        *at += bytes.get(*at..)?.iter().position(|&byte| byte != 0xff)?;
        let marker = *bytes.get(*at)?;
        *at += 1;
        if marker != 0 {
            return Some(marker);
        }
    }
}

/// Reads a segment. Its length comes first and includes itself.
fn segment<'a>(bytes: &'a [u8], at: &mut usize) -> Result<&'a [u8], TransformError> {
    let length = bytes
        .get(*at..)
        .and_then(|rest| rest.first_chunk())
        .ok_or_else(|| cut_off(ImageFormat::Jpeg))?;
    let length = usize::from(u16::from_be_bytes(*length));
    if length < 2 {
        return Err(refused(ImageFormat::Jpeg, "its header is damaged"));
    }
    let body = bytes.get(*at + 2..*at + length).ok_or_else(|| cut_off(ImageFormat::Jpeg))?;
    *at += length;
    Ok(body)
}

fn parse(process: u8, body: &[u8], orientation: Orientation) -> Result<JpegHeader, TransformError> {
    let &[precision, height0, height1, width0, width1, components, ..] = body else {
        return Err(refused(ImageFormat::Jpeg, "its header is damaged"));
    };
    let width = u32::from(u16::from_be_bytes([width0, width1]));
    let height = u32::from(u16::from_be_bytes([height0, height1]));
    let why = match (precision, width, height, components) {
        (_, 0, _, _) | (_, _, 0, _) => format!("it has {width} x {height} pixels"),
        (8, _, _, 1 | 3 | 4) => {
            let components = u32::from(components);
            return Ok(JpegHeader { process, width, height, components, orientation });
        }
        (8, ..) => format!("it has {components} channels instead of 1, 3 or 4"),
        _ => format!("it has {precision} bits per value instead of 8"),
    };
    Err(refused(ImageFormat::Jpeg, why))
}

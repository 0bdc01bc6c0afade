//! BMP, as Pillow reads it: 1, 4 and 8 bits with a palette, plain or run-length coded, two kinds of
//! 16 bits, 24 and 32 bits; bottom-up or top-down.

mod header;
mod runs;

use header::{BmpHeader, Coding};

use super::orientation::Orientation;
use super::{ImageFormat, ImageInfo, cut_off};
use crate::error::TransformError;
use crate::image::Pixels;

pub(super) fn probe(bytes: &[u8]) -> Result<ImageInfo, TransformError> {
    let header = BmpHeader::read(bytes)?;
    Ok(ImageInfo {
        format: ImageFormat::Bmp,
        width: header.width,
        height: header.height,
        channels: header.channels(),
        orientation: Orientation::UPRIGHT,
    })
}

pub(super) fn decode(bytes: &[u8], into: &mut Pixels) -> Result<(), TransformError> {
    let header = BmpHeader::read(bytes)?;
    let data = bytes.get(header.data..).unwrap_or_default();
    let width = header.width as usize;
    match header.coding {
        Coding::Runs { nibbles } => {
            into.shape(header.width, header.height, 1);
            runs::read(data, header.data, nibbles, width, &mut into.bytes)?;
            if !header.top_down {
                reverse_rows(&mut into.bytes, width);
            }
            header.palette(bytes).look_up(into);
        }
        Coding::Indices { bits } => {
            let rows = BmpRows::new(data, &header, bits)?;
            into.shape(header.width, header.height, 1);
            for (onto, from) in into.bytes.chunks_exact_mut(width).zip(rows) {
                unpack(from, bits, onto);
            }
            header.palette(bytes).look_up(into);
        }
        Coding::Words { green_bits } => {
            let rows = BmpRows::new(data, &header, 16)?;
            into.shape(header.width, header.height, 3);
            for (onto, from) in into.bytes.chunks_exact_mut(width * 3).zip(rows) {
                for (pixel, word) in onto.chunks_exact_mut(3).zip(from.chunks_exact(2)) {
                    let word = u16::from_le_bytes([word[0], word[1]]);
                    pixel.copy_from_slice(&from_word(word, green_bits));
                }
            }
        }
        Coding::Bytes { size, order, alpha } => {
            let rows = BmpRows::new(data, &header, size as u32 * 8)?;
            let channels = if alpha { 4 } else { 3 };
            into.shape(header.width, header.height, channels);
            let channels = channels as usize;
            for (onto, from) in into.bytes.chunks_exact_mut(width * channels).zip(rows) {
                for (pixel, source) in onto.chunks_exact_mut(channels).zip(from.chunks_exact(size))
                {
                    for (value, &at) in pixel.iter_mut().zip(&order) {
                        *value = source[at];
                    }
                }
            }
        }
    }
    Ok(())
}

/// The rows of uncompressed pixels, top-down.
struct BmpRows<'a> {
    data: &'a [u8],
    /// Bytes from a row to the next. The padding of the last row may be missing.
    stride: usize,
    length: usize,
    count: usize,
    next: usize,
    top_down: bool,
}

impl<'a> BmpRows<'a> {
    /// Refuses incomplete data before memory is allocated.
    fn new(data: &'a [u8], header: &BmpHeader, bits: u32) -> Result<Self, TransformError> {
        let row_bits = u64::from(header.width) * u64::from(bits);
        let (length, stride) = (row_bits.div_ceil(8), row_bits.div_ceil(32) * 4);
        // The factors are below 2^38 and 2^32, so 128 bits suffice.
        let needed = u128::from(stride) * u128::from(header.height - 1) + u128::from(length);
        if (data.len() as u128) < needed {
            return Err(cut_off(ImageFormat::Bmp));
        }
        Ok(Self {
            data,
            stride: stride as usize,
            length: length as usize,
            count: header.height as usize,
            next: 0,
            top_down: header.top_down,
        })
    }
}

impl<'a> Iterator for BmpRows<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.next == self.count {
            return None;
        }
        let at = if self.top_down { self.next } else { self.count - 1 - self.next };
        self.next += 1;
        self.data.get(at * self.stride..)?.get(..self.length)
    }
}

/// Unpacks indices of 1, 4 or 8 bits, the highest bits first.
fn unpack(from: &[u8], bits: u32, onto: &mut [u8]) {
    if bits == 8 {
        onto.copy_from_slice(&from[..onto.len()]);
        return;
    }
    let in_byte = (8 / bits) as usize;
    let mask = (1_u8 << bits) - 1;
    for (at, index) in onto.iter_mut().enumerate() {
        let shift = 8 - bits * (at % in_byte + 1) as u32;
        *index = from[at / in_byte] >> shift & mask;
    }
}

/// Unpacks five bits each of red, green and blue, or six of green.
fn from_word(word: u16, green_bits: u32) -> [u8; 3] {
    let widened = |shift: u32, bits: u32| {
        let most = (1_u32 << bits) - 1;
        ((u32::from(word) >> shift & most) * 255 / most) as u8
    };
    [widened(5 + green_bits, 5), widened(5, green_bits), widened(0, 5)]
}

/// Reverses the order of the rows.
fn reverse_rows(bytes: &mut [u8], row: usize) {
    let mut rows = bytes.chunks_exact_mut(row);
    while let (Some(upper), Some(lower)) = (rows.next(), rows.next_back()) {
        upper.swap_with_slice(lower);
    }
}

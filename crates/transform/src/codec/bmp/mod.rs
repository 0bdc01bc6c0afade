//! BMP, as Pillow reads it: 1, 4 and 8 bits with a palette, as they are or run-length coded, 16 bits
//! of two kinds, 24 and 32 bits; from the bottom up or from the top down.

mod header;
mod runs;

use header::{Coding, Header};

use super::orientation::Orientation;
use super::{Format, Info, cut_off};
use crate::error::TransformError;
use crate::image::Pixels;

pub(super) fn probe(bytes: &[u8]) -> Result<Info, TransformError> {
    let header = Header::read(bytes)?;
    Ok(Info {
        format: Format::Bmp,
        width: header.width,
        height: header.height,
        channels: header.channels(),
        orientation: Orientation::UPRIGHT,
    })
}

pub(super) fn decode(bytes: &[u8], into: &mut Pixels) -> Result<(), TransformError> {
    let header = Header::read(bytes)?;
    let data = bytes.get(header.data..).unwrap_or_default();
    let width = header.width as usize;
    match header.coding {
        Coding::Runs { nibbles } => {
            into.shape(header.width, header.height, 1);
            runs::read(data, header.data, nibbles, width, &mut into.bytes)?;
            if !header.top_down {
                turn_over(&mut into.bytes, width);
            }
            header.palette(bytes).look_up(into);
        }
        Coding::Indices { bits } => {
            let rows = Rows::new(data, &header, bits)?;
            into.shape(header.width, header.height, 1);
            for (onto, from) in into.bytes.chunks_exact_mut(width).zip(rows) {
                unpack(from, bits, onto);
            }
            header.palette(bytes).look_up(into);
        }
        Coding::Words { green_bits } => {
            let rows = Rows::new(data, &header, 16)?;
            into.shape(header.width, header.height, 3);
            for (onto, from) in into.bytes.chunks_exact_mut(width * 3).zip(rows) {
                for (pixel, word) in onto.chunks_exact_mut(3).zip(from.chunks_exact(2)) {
                    let word = u16::from_le_bytes([word[0], word[1]]);
                    pixel.copy_from_slice(&from_word(word, green_bits));
                }
            }
        }
        Coding::Bytes { size, order, alpha } => {
            let rows = Rows::new(data, &header, size as u32 * 8)?;
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

/// The rows of pixels that are stored as they are, from the top down.
struct Rows<'a> {
    data: &'a [u8],
    /// Bytes from a row to the next, of which the last may be left out.
    stride: usize,
    length: usize,
    count: usize,
    next: usize,
    top_down: bool,
}

impl<'a> Rows<'a> {
    /// Refuses data that have not all of them, before memory is taken.
    fn new(data: &'a [u8], header: &Header, bits: u32) -> Result<Self, TransformError> {
        let row_bits = u64::from(header.width) * u64::from(bits);
        let (length, stride) = (row_bits.div_ceil(8), row_bits.div_ceil(32) * 4);
        // Both factors are below 2^38 and 2^32, which 128 bits hold.
        let needed = u128::from(stride) * u128::from(header.height - 1) + u128::from(length);
        if (data.len() as u128) < needed {
            return Err(cut_off(Format::Bmp));
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

impl<'a> Iterator for Rows<'a> {
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

/// Numbers of 1, 4 or 8 bits, the highest first.
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

/// Five bits each of red, green and blue, or six of green.
fn from_word(word: u16, green_bits: u32) -> [u8; 3] {
    let widened = |shift: u32, bits: u32| {
        let most = (1_u32 << bits) - 1;
        ((u32::from(word) >> shift & most) * 255 / most) as u8
    };
    [widened(5 + green_bits, 5), widened(5, green_bits), widened(0, 5)]
}

/// Exchanges the first row with the last, and so on.
fn turn_over(bytes: &mut [u8], row: usize) {
    let mut rows = bytes.chunks_exact_mut(row);
    while let (Some(upper), Some(lower)) = (rows.next(), rows.next_back()) {
        upper.swap_with_slice(lower);
    }
}

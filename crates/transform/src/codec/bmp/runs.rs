//! Run-length coding of BMP, with Pillow's handling of malformed files.

use crate::codec::{ImageFormat, cut_off};
use crate::error::TransformError;

/// Fills `into` with rows of `width` indices in the order of the file. `begin` is the offset of
/// `data` in the file: literal pixels are padded to even offsets.
pub(super) fn read(
    data: &[u8],
    begin: usize,
    nibbles: bool,
    width: usize,
    into: &mut [u8],
) -> Result<(), TransformError> {
    let mut out = Out { into, count: 0 };
    let mut at = 0;
    // Pixels of the current row. A run ends with the row; the rest is ignored.
    let mut x = 0;
    while out.left() > 0 {
        let Some(&[first, second]) = data.get(at..).and_then(|rest| rest.first_chunk()) else {
            break;
        };
        at += 2;
        match (first, second) {
            (0, 0) => {
                out.skip(out.count.next_multiple_of(width) - out.count);
                x = 0;
            }
            (0, 1) => break,
            (0, 2) => {
                let Some(&[right, up]) = data.get(at..).and_then(|rest| rest.first_chunk()) else {
                    break;
                };
                at += 2;
                out.skip(usize::from(right) + usize::from(up) * width);
                x = out.count % width;
            }
            (0, count) => {
                let wanted = usize::from(count).min(out.left());
                let length = if nibbles { wanted.div_ceil(2) } else { wanted };
                let Some(source) = data.get(at..).and_then(|rest| rest.get(..length)) else {
                    break;
                };
                for pixel in 0..wanted {
                    out.push(if nibbles {
                        nibble(source[pixel / 2], pixel)
                    } else {
                        source[pixel]
                    });
                }
                x += usize::from(count);
                at += length;
                at += (begin + at) % 2;
            }
            (count, value) => {
                let count = usize::from(count).min(width.saturating_sub(x));
                for pixel in 0..count {
                    out.push(if nibbles { nibble(value, pixel) } else { value });
                }
                x += count;
            }
        }
    }
    if out.left() > 0 { Err(cut_off(ImageFormat::Bmp)) } else { Ok(()) }
}

/// Returns the upper half of a byte for even pixels, the lower half for odd ones.
fn nibble(byte: u8, pixel: usize) -> u8 {
    if pixel.is_multiple_of(2) { byte >> 4 } else { byte & 15 }
}

struct Out<'a> {
    into: &'a mut [u8],
    count: usize,
}

impl Out<'_> {
    fn left(&self) -> usize {
        self.into.len() - self.count
    }

    fn push(&mut self, value: u8) {
        if let Some(index) = self.into.get_mut(self.count) {
            *index = value;
            self.count += 1;
        }
    }

    /// Fills pixels with index zero.
    fn skip(&mut self, count: usize) {
        let count = count.min(self.left());
        self.into[self.count..self.count + count].fill(0);
        self.count += count;
    }
}

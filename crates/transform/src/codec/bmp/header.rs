//! The seven kinds of BMP headers. Written by hand for parity with Pillow.

use crate::codec::palette::ColourPalette;
use crate::codec::{ImageFormat, cut_off, refused};
use crate::error::TransformError;

/// Bytes before the header: `BM`, a length, and the offset of the pixels.
const FILE_HEADER: usize = 14;

pub(super) struct BmpHeader {
    pub width: u32,
    pub height: u32,
    pub top_down: bool,
    pub coding: Coding,
    /// The offset of the pixels.
    pub data: usize,
    /// The offset of the palette, its number of colours, and the bytes of each.
    colours: (usize, usize, usize),
}

/// How pixels are stored.
pub(super) enum Coding {
    /// Indices of colours.
    Indices { bits: u32 },
    /// Run-length coded indices, one or two per byte.
    Runs { nibbles: bool },
    /// 16 bits.
    Words { green_bits: u32 },
    /// A byte per channel: the bytes of a pixel, and the offsets of red, green, blue and alpha.
    Bytes { size: usize, order: [usize; 4], alpha: bool },
}

/// The fields that all kinds of headers have.
struct BmpFields {
    size: usize,
    width: u32,
    height: u32,
    top_down: bool,
    bits: u16,
    compression: u32,
    colours: u32,
}

impl BmpHeader {
    pub fn read(bytes: &[u8]) -> Result<Self, TransformError> {
        let fields = BmpFields::read(bytes).ok_or_else(|| cut_off(ImageFormat::Bmp))??;
        if fields.width == 0 || fields.height == 0 {
            let text = format!("it has {} x {} pixels", fields.width, fields.height);
            return Err(refused(ImageFormat::Bmp, text));
        }
        let mut end = FILE_HEADER + fields.size;
        let coding = match (fields.compression, fields.bits) {
            (0, bits @ (1 | 4 | 8)) => Coding::Indices { bits: u32::from(bits) },
            (0, 16) => Coding::Words { green_bits: 5 },
            (0, 24) => Coding::Bytes { size: 3, order: [2, 1, 0, 3], alpha: false },
            (0, 32) => Coding::Bytes { size: 4, order: [2, 1, 0, 3], alpha: false },
            (1, 8) => Coding::Runs { nibbles: false },
            (2, 4) => Coding::Runs { nibbles: true },
            (3, bits @ (16 | 24 | 32)) => {
                // The masks follow the smallest header.
                if fields.size == 40 {
                    end += 12;
                }
                masked(bytes, fields.size, bits)?
            }
            (compression, bits) => {
                let text = format!("its compression is {compression} at {bits} bits a pixel");
                return Err(refused(ImageFormat::Bmp, text));
            }
        };
        let colour = if fields.size == 12 { 3 } else { 4 };
        let colours = match (fields.bits, fields.colours) {
            (bits @ (1 | 4 | 8), 0) => 1 << bits,
            (1 | 4 | 8, count) if count <= 65536 => count as usize,
            (1 | 4 | 8, count) => {
                return Err(refused(ImageFormat::Bmp, format!("its palette has {count} colours")));
            }
            _ => 0,
        };
        // Some writers give the offset of the palette.
        let offset = u32_at(bytes, 10).unwrap_or(0) as usize;
        let data = match offset {
            0 => end + colours * colour,
            offset if offset == FILE_HEADER + fields.size => offset + colours * colour,
            offset => offset,
        };
        Ok(Self {
            width: fields.width,
            height: fields.height,
            top_down: fields.top_down,
            coding,
            data,
            colours: (end, colours, colour),
        })
    }

    pub fn channels(&self) -> u32 {
        if matches!(self.coding, Coding::Bytes { alpha: true, .. }) { 4 } else { 3 }
    }

    pub fn palette(&self, bytes: &[u8]) -> ColourPalette {
        let (begin, count, size) = self.colours;
        let colours = bytes.get(begin..).unwrap_or_default().chunks_exact(size);
        ColourPalette::new(colours.take(count).map(|colour| [colour[2], colour[1], colour[0]]))
    }
}

impl BmpFields {
    /// Reads the fields; `None` if the file is truncated.
    fn read(bytes: &[u8]) -> Option<Result<Self, TransformError>> {
        let size = u32_at(bytes, FILE_HEADER)? as usize;
        let short = |at: usize| u16_at(bytes, FILE_HEADER + at);
        let long = |at: usize| u32_at(bytes, FILE_HEADER + at);
        Some(Ok(match size {
            12 => Self {
                size,
                width: u32::from(short(4)?),
                height: u32::from(short(6)?),
                top_down: false,
                bits: short(10)?,
                compression: 0,
                colours: 0,
            },
            40 | 52 | 56 | 64 | 108 | 124 => {
                let height = long(8)?;
                // Pillow treats only these heights as negative.
                let top_down = height >> 24 == 0xff;
                Self {
                    size,
                    width: long(4)?,
                    height: if top_down { height.wrapping_neg() } else { height },
                    top_down,
                    bits: short(14)?,
                    compression: long(16)?,
                    colours: long(32)?,
                }
            }
            _ => {
                let text = format!("its header has {size} bytes");
                return Some(Err(refused(ImageFormat::Bmp, text)));
            }
        }))
    }
}

/// Returns the coding of pixels with channel masks, which follow the smallest header.
fn masked(bytes: &[u8], header: usize, bits: u16) -> Result<Coding, TransformError> {
    let mask = |at: usize| {
        u32_at(bytes, FILE_HEADER + 40 + 4 * at).ok_or_else(|| cut_off(ImageFormat::Bmp))
    };
    let masks = [mask(0)?, mask(1)?, mask(2)?, if header >= 56 { mask(3)? } else { 0 }];
    let place = |mask: u32| (0..4).find(|at| mask == 0xff << (8 * at));
    match (bits, masks) {
        (16, [0xf800, 0x7e0, 0x1f, _]) => Ok(Coding::Words { green_bits: 6 }),
        (16, [0x7c00, 0x3e0, 0x1f, _]) => Ok(Coding::Words { green_bits: 5 }),
        (24, [0x00ff_0000, 0xff00, 0xff, _]) => {
            Ok(Coding::Bytes { size: 3, order: [2, 1, 0, 3], alpha: false })
        }
        (32, [0, 0, 0, 0]) => Ok(Coding::Bytes { size: 4, order: [2, 1, 0, 3], alpha: true }),
        (32, [r, g, b, a]) => match (place(r), place(g), place(b), place(a)) {
            (Some(r), Some(g), Some(b), Some(a)) => {
                Ok(Coding::Bytes { size: 4, order: [r, g, b, a], alpha: true })
            }
            (Some(r), Some(g), Some(b), None) if a == 0 => {
                Ok(Coding::Bytes { size: 4, order: [r, g, b, 3], alpha: false })
            }
            _ => Err(refused(ImageFormat::Bmp, "its channels are not whole bytes")),
        },
        _ => Err(refused(ImageFormat::Bmp, "its channel masks are unusual")),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

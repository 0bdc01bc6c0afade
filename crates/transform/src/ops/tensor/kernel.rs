//! The loops over an image.

use super::Tables;
use super::tables::Encoded;
use crate::image::Pixels;
use crate::ops::Flip;
use crate::step::Layout;

/// Writes a tensor that has been checked to fit.
pub(super) fn write(from: &Pixels, flip: Flip, tables: &Tables, layout: Layout, into: &mut [u8]) {
    match &tables.encoded {
        Encoded::One(tables) => look_up(from, flip, tables, layout, into, |n| [n]),
        Encoded::Two(tables) => look_up(from, flip, tables, layout, into, u16::to_ne_bytes),
        Encoded::Four(tables) => look_up(from, flip, tables, layout, into, u32::to_ne_bytes),
    }
}

fn look_up<T: Copy, const N: usize>(
    from: &Pixels,
    flip: Flip,
    tables: &[[T; 256]],
    layout: Layout,
    into: &mut [u8],
    bytes: impl Fn(T) -> [u8; N],
) {
    let (width, height) = (from.width as usize, from.height as usize);
    let channels = from.channels as usize;
    let into = into.as_chunks_mut::<N>().0;
    for (y, line) in from.bytes.chunks_exact(width * channels).enumerate() {
        let y = if flip.vertical { height - 1 - y } else { y };
        for channel in 0..channels {
            let table = &tables[channel.min(tables.len() - 1)];
            for (x, pixel) in line.chunks_exact(channels).enumerate() {
                let x = if flip.horizontal { width - 1 - x } else { x };
                let place = match layout {
                    Layout::Chw => (channel * height + y) * width + x,
                    Layout::Hwc => (y * width + x) * channels + channel,
                };
                into[place] = bytes(table[pixel[channel] as usize]);
            }
        }
    }
}

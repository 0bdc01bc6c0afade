//! The loops over an image.
//!
//! A row is done in runs of a few hundred pixels. The channels of a run are taken apart, and turned
//! round if the image is flipped, in memory that stays in the processor's first cache; then every
//! channel is converted on its own, which is a plain loop over bytes that compilers vectorise.

use super::Tables;
use super::tables::{Affine, Encoded};
use crate::image::Pixels;
use crate::ops::Flip;
use crate::ops::vectorised::vectorised;
use crate::step::Layout;

/// Pixels of a run.
const RUN: usize = 256;
/// Channels that are taken apart at once.
const MOST_CHANNELS: usize = 4;

/// Bytes of each channel of a run.
type Planes = [[u8; RUN]; MOST_CHANNELS];

/// Writes a tensor that has been checked to fit.
pub(super) fn write(from: &Pixels, flip: Flip, tables: &Tables, layout: Layout, into: &mut [u8]) {
    let (width, height) = (from.width as usize, from.height as usize);
    let channels = from.channels as usize;
    let number = tables.dtype().size();
    let mut planes = [[0; RUN]; MOST_CHANNELS];
    for (y, line) in from.bytes.chunks_exact(width * channels).enumerate() {
        let y = if flip.vertical { height - 1 - y } else { y };
        for (run, pixels) in line.chunks(RUN * channels).enumerate() {
            let count = pixels.len() / channels;
            let x = if flip.horizontal { width - run * RUN - count } else { run * RUN };
            take_apart(pixels, channels, flip.horizontal, &mut planes);
            for (channel, plane) in planes.iter().enumerate().take(channels) {
                let bytes = &plane[..count];
                match layout {
                    Layout::Chw => {
                        let start = ((channel * height + y) * width + x) * number;
                        let out = &mut into[start..start + count * number];
                        convert(bytes, tables, channel, out);
                    }
                    Layout::Hwc => {
                        let start = (y * width + x) * channels * number;
                        let out = &mut into[start..start + count * channels * number];
                        look_up_every(bytes, tables, channel, channels, out);
                    }
                }
            }
        }
    }
}

vectorised! {
    fn take_apart(pixels: &[u8], channels: usize, backwards: bool, planes: &mut Planes) {
        match channels {
            1 => planes[0][..pixels.len()].copy_from_slice(pixels),
            2 => split::<2>(pixels, planes),
            3 => split::<3>(pixels, planes),
            _ => split::<4>(pixels, planes),
        }
        if backwards {
            for plane in planes.iter_mut().take(channels) {
                plane[..pixels.len() / channels].reverse();
            }
        }
    }
}

#[inline]
fn split<const CHANNELS: usize>(pixels: &[u8], planes: &mut Planes) {
    let pixels = pixels.as_chunks::<CHANNELS>().0;
    let pixels = &pixels[..pixels.len().min(RUN)];
    for (x, pixel) in pixels.iter().enumerate() {
        for (plane, &byte) in planes.iter_mut().zip(pixel) {
            plane[x] = byte;
        }
    }
}

/// Writes the numbers of one channel side by side.
fn convert(bytes: &[u8], tables: &Tables, channel: usize, out: &mut [u8]) {
    if let Some(affine) = &tables.affine {
        compute(bytes, affine[channel.min(affine.len() - 1)], out);
        return;
    }
    look_up_every(bytes, tables, channel, 1, out);
}

vectorised! {
    fn compute(bytes: &[u8], affine: Affine, out: &mut [u8]) {
        for (&byte, out) in bytes.iter().zip(out.as_chunks_mut::<4>().0) {
            *out = affine.apply(f32::from(byte)).to_ne_bytes();
        }
    }
}

/// Writes the numbers of one channel in every `step`th place, from the channel's.
fn look_up_every(bytes: &[u8], tables: &Tables, channel: usize, step: usize, out: &mut [u8]) {
    let first = if step == 1 { 0 } else { channel };
    let table = channel.min(tables.channels() - 1);
    match &tables.encoded {
        Encoded::Same if step == 1 => out.copy_from_slice(bytes),
        Encoded::Same => {
            let places = out[first..].iter_mut().step_by(step);
            places.zip(bytes).for_each(|(out, &byte)| *out = byte);
        }
        Encoded::One(tables) => look_up(bytes, &tables[table], first, step, out, |n| [n]),
        Encoded::Two(tables) => look_up(bytes, &tables[table], first, step, out, u16::to_ne_bytes),
        Encoded::Four(tables) => look_up(bytes, &tables[table], first, step, out, u32::to_ne_bytes),
    }
}

fn look_up<T: Copy, const N: usize>(
    bytes: &[u8],
    table: &[T; 256],
    first: usize,
    step: usize,
    out: &mut [u8],
    encoded: impl Fn(T) -> [u8; N],
) {
    let out = &mut out.as_chunks_mut::<N>().0[first..];
    if step == 1 {
        for (out, &byte) in out.iter_mut().zip(bytes) {
            *out = encoded(table[byte as usize]);
        }
        return;
    }
    for (out, &byte) in out.iter_mut().step_by(step).zip(bytes) {
        *out = encoded(table[byte as usize]);
    }
}

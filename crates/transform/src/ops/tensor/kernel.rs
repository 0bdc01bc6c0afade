//! The loops over an image.
//!
//! A row is processed in runs of a few hundred pixels. The channels of a run are separated, and
//! reversed if the image is flipped, in memory that stays in the L1 cache. Then every channel is
//! converted separately, by a loop that compilers vectorise. In the HWC layout channels are not
//! separated.

use std::ops::Range;

use super::Tables;
use super::tables::{Affine, Encoded};
use crate::image::Pixels;
use crate::ops::Flip;
use crate::ops::crop::mirror;
use crate::ops::planes::{Planes, RUN, split};
use crate::ops::vectorised::vectorised;
use crate::step::AxisLayout;

/// The most channels.
const MOST_CHANNELS: usize = 4;

/// Numbers per step: a multiple of registers and of pixels with any number of channels.
const LANES: usize = 24;

/// Writes a tensor whose length was checked.
pub(super) fn write(
    from: &Pixels,
    flip: Flip,
    tables: &Tables,
    layout: AxisLayout,
    into: &mut [u8],
) {
    let (width, height) = (from.width as usize, from.height as usize);
    let channels = from.channels as usize;
    let number = tables.dtype().size();
    let mut planes = [[0; RUN]; MOST_CHANNELS];
    for (y, line) in from.bytes.chunks_exact(width * channels).enumerate() {
        let y = if flip.vertical { height - 1 - y } else { y };
        for (run, pixels) in line.chunks(RUN * channels).enumerate() {
            let count = pixels.len() / channels;
            let x = if flip.horizontal { width - run * RUN - count } else { run * RUN };
            if layout == AxisLayout::Hwc {
                let start = (y * width + x) * channels * number;
                let out = &mut into[start..start + pixels.len() * number];
                if flip.horizontal {
                    let turned = &mut planes.as_flattened_mut()[..pixels.len()];
                    turned.copy_from_slice(pixels);
                    mirror(turned, channels);
                    convert(turned, tables, 0..channels, out);
                } else {
                    convert(pixels, tables, 0..channels, out);
                }
                continue;
            }
            separate(pixels, channels, flip.horizontal, &mut planes);
            for (channel, plane) in planes.iter().enumerate().take(channels) {
                let start = ((channel * height + y) * width + x) * number;
                let out = &mut into[start..start + count * number];
                convert(&plane[..count], tables, channel..channel + 1, out);
            }
        }
    }
}

vectorised! {
    fn separate(
        pixels: &[u8],
        channels: usize,
        backwards: bool,
        planes: &mut Planes<MOST_CHANNELS>,
    ) {
        let [a, b, c, _] = &mut *planes;
        match channels {
            1 => a[..pixels.len()].copy_from_slice(pixels),
            2 => split(pixels.as_chunks().0, [a, b]),
            3 => split(pixels.as_chunks().0, [a, b, c]),
            _ => split(pixels.as_chunks().0, planes.each_mut()),
        }
        if backwards {
            for plane in planes.iter_mut().take(channels) {
                plane[..pixels.len() / channels].reverse();
            }
        }
    }
}

/// Converts bytes that belong to these channels in turn.
fn convert(bytes: &[u8], tables: &Tables, channels: Range<usize>, out: &mut [u8]) {
    if let Some(affine) = &tables.affine {
        let of = |channel: usize| affine[channel.min(affine.len() - 1)];
        match channels.len() {
            1 => compute(bytes, of(channels.start), out),
            count => {
                let lanes = std::array::from_fn(|lane| of(channels.start + lane % count));
                compute_in_turn(bytes, &lanes, out);
            }
        }
        return;
    }
    match &tables.encoded {
        Encoded::Same => out.copy_from_slice(bytes),
        Encoded::One(tables) => look_up(bytes, tables, channels, out, |number| [number]),
        Encoded::Two(tables) => look_up(bytes, tables, channels, out, u16::to_ne_bytes),
        Encoded::Four(tables) => look_up(bytes, tables, channels, out, u32::to_ne_bytes),
    }
}

vectorised! {
    fn compute(bytes: &[u8], affine: Affine, out: &mut [u8]) {
        for (&byte, out) in bytes.iter().zip(out.as_chunks_mut::<4>().0) {
            *out = affine.apply(f32::from(byte)).to_ne_bytes();
        }
    }
}

vectorised! {
    fn compute_in_turn(bytes: &[u8], lanes: &[Affine; LANES], out: &mut [u8]) {
        let scale = lanes.map(|lane| lane.scale);
        let mean = lanes.map(|lane| lane.mean);
        let std = lanes.map(|lane| lane.std);
        let inverse = lanes.map(|lane| lane.inverse);
        let apply = |lane: usize, byte: u8| {
            let (scale, mean, std) = (scale[lane], mean[lane], std[lane]);
            let affine = Affine { scale, mean, std, inverse: inverse[lane] };
            affine.apply(f32::from(byte)).to_ne_bytes()
        };
        let out = out.as_chunks_mut::<4>().0;
        let (groups, rest) = bytes.as_chunks::<LANES>();
        let (groups_out, rest_out) = out.as_chunks_mut::<LANES>();
        for (bytes, out) in groups.iter().zip(groups_out) {
            for lane in 0..LANES {
                out[lane] = apply(lane, bytes[lane]);
            }
        }
        for (lane, (&byte, out)) in rest.iter().zip(rest_out).enumerate() {
            *out = apply(lane, byte);
        }
    }
}

fn look_up<T: Copy, const N: usize>(
    bytes: &[u8],
    tables: &[[T; 256]],
    channels: Range<usize>,
    out: &mut [u8],
    encoded: impl Fn(T) -> [u8; N],
) {
    let out = out.as_chunks_mut::<N>().0;
    let table = |channel: usize| &tables[(channels.start + channel).min(tables.len() - 1)];
    match channels.len() {
        1 => look_up_pixels(bytes, [table(0)], out, encoded),
        2 => look_up_pixels(bytes, [0, 1].map(table), out, encoded),
        3 => look_up_pixels(bytes, [0, 1, 2].map(table), out, encoded),
        _ => look_up_pixels(bytes, [0, 1, 2, 3].map(table), out, encoded),
    }
}

fn look_up_pixels<T: Copy, const N: usize, const CHANNELS: usize>(
    bytes: &[u8],
    tables: [&[T; 256]; CHANNELS],
    out: &mut [[u8; N]],
    encoded: impl Fn(T) -> [u8; N],
) {
    let pixels = bytes.as_chunks::<CHANNELS>().0;
    for (pixel, out) in pixels.iter().zip(out.as_chunks_mut::<CHANNELS>().0) {
        for ((&byte, table), out) in pixel.iter().zip(tables).zip(out) {
            *out = encoded(table[byte as usize]);
        }
    }
}

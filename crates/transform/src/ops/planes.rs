//! Separates and joins the channels of pixels.
//!
//! Compilers vectorise loops over one channel, but not over pixels of three bytes. So channels are
//! separated in runs that stay in the L1 cache.

/// Pixels per run.
pub(super) const RUN: usize = 256;

/// The bytes of a run, channel by channel.
pub(super) type Planes<const CHANNELS: usize> = [[u8; RUN]; CHANNELS];

/// Separates the channels of at most [`RUN`] pixels.
#[inline]
pub(super) fn split<const CHANNELS: usize>(
    pixels: &[[u8; CHANNELS]],
    mut planes: [&mut [u8; RUN]; CHANNELS],
) {
    for (at, pixel) in pixels[..pixels.len().min(RUN)].iter().enumerate() {
        for (plane, &byte) in planes.iter_mut().zip(pixel) {
            plane[at] = byte;
        }
    }
}

/// Joins the channels of at most [`RUN`] pixels.
#[inline]
pub(super) fn join<const CHANNELS: usize>(
    planes: &Planes<CHANNELS>,
    pixels: &mut [[u8; CHANNELS]],
) {
    let count = pixels.len().min(RUN);
    for (at, pixel) in pixels[..count].iter_mut().enumerate() {
        for (plane, byte) in planes.iter().zip(pixel) {
            *byte = plane[at];
        }
    }
}

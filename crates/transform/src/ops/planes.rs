//! The channels of some pixels, taken apart and put together.
//!
//! Loops over one channel are vectorised, loops over pixels of three bytes are not. So pixels are
//! taken apart in runs that stay in the processor's first cache.

/// Pixels of a run.
pub(super) const RUN: usize = 256;

/// The bytes of a run, channel by channel.
pub(super) type Planes<const CHANNELS: usize> = [[u8; RUN]; CHANNELS];

/// Takes a run of at most [`RUN`] pixels apart.
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

/// Puts a run of at most [`RUN`] pixels together.
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

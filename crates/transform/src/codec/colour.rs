//! Converts a file's channels to the requested ones, in place. Written by hand for bit parity with
//! Pillow.

use crate::image::Pixels;
use crate::step::Mode;

/// Converts grey, grey with alpha, RGB or RGBA. Drops alpha, like Pillow's `convert`.
pub(super) fn to_mode(pixels: &mut Pixels, mode: Mode) {
    match (mode, pixels.channels) {
        (Mode::Unchanged, _) | (Mode::Rgb, 3) | (Mode::Gray, 1) => {}
        (Mode::Rgb, 1) => spread(pixels),
        (Mode::Rgb, 2) => {
            shrink(pixels, 1, |[grey, _]: [u8; 2], to| to[0] = grey);
            spread(pixels);
        }
        (Mode::Rgb, _) => {
            shrink(pixels, 3, |[r, g, b, _]: [u8; 4], to| to.copy_from_slice(&[r, g, b]));
        }
        (Mode::Gray, 2) => shrink(pixels, 1, |[grey, _]: [u8; 2], to| to[0] = grey),
        (Mode::Gray, 3) => shrink(pixels, 1, |[r, g, b]: [u8; 3], to| to[0] = luma(r, g, b)),
        (Mode::Gray, _) => shrink(pixels, 1, |[r, g, b, _]: [u8; 4], to| to[0] = luma(r, g, b)),
    }
}

/// Converts CMYK, which JPEGs store inverted, as Adobe does.
pub(super) fn cmyk_to_mode(pixels: &mut Pixels, mode: Mode) {
    if mode == Mode::Unchanged {
        pixels.bytes.iter_mut().for_each(|value| *value = 255 - *value);
        return;
    }
    shrink(pixels, 3, |[c, m, y, k]: [u8; 4], to| {
        to.copy_from_slice(&[c, m, y].map(|ink| k - scaled(255 - ink, k)));
    });
    to_mode(pixels, mode);
}

/// Returns Pillow's grey: the ITU-R 601 weights in 16 bits, rounded.
fn luma(r: u8, g: u8, b: u8) -> u8 {
    let sum = u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471;
    ((sum + 0x8000) >> 16) as u8
}

/// Returns `a * b / 255`, rounded, without a division.
fn scaled(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    (((product >> 8) + product) >> 8) as u8
}

/// Repeats grey three times.
fn spread(pixels: &mut Pixels) {
    let count = pixels.bytes.len();
    pixels.shape(pixels.width, pixels.height, 3);
    for at in (0..count).rev() {
        let grey = pixels.bytes[at];
        pixels.bytes[3 * at..3 * at + 3].fill(grey);
    }
}

/// Replaces every `FROM` channels by `to` channels, which are fewer.
fn shrink<const FROM: usize>(
    pixels: &mut Pixels,
    to: usize,
    mut one: impl FnMut([u8; FROM], &mut [u8]),
) {
    for at in 0..pixels.bytes.len() / FROM {
        let mut pixel = [0; FROM];
        pixel.copy_from_slice(&pixels.bytes[at * FROM..(at + 1) * FROM]);
        one(pixel, &mut pixels.bytes[at * to..(at + 1) * to]);
    }
    pixels.shape(pixels.width, pixels.height, to as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(channels: u32, bytes: &[u8], mode: Mode) -> Vec<u8> {
        let width = bytes.len() as u32 / channels;
        let mut pixels = Pixels { width, height: 1, channels, bytes: bytes.to_vec() };
        to_mode(&mut pixels, mode);
        assert_eq!(pixels.bytes.len(), (width * pixels.channels) as usize);
        pixels.bytes
    }

    #[test]
    fn channels_are_converted_to_each_mode() {
        assert_eq!(converted(1, &[7, 9], Mode::Rgb), [7, 7, 7, 9, 9, 9]);
        assert_eq!(converted(2, &[7, 0, 9, 255], Mode::Rgb), [7, 7, 7, 9, 9, 9]);
        assert_eq!(converted(4, &[1, 2, 3, 0, 5, 6, 7, 8], Mode::Rgb), [1, 2, 3, 5, 6, 7]);
        assert_eq!(converted(2, &[7, 0, 9, 255], Mode::Gray), [7, 9]);
        assert_eq!(converted(3, &[255, 0, 0, 0, 255, 0, 0, 0, 255], Mode::Gray), [76, 150, 29]);
        assert_eq!(converted(4, &[255, 255, 255, 0], Mode::Gray), [255]);
        for channels in 1..=4 {
            assert_eq!(converted(channels, &[3; 12], Mode::Unchanged), [3; 12]);
        }
    }

    #[test]
    fn scaling_by_shifts_equals_the_rounded_quotient() {
        for (a, b) in (0..=255_u8).flat_map(|a| (0..=255_u8).map(move |b| (a, b))) {
            let exact = (f64::from(a) * f64::from(b) / 255.0).round();
            assert_eq!(f64::from(scaled(a, b)), exact, "{a} * {b}");
        }
    }
}

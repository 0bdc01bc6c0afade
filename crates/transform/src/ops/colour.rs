//! Brightness, contrast, saturation and hue.
//!
//! Written by hand for bit parity with torchvision's arithmetic for uint8 tensors in `f32`: blended
//! colours are truncated, not rounded; grey is `0.2989 r + 0.587 g + 0.114 b`, truncated too; hue
//! rotates in HSV.

use crate::error::TransformError;
use crate::image::Pixels;
use crate::ops::planes::{RUN, join, split};
use crate::ops::vectorised::vectorised;

/// Makes an image brighter (above 1) or darker; 0 is black.
///
/// # Errors
/// If the factor is negative, or the image has neither 1 nor 3 channels.
pub fn brightness(pixels: &mut Pixels, factor: f64) -> Result<(), TransformError> {
    check(pixels, factor >= 0.0, "brightness", factor)?;
    let table = table(|value| value * factor as f32);
    for value in &mut pixels.bytes {
        *value = table[*value as usize];
    }
    Ok(())
}

/// Moves colours away from the mean grey of the image (above 1) or towards it.
///
/// # Errors
/// As for [`brightness`].
pub fn contrast(pixels: &mut Pixels, factor: f64) -> Result<(), TransformError> {
    check(pixels, factor >= 0.0, "contrast", factor)?;
    if pixels.bytes.is_empty() {
        return Ok(());
    }
    let (sum, count) = match pixels.channels {
        3 => {
            let pixels = pixels.bytes.as_chunks::<3>().0;
            (sum_of_greys(pixels), pixels.len())
        }
        _ => (pixels.bytes.iter().map(|&value| value as u64).sum(), pixels.bytes.len()),
    };
    let mean = (sum as f64 / count as f64) as f32;
    let table = table(|value| blend(value, mean, factor as f32, (1.0 - factor) as f32));
    for value in &mut pixels.bytes {
        *value = table[*value as usize];
    }
    Ok(())
}

/// Moves colours away from grey (above 1) or towards it.
///
/// # Errors
/// As for [`brightness`].
pub fn saturation(pixels: &mut Pixels, factor: f64) -> Result<(), TransformError> {
    check(pixels, factor >= 0.0, "saturation", factor)?;
    if pixels.channels != 3 {
        return Ok(());
    }
    saturate(pixels.bytes.as_chunks_mut::<3>().0, factor);
    Ok(())
}

/// Rotates the hue by `factor` of a full turn, from -0.5 to 0.5.
///
/// # Errors
/// If the factor is out of range, or the image has neither 1 nor 3 channels.
pub fn hue(pixels: &mut Pixels, factor: f64) -> Result<(), TransformError> {
    check(pixels, (-0.5..=0.5).contains(&factor), "hue", factor)?;
    if pixels.channels != 3 {
        return Ok(());
    }
    turn(pixels.bytes.as_chunks_mut::<3>().0, factor);
    Ok(())
}

vectorised! {
    fn sum_of_greys(pixels: &[[u8; 3]]) -> u64 {
        let mut planes = [[0; RUN]; 3];
        let mut sum = 0;
        for pixels in pixels.chunks(RUN) {
            split(pixels, planes.each_mut());
            let count = pixels.len();
            let [r, g, b] = planes.each_ref().map(|plane| &plane[..count]);
            let run = (0..count).map(|at| grey([r[at], g[at], b[at]].map(f32::from)) as i32);
            sum += u64::from(run.sum::<i32>().cast_unsigned());
        }
        sum
    }
}

vectorised! {
    fn saturate(pixels: &mut [[u8; 3]], factor: f64) {
        let (own, rest) = (factor as f32, (1.0 - factor) as f32);
        let mut planes = [[0; RUN]; 3];
        for pixels in pixels.chunks_mut(RUN) {
            split(pixels, planes.each_mut());
            let [r, g, b] = &mut planes;
            for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
                let rgb = [*r, *g, *b].map(f32::from);
                let grey = grey(rgb);
                [*r, *g, *b] = rgb.map(|value| byte(blend(value, grey, own, rest)));
            }
            join(&planes, pixels);
        }
    }
}

vectorised! {
    fn turn(pixels: &mut [[u8; 3]], factor: f64) {
        let (unit, factor) = ((1.0 / 255.0) as f32, factor as f32);
        let mut planes = [[0; RUN]; 3];
        for pixels in pixels.chunks_mut(RUN) {
            split(pixels, planes.each_mut());
            let [r, g, b] = &mut planes;
            for ((r, g), b) in r.iter_mut().zip(g).zip(b) {
                let [h, s, v] = to_hsv([*r, *g, *b].map(|value| f32::from(value) * unit));
                let rgb = to_rgb([within_one(h + factor), s, v]);
                // torchvision's conversion from [0, 1] to bytes.
                [*r, *g, *b] = rgb.map(|value| byte(value * 255.999));
            }
            join(&planes, pixels);
        }
    }
}

fn check(pixels: &Pixels, valid: bool, name: &str, factor: f64) -> Result<(), TransformError> {
    if !valid {
        return Err(TransformError(format!("{factor} is not a valid factor for {name}")));
    }
    if !matches!(pixels.channels, 1 | 3) {
        return Err(TransformError(format!(
            "it has {} channels, but {name} needs 1 or 3; decode to RGB or GRAY",
            pixels.channels
        )));
    }
    Ok(())
}

fn table(function: impl Fn(f32) -> f32) -> [u8; 256] {
    std::array::from_fn(|value| byte(function(value as f32)))
}

/// Truncates to a byte.
#[inline]
fn byte(value: f32) -> u8 {
    value.clamp(0.0, 255.0) as i32 as u8
}

/// Computes the truncated grey.
#[inline]
fn grey([r, g, b]: [f32; 3]) -> f32 {
    b.mul_add(0.114, g.mul_add(0.587, r * 0.2989)).floor()
}

#[inline]
fn blend(value: f32, other: f32, ratio: f32, rest: f32) -> f32 {
    other.mul_add(rest, value * ratio)
}

/// Converts colours in `[0, 1]` to hue (in turns), saturation and value.
#[inline]
fn to_hsv([r, g, b]: [f32; 3]) -> [f32; 3] {
    let most = r.max(g).max(b);
    let range = most - r.min(g).min(b);
    let grey = range == 0.0;
    let divisor = if grey { 1.0 } else { range };
    let [rc, gc, bc] = [r, g, b].map(|value| (most - value) / divisor);
    let from_green = if most == g { rc + 2.0 - bc } else { gc + 4.0 - rc };
    let sixths = if most == r { bc - gc } else { from_green };
    let hue = within_one(sixths * (1.0 / 6.0) as f32 + 1.0);
    [hue, range / if grey { 1.0 } else { most }, most]
}

#[inline]
fn to_rgb([h, s, v]: [f32; 3]) -> [f32; 3] {
    let sixths = h * 6.0;
    let sector = sixths.floor();
    let grown = s * (sixths - sector);
    let q = ((1.0 - grown) * v).clamp(0.0, 1.0);
    let t = ((grown + (1.0 - s)) * v).clamp(0.0, 1.0);
    let p = ((1.0 - s) * v).clamp(0.0, 1.0);
    // A hue rounded up to a full turn is red again.
    let sector = if sector >= 6.0 { 0.0 } else { sector };
    let choose = |by_sector: [f32; 6]| {
        let mut chosen = by_sector[0];
        for (number, &value) in by_sector.iter().enumerate().skip(1) {
            chosen = if sector == number as f32 { value } else { chosen };
        }
        chosen
    };
    [choose([v, q, p, p, t, v]), choose([t, v, v, q, p, p]), choose([p, p, t, v, v, q])]
}

/// Returns the remainder of a number from -1 to 2 modulo 1, like torch.
#[inline]
fn within_one(value: f32) -> f32 {
    let down = if value >= 1.0 { value - 1.0 } else { value };
    if down < 0.0 { down + 1.0 } else { down }
}

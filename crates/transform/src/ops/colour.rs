//! Brightness, contrast, saturation and hue.
//!
//! The arithmetic is torchvision's for uint8 tensors, operation for operation in `f32`: blended
//! colours are cut off to whole numbers, not rounded; grey is `0.2989 r + 0.587 g + 0.114 b`, cut
//! off too; hue turns in HSV.

use crate::error::TransformError;
use crate::image::Pixels;

/// Makes an image brighter (above 1) or darker; 0 is black.
pub fn brightness(pixels: &mut Pixels, factor: f64) -> Result<(), TransformError> {
    check(pixels, factor >= 0.0, "brightness", factor)?;
    let table = table(|value| value * factor as f32);
    for value in &mut pixels.bytes {
        *value = table[*value as usize];
    }
    Ok(())
}

/// Moves colours away from the mean grey of the image (above 1) or towards it (at 0).
pub fn contrast(pixels: &mut Pixels, factor: f64) -> Result<(), TransformError> {
    check(pixels, factor >= 0.0, "contrast", factor)?;
    if pixels.bytes.is_empty() {
        return Ok(());
    }
    let (sum, count) = match pixels.channels {
        3 => {
            let greys = pixels.bytes.as_chunks::<3>().0;
            (greys.iter().map(|&rgb| grey(rgb) as u64).sum::<u64>(), greys.len())
        }
        _ => (pixels.bytes.iter().map(|&value| value as u64).sum(), pixels.bytes.len()),
    };
    let mean = (sum as f64 / count as f64) as f32;
    let table = table(|value| blend(value, mean, factor));
    for value in &mut pixels.bytes {
        *value = table[*value as usize];
    }
    Ok(())
}

/// Moves colours away from grey (above 1) or towards it (at 0).
pub fn saturation(pixels: &mut Pixels, factor: f64) -> Result<(), TransformError> {
    check(pixels, factor >= 0.0, "saturation", factor)?;
    if pixels.channels != 3 {
        return Ok(());
    }
    for rgb in pixels.bytes.as_chunks_mut::<3>().0 {
        let grey = grey(*rgb);
        *rgb = rgb.map(|value| byte(blend(value as f32, grey, factor)));
    }
    Ok(())
}

/// Turns the colour wheel by `factor` of a whole turn, from -0.5 to 0.5.
pub fn hue(pixels: &mut Pixels, factor: f64) -> Result<(), TransformError> {
    check(pixels, (-0.5..=0.5).contains(&factor), "hue", factor)?;
    if pixels.channels != 3 {
        return Ok(());
    }
    let unit = (1.0 / 255.0) as f32;
    for rgb in pixels.bytes.as_chunks_mut::<3>().0 {
        let [h, s, v] = to_hsv(rgb.map(|value| value as f32 * unit));
        let turned = remainder_one(h + factor as f32);
        // torchvision's way from [0, 1] to bytes: nearly 256 parts of the same size.
        *rgb = to_rgb([turned, s, v]).map(|value| (value * 255.999_f32) as u8);
    }
    Ok(())
}

fn check(pixels: &Pixels, valid: bool, name: &str, factor: f64) -> Result<(), TransformError> {
    if !valid {
        return Err(TransformError(format!(
            "{factor} is no factor of {name}; take one that torchvision takes"
        )));
    }
    if !matches!(pixels.channels, 1 | 3) {
        return Err(TransformError(format!(
            "it has {} channels, where {name} is of images with 1 or 3; decode to RGB or GRAY",
            pixels.channels
        )));
    }
    Ok(())
}

fn table(function: impl Fn(f32) -> f32) -> [u8; 256] {
    std::array::from_fn(|value| byte(function(value as f32)))
}

/// Cut off, not rounded.
fn byte(value: f32) -> u8 {
    value.clamp(0.0, 255.0) as u8
}

fn grey([r, g, b]: [u8; 3]) -> f32 {
    let red = r as f32 * 0.2989;
    (b as f32).mul_add(0.114, (g as f32).mul_add(0.587, red)).floor()
}

fn blend(value: f32, other: f32, ratio: f64) -> f32 {
    other.mul_add((1.0 - ratio) as f32, value * ratio as f32)
}

fn to_hsv([r, g, b]: [f32; 3]) -> [f32; 3] {
    let most = r.max(g).max(b);
    let least = r.min(g).min(b);
    if most == least {
        return [0.0, 0.0, most];
    }
    let range = most - least;
    let [rc, gc, bc] = [r, g, b].map(|value| (most - value) / range);
    let sixths = if most == r {
        bc - gc
    } else if most == g {
        rc + 2.0 - bc
    } else {
        gc + 4.0 - rc
    };
    [(sixths * (1.0 / 6.0) as f32 + 1.0) % 1.0, range / most, most]
}

fn to_rgb([h, s, v]: [f32; 3]) -> [f32; 3] {
    let sixths = h * 6.0;
    let sector = sixths.floor();
    let within = sixths - sector;
    let grown = s * within;
    let q = ((1.0 - grown) * v).clamp(0.0, 1.0);
    let t = ((grown + (1.0 - s)) * v).clamp(0.0, 1.0);
    let p = ((1.0 - s) * v).clamp(0.0, 1.0);
    match sector as i32 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}

/// Of the sign of the divisor, as Python's and torch's.
fn remainder_one(value: f32) -> f32 {
    let rest = value % 1.0;
    if rest < 0.0 { rest + 1.0 } else { rest }
}

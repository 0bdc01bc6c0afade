//! Image sizes by torchvision's rules.
//!
//! Sizes are `(width, height)`. Rounding is torchvision's: floats are divided and rounded to even
//! where it does.

use crate::image::Rect;
use crate::step::Size;

/// Left, top, right, bottom.
pub type Padding = [u32; 4];

impl Size {
    /// Returns the size of a crop. One extent means a square.
    pub fn of_crop(&self) -> (u32, u32) {
        match self.0.as_slice() {
            &[height, width, ..] => (width, height),
            &[side] => (side, side),
            [] => (0, 0),
        }
    }
}

/// Returns the size after `Resize`. One extent is the shorter side; the longer one keeps the ratio,
/// up to `longest`.
pub fn resized((width, height): (u32, u32), size: &Size, longest: Option<u32>) -> (u32, u32) {
    let &[wanted] = size.0.as_slice() else { return size.of_crop() };
    let (short, long) = (width.min(height), width.max(height));
    // As Python divides: in floats, truncated.
    let scaled = |a: u32, b: u32, by: u32| (u64::from(a) * u64::from(b)) as f64 / f64::from(by);
    let (mut new_short, mut new_long) = (wanted, scaled(wanted, long, short) as u32);
    if let Some(longest) = longest.filter(|&longest| new_long > longest) {
        // torch refuses an image without rows; here a thin image keeps one.
        new_short = (scaled(longest, new_short, new_long) as u32).max(1);
        new_long = longest;
    }
    if width <= height { (new_short, new_long) } else { (new_long, new_short) }
}

pub fn padded((width, height): (u32, u32), [left, top, right, bottom]: Padding) -> (u32, u32) {
    (
        width.saturating_add(left).saturating_add(right),
        height.saturating_add(top).saturating_add(bottom),
    )
}

/// Returns what `CenterCrop` does: crop the middle, then pad. torchvision pads first, which has the
/// same result and takes more memory.
pub fn center_crop((width, height): (u32, u32), wanted: (u32, u32)) -> (Rect, Padding) {
    let (missing_x, missing_y) = (wanted.0.saturating_sub(width), wanted.1.saturating_sub(height));
    let padding = [missing_x / 2, missing_y / 2, missing_x.div_ceil(2), missing_y.div_ceil(2)];
    let rect = Rect {
        left: half_to_even(width.saturating_sub(wanted.0)),
        top: half_to_even(height.saturating_sub(wanted.1)),
        width: width.min(wanted.0),
        height: height.min(wanted.1),
    };
    (rect, padding)
}

/// Returns the half, rounded like Python's `round`.
fn half_to_even(extent: u32) -> u32 {
    (f64::from(extent) / 2.0).round_ties_even() as u32
}

/// Returns how `RandomCrop` pads an image of this size.
pub fn crop_padding(
    size: (u32, u32),
    wanted: (u32, u32),
    padding: Option<Padding>,
    pad_if_needed: bool,
) -> Padding {
    let mut padding = padding.unwrap_or_default();
    if pad_if_needed {
        let (width, height) = padded(size, padding);
        // On both sides, like torchvision: the result may be larger than needed.
        let (x, y) = (wanted.0.saturating_sub(width), wanted.1.saturating_sub(height));
        for (extent, more) in padding.iter_mut().zip([x, y, x, y]) {
            *extent = extent.saturating_add(more);
        }
    }
    padding
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shorter_side_becomes_the_size() {
        let size = Size(vec![256]);
        assert_eq!(resized((500, 375), &size, None), (341, 256));
        assert_eq!(resized((375, 500), &size, None), (256, 341));
        assert_eq!(resized((500, 375), &size, Some(300)), (300, 225));
        assert_eq!(resized((9000, 3), &Size(vec![4]), Some(10)), (10, 1));
        assert_eq!(resized((500, 375), &Size(vec![10, 20]), None), (20, 10));
    }

    #[test]
    fn the_middle_is_rounded_to_even_and_small_images_are_padded() {
        let (rect, padding) = center_crop((341, 256), (224, 224));
        // 117 / 2 = 58.5, which Python rounds to 58.
        assert_eq!((padding, rect.left, rect.top), ([0; 4], 58, 16));
        assert_eq!(center_crop((7, 10), (4, 10)).0.left, 2);
        let (rect, padding) = center_crop((5, 300), (8, 200));
        assert_eq!(rect, Rect { left: 0, top: 50, width: 5, height: 200 });
        assert_eq!(padding, [1, 0, 2, 0]);
    }

    #[test]
    fn padding_if_needed_pads_both_sides() {
        assert_eq!(crop_padding((30, 40), (32, 32), None, true), [2, 0, 2, 0]);
        assert_eq!(crop_padding((30, 40), (32, 50), Some([1, 1, 1, 1]), true), [1, 9, 1, 9]);
        assert_eq!(crop_padding((30, 40), (32, 50), None, false), [0; 4]);
    }
}

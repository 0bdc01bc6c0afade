//! Decoding at a fraction of the size.
//!
//! A JPEG decoder can compute blocks of 8 x 8 pixels as 4 x 4, 2 x 2 or 1, in less time. If the
//! image is then resized to an even smaller size, little is lost: the exact shape of the filter,
//! and the part is rounded to pixels of the smaller image. So this is an option (`dct_scaling`).

use crate::image::Rect;
use crate::ops::resize::Resize;
use crate::step::Interpolation;

/// Returns the factor to shrink an image by before a resize, and the remaining resize; `None` if it
/// cannot be shrunk.
pub fn of(resize: &Resize) -> Option<(u32, Resize)> {
    let Resize { part, width, height, interpolation, antialias, .. } = *resize;
    // Other filters read single pixels of the full image.
    if !antialias || interpolation == Interpolation::Nearest || width == 0 || height == 0 {
        return None;
    }
    let fits = |shrink: &u32| part.width / shrink >= width && part.height / shrink >= height;
    let shrink = [8, 4, 2].into_iter().find(fits)?;
    let (left, right) = shrunk(part.left, part.width, shrink);
    let (top, bottom) = shrunk(part.top, part.height, shrink);
    let part = Rect { left, top, width: right - left, height: bottom - top };
    Some((shrink, Resize { part, ..*resize }))
}

/// Returns the range of the nearest pixels after shrinking; at least one.
fn shrunk(first: u32, count: u32, shrink: u32) -> (u32, u32) {
    let nearest = |place: u32| (place + shrink / 2) / shrink;
    let (start, end) = (nearest(first), nearest(first + count));
    (start, end.max(start + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resize(part: Rect, width: u32, height: u32) -> Resize {
        let window = Rect::whole(width, height);
        let interpolation = Interpolation::Bilinear;
        Resize { part, width, height, window, interpolation, antialias: true }
    }

    #[test]
    fn only_an_image_that_becomes_half_as_large_is_shrunk() {
        let part = Rect { left: 10, top: 21, width: 447, height: 500 };
        assert_eq!(of(&resize(part, 224, 224)), None);
        let part = Rect { width: 448, ..part };
        let (shrink, left) = of(&resize(part, 224, 224)).unwrap();
        assert_eq!(shrink, 2);
        assert_eq!(left.part, Rect { left: 5, top: 11, width: 224, height: 250 });
        assert_eq!(of(&resize(Rect::whole(4000, 3000), 224, 224)).unwrap().0, 8);
        let sharp = Resize { antialias: false, ..resize(part, 100, 100) };
        assert_eq!(of(&sharp), None);
    }
}

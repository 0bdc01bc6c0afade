//! EXIF orientations.
//!
//! A file has *stored* pixels, in the order of the sensor; the *displayed* image is rotated. All
//! eight orientations are a combination of a transposition and two mirrors.

use crate::image::{Pixels, Rect};

/// How stored pixels become displayed ones: mirrored, then transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orientation {
    mirror_x: bool,
    mirror_y: bool,
    transpose: bool,
}

impl Orientation {
    /// No change.
    pub const UPRIGHT: Self = Self { mirror_x: false, mirror_y: false, transpose: false };

    /// Returns the orientation of an EXIF number, 1 to 8.
    pub const fn from_exif(number: u32) -> Option<Self> {
        let (mirror_x, mirror_y, transpose) = match number {
            1 => (false, false, false),
            2 => (true, false, false),
            3 => (true, true, false),
            4 => (false, true, false),
            5 => (false, false, true),
            6 => (false, true, true),
            7 => (true, true, true),
            8 => (true, false, true),
            _ => return None,
        };
        Some(Self { mirror_x, mirror_y, transpose })
    }

    /// Returns whether width and height are swapped.
    pub const fn swaps_sides(self) -> bool {
        self.transpose
    }

    /// Maps a part of the displayed image to a file of this size, which must contain it.
    pub(super) fn to_stored(self, displayed: Rect, width: u32, height: u32) -> Rect {
        self.mirror(if self.transpose { transposed(displayed) } else { displayed }, width, height)
    }

    /// Maps a part of a file of this size to the displayed image: the inverse of
    /// [`Self::to_stored`].
    pub(super) fn to_displayed(self, stored: Rect, width: u32, height: u32) -> Rect {
        let mirrored = self.mirror(stored, width, height);
        if self.transpose { transposed(mirrored) } else { mirrored }
    }

    fn mirror(self, part: Rect, width: u32, height: u32) -> Rect {
        let left = if self.mirror_x { width - part.left - part.width } else { part.left };
        let top = if self.mirror_y { height - part.top - part.height } else { part.top };
        Rect { left, top, ..part }
    }

    /// Rotates pixels.
    pub(super) fn turn(self, stored: &Pixels, into: &mut Pixels) {
        let (width, height) = (stored.width as usize, stored.height as usize);
        if self.transpose {
            into.shape(stored.height, stored.width, stored.channels);
        } else {
            into.shape(stored.width, stored.height, stored.channels);
        }
        let channels = stored.channels as usize;
        let row = into.width as usize * channels;
        if row == 0 {
            return;
        }
        for (y, pixels) in into.bytes.chunks_exact_mut(row).enumerate() {
            for (x, pixel) in pixels.chunks_exact_mut(channels).enumerate() {
                let (x, y) = if self.transpose { (y, x) } else { (x, y) };
                let x = if self.mirror_x { width - 1 - x } else { x };
                let y = if self.mirror_y { height - 1 - y } else { y };
                let at = (y * width + x) * channels;
                pixel.copy_from_slice(&stored.bytes[at..at + channels]);
            }
        }
    }
}

const fn transposed(part: Rect) -> Rect {
    Rect { left: part.top, top: part.left, width: part.height, height: part.width }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn crop(from: &Pixels, part: Rect) -> Pixels {
        let mut into = Pixels::default();
        into.shape(part.width, part.height, 1);
        for y in 0..part.height {
            for x in 0..part.width {
                into.bytes[(y * part.width + x) as usize] =
                    from.bytes[((part.top + y) * from.width + part.left + x) as usize];
            }
        }
        into
    }

    fn turned(orientation: Orientation, stored: &Pixels) -> Pixels {
        let mut into = Pixels::default();
        orientation.turn(stored, &mut into);
        into
    }

    #[test]
    fn each_exif_number_has_its_orientation() {
        let stored = Pixels { width: 3, height: 2, channels: 1, bytes: b"abcdef".to_vec() };
        let seen = [
            (1, 3, "abcdef"),
            (2, 3, "cbafed"),
            (3, 3, "fedcba"),
            (4, 3, "defabc"),
            (5, 2, "adbecf"),
            (6, 2, "daebfc"),
            (7, 2, "fcebda"),
            (8, 2, "cfbead"),
        ];
        for (number, width, bytes) in seen {
            let pixels = turned(Orientation::from_exif(number).unwrap(), &stored);
            assert_eq!((pixels.width, pixels.height), (width, 6 / width), "{number}");
            assert_eq!(pixels.bytes, bytes.as_bytes(), "{number}");
        }
        assert_eq!(Orientation::from_exif(0), None);
        assert_eq!(Orientation::from_exif(9), None);
    }

    proptest! {
        #[test]
        fn a_part_of_the_displayed_image_is_the_rotated_stored_part(
            number in 1..=8_u32,
            (width, height) in (1..9_u32, 1..9_u32),
            corners in any::<[u32; 4]>(),
        ) {
            let orientation = Orientation::from_exif(number).unwrap();
            let bytes = (0..(width * height) as u8).collect();
            let stored = Pixels { width, height, channels: 1, bytes };
            let seen = turned(orientation, &stored);
            let (left, top) = (corners[0] % seen.width, corners[1] % seen.height);
            let part = Rect {
                left,
                top,
                width: 1 + corners[2] % (seen.width - left),
                height: 1 + corners[3] % (seen.height - top),
            };
            let there = orientation.to_stored(part, width, height);
            prop_assert_eq!(orientation.to_displayed(there, width, height), part);
            prop_assert_eq!(turned(orientation, &crop(&stored, there)), crop(&seen, part));
        }
    }
}

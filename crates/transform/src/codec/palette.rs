//! Colours by number.

use crate::image::Pixels;

/// The colours of a file.
pub(super) struct Palette([[u8; 3]; 256]);

impl Palette {
    /// The colours that a file gives to the first numbers. As in Pillow, others are black; but if the
    /// file has none, or greys that are equal to their numbers, they are greys as well.
    pub fn new(colours: impl Iterator<Item = [u8; 3]>) -> Self {
        let mut all: [[u8; 3]; 256] = std::array::from_fn(|at| [at as u8; 3]);
        let mut count = 0;
        let mut colourful = false;
        for (place, colour) in all.iter_mut().zip(colours) {
            colourful |= *place != colour;
            *place = colour;
            count += 1;
        }
        if colourful {
            all[count..].fill([0; 3]);
        }
        Self(all)
    }

    /// Replaces numbers (one channel) by their colours.
    pub fn look_up(&self, pixels: &mut Pixels) {
        let count = pixels.bytes.len();
        pixels.shape(pixels.width, pixels.height, 3);
        // From the end, so that nothing is overwritten before it is read.
        for at in (0..count).rev() {
            let colour = self.0[usize::from(pixels.bytes[at])];
            pixels.bytes[3 * at..3 * at + 3].copy_from_slice(&colour);
        }
    }
}

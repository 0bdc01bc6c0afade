//! Colour palettes.

use crate::image::Pixels;

/// The palette of a file.
pub(super) struct ColourPalette([[u8; 3]; 256]);

impl ColourPalette {
    /// Creates a palette of a file's colours for the first indices. As in Pillow, the others are
    /// black, or greys if all of the file's colours are the greys of their indices.
    pub fn new(colours: impl Iterator<Item = [u8; 3]>) -> Self {
        let mut all: [[u8; 3]; 256] = std::array::from_fn(|at| [at as u8; 3]);
        let mut count = 0;
        let mut colourful = false;
        for (entry, colour) in all.iter_mut().zip(colours) {
            colourful |= *entry != colour;
            *entry = colour;
            count += 1;
        }
        if colourful {
            all[count..].fill([0; 3]);
        }
        Self(all)
    }

    /// Replaces indices (one channel) by their colours.
    pub fn look_up(&self, pixels: &mut Pixels) {
        let count = pixels.bytes.len();
        pixels.shape(pixels.width, pixels.height, 3);
        // Backwards, because each index becomes three bytes.
        for at in (0..count).rev() {
            let colour = self.0[usize::from(pixels.bytes[at])];
            pixels.bytes[3 * at..3 * at + 3].copy_from_slice(&colour);
        }
    }
}

//! Pixels in memory.

/// A part of an image, in pixels from its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    /// The first column.
    pub left: u32,
    /// The first row.
    pub top: u32,
    /// The number of columns.
    pub width: u32,
    /// The number of rows.
    pub height: u32,
}

impl Rect {
    /// Returns the whole of an image.
    pub const fn whole(width: u32, height: u32) -> Self {
        Self { left: 0, top: 0, width, height }
    }
}

/// An image of bytes, height x width x channels. Its memory is reused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pixels {
    /// The number of columns.
    pub width: u32,
    /// The number of rows.
    pub height: u32,
    /// Bytes per pixel.
    pub channels: u32,
    /// Exactly `width * height * channels`.
    pub bytes: Vec<u8>,
}

impl Pixels {
    /// Resizes the memory for an image of this shape. Its contents are unspecified.
    pub fn shape(&mut self, width: u32, height: u32, channels: u32) {
        self.width = width;
        self.height = height;
        self.channels = channels;
        self.bytes.resize(width as usize * height as usize * channels as usize, 0);
    }
}

//! Pixels in memory.

/// A part of an image, in pixels from its upper left corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rect {
    pub left: u32,
    pub top: u32,
    pub width: u32,
    pub height: u32,
}

impl Rect {
    /// All of an image.
    pub const fn whole(width: u32, height: u32) -> Self {
        Self { left: 0, top: 0, width, height }
    }
}

/// An image of bytes: row after row, the channels of a pixel side by side. Its memory is used
/// again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pixels {
    pub width: u32,
    pub height: u32,
    pub channels: u32,
    /// Exactly `width * height * channels`.
    pub bytes: Vec<u8>,
}

impl Pixels {
    /// Makes room for an image of this shape. What is in it is whatever was there before.
    pub fn shape(&mut self, width: u32, height: u32, channels: u32) {
        self.width = width;
        self.height = height;
        self.channels = channels;
        self.bytes.resize(width as usize * height as usize * channels as usize, 0);
    }
}

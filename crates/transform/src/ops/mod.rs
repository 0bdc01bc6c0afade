//! Operations on pixels.
//!
//! Every operation has the result of `torchvision.transforms.v2` for uint8 images;
//! `tests/golden.rs` compares them with torchvision's pixels. They work on [`Pixels`], whose memory
//! is reused, so that a thread allocates nothing once it has seen a large sample.
//!
//! The hot path of a training is [`resize`] and [`tensor::write()`], which flips, normalises and
//! lays out the pixels in one pass into the batch.

pub mod colour;
mod crop;
mod pad;
mod planes;
pub mod resize;
pub mod tensor;
mod vectorised;

pub use crop::{crop, flip};
pub use pad::pad;

use crate::error::TransformError;
use crate::image::{Pixels, Rect};

/// Which sides are swapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flip {
    /// Left and right.
    pub horizontal: bool,
    /// Top and bottom.
    pub vertical: bool,
}

/// Checks that the image contains a part.
fn check_part(from: &Pixels, part: Rect) -> Result<(), TransformError> {
    let within = |start: u32, length: u32, all: u32| {
        length > 0 && start.checked_add(length).is_some_and(|end| end <= all)
    };
    if within(part.left, part.width, from.width) && within(part.top, part.height, from.height) {
        return Ok(());
    }
    let Rect { left, top, width, height } = part;
    Err(TransformError(format!(
        "the part of {width}x{height} pixels at ({left}, {top}) is not within the image of {}x{}",
        from.width, from.height
    )))
}

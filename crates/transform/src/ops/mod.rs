//! What is done to pixels.
//!
//! Every operation gives the pixels that `torchvision.transforms.v2` gives for a uint8 image;
//! `tests/golden.rs` holds them against a real torchvision. They work on [`Pixels`], whose memory
//! is used again, so that nothing is allocated for a sample once a thread has seen a large one.
//!
//! The hot path of a training is [`resize`] and then [`tensor::write`], which flips, normalises
//! and lays out in one pass over the pixels, straight into the batch. The rest is for chains that
//! ask for it.

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

/// Which sides change places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flip {
    pub horizontal: bool,
    pub vertical: bool,
}

/// Whether there is such a part.
fn check_part(from: &Pixels, part: Rect) -> Result<(), TransformError> {
    let within = |start: u32, length: u32, all: u32| {
        length > 0 && start.checked_add(length).is_some_and(|end| end <= all)
    };
    if within(part.left, part.width, from.width) && within(part.top, part.height, from.height) {
        return Ok(());
    }
    let Rect { left, top, width, height } = part;
    Err(TransformError(format!(
        "the part of {width}x{height} pixels at ({left}, {top}) is not within the image of {}x{}; \
         take one that is",
        from.width, from.height
    )))
}

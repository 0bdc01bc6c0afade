//! A chain as one crop and resize, for GPUs.
//!
//! GPU decoders decode whole images. If a chain only crops an image, resizes it bilinearly, crops
//! the result and flips it, a few numbers describe that, and one kernel does it for a whole batch.
//! `Chain::window` returns them for a sample.

use crate::image::Rect;
use crate::ops::Flip;
use crate::run::op::Op;
use crate::step::{Interpolation, Mode, TransformStep};

/// A part of an image, the size it is resized to, where the result begins in that, and how it is
/// flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropWindow {
    /// The part of the image that is resized.
    pub part: Rect,
    /// The width after the resize.
    pub resized_width: u32,
    /// The height after the resize.
    pub resized_height: u32,
    /// The first column of the result.
    pub from_left: u32,
    /// The first row of the result.
    pub from_top: u32,
    /// The flip of the result.
    pub flip: Flip,
}

impl CropWindow {
    /// Returns the window that does not change an image.
    pub const fn whole(width: u32, height: u32) -> Self {
        Self {
            part: Rect::whole(width, height),
            resized_width: width,
            resized_height: height,
            from_left: 0,
            from_top: 0,
            flip: Flip { horizontal: false, vertical: false },
        }
    }

    /// Returns the window of fused operations on an image of this size; `None` if they do more.
    pub(crate) fn of(ops: &[Op], (width, height): (u32, u32), flip: Flip) -> Option<Self> {
        let mut window = Self { flip, ..Self::whole(width, height) };
        let rest = match ops {
            [Op::Crop(part), rest @ ..] => {
                window.part = *part;
                (window.resized_width, window.resized_height) = (part.width, part.height);
                rest
            }
            [Op::Resize(resize), rest @ ..] => {
                window.part = resize.part;
                (window.resized_width, window.resized_height) = (resize.width, resize.height);
                (window.from_left, window.from_top) = (resize.window.left, resize.window.top);
                rest
            }
            all => all,
        };
        // Fusing has merged a crop after the resize into it.
        rest.is_empty().then_some(window)
    }
}

/// Returns the first step that does not fit into a window, and why.
pub(crate) fn obstacle(steps: &[TransformStep]) -> Option<(usize, &'static str)> {
    let mut resized = false;
    let mut flipped = false;
    for (at, step) in steps.iter().enumerate() {
        let problem = match step {
            TransformStep::Decode { mode: Mode::Rgb, .. }
            | TransformStep::CenterCrop { .. }
            | TransformStep::RandomCrop { padding: None, pad_if_needed: false, .. } => None,
            TransformStep::Decode { .. } => Some("the GPU decodes to RGB only"),
            TransformStep::RandomHorizontalFlip { .. }
            | TransformStep::RandomVerticalFlip { .. } => {
                flipped = true;
                None
            }
            TransformStep::Resize { interpolation, antialias, .. }
            | TransformStep::RandomResizedCrop { interpolation, antialias, .. } => {
                let smooth = *antialias && *interpolation == Interpolation::Bilinear;
                let again = std::mem::replace(&mut resized, true);
                (again || flipped)
                    .then_some("it has to be the only resize, before any flip")
                    .or((!smooth).then_some("the GPU resizes bilinearly with antialias only"))
            }
            TransformStep::ToTensor { .. } => break,
            _ => Some("the GPU does not run this step"),
        };
        if let Some(problem) = problem {
            return Some((at, problem));
        }
    }
    None
}

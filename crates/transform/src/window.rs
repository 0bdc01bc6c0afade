//! What a chain does to an image, where that is one window.
//!
//! Decoders of GPUs give whole images. If all a chain does to one is to take a part, resize it
//! smoothly, take a part of that and perhaps turn it around, then this is said in a few numbers, and
//! one kernel does it for a whole batch. `Chain::window` says them for a sample.

use crate::image::Rect;
use crate::ops::Flip;
use crate::run::op::Op;
use crate::step::{Interpolation, Mode, Step};

/// A part of an image, what it is resized to, where in that the result begins, and whether it is
/// turned around then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub part: Rect,
    pub resized_width: u32,
    pub resized_height: u32,
    pub from_left: u32,
    pub from_top: u32,
    pub flip: Flip,
}

impl Window {
    /// All of an image, as it is.
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

    /// The window of fused ops on an image of this size; `None` if they are more than that.
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
        // A crop behind a resize is part of it by now.
        rest.is_empty().then_some(window)
    }
}

/// What keeps a chain from being a window: which step, and why.
pub(crate) fn obstacle(steps: &[Step]) -> Option<(usize, &'static str)> {
    let mut resized = false;
    let mut flipped = false;
    for (at, step) in steps.iter().enumerate() {
        let problem = match step {
            Step::Decode { mode: Mode::Rgb, .. }
            | Step::CenterCrop { .. }
            | Step::RandomCrop { padding: None, pad_if_needed: false, .. } => None,
            Step::Decode { .. } => Some("only RGB comes from there"),
            Step::RandomHorizontalFlip { .. } | Step::RandomVerticalFlip { .. } => {
                flipped = true;
                None
            }
            Step::Resize { interpolation, antialias, .. }
            | Step::RandomResizedCrop { interpolation, antialias, .. } => {
                let smooth = *antialias && *interpolation == Interpolation::Bilinear;
                let again = std::mem::replace(&mut resized, true);
                (again || flipped)
                    .then_some("it has to be the only one that resizes, and come before flips")
                    .or((!smooth).then_some("only bilinear with antialias is made there"))
            }
            Step::ToTensor { .. } => break,
            _ => Some("it is not made there"),
        };
        if let Some(problem) = problem {
            return Some((at, problem));
        }
    }
    None
}

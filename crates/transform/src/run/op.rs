//! Image steps lowered to operations on one image.
//!
//! A [`TransformStep`] applies to any image. Its [`Op`]s apply to this one: sizes are known, random
//! choices are drawn, and operations without effect are left out.

use crate::check;
use crate::draw::Draw;
use crate::flow::ImageSpec;
use crate::geometry::{self, Padding};
use crate::image::Rect;
use crate::ops::Flip;
use crate::ops::resize::Resize;
use crate::random::{self, Jitter, RandomChoice};
use crate::step::{Interpolation, PaddingMode, TransformStep};

/// One pass over an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    Crop(Rect),
    Resize(Resize),
    Pad {
        padding: Padding,
        mode: PaddingMode,
        /// The step with the fill of constant padding; black without one.
        filled_by: Option<usize>,
    },
    Flip(Flip),
    Jitter(Jitter),
}

/// The image steps at the head of a chain, after `Decode`.
#[derive(Clone, Copy, Debug)]
pub struct ImageSteps<'a> {
    /// All steps of the chain.
    pub steps: &'a [TransformStep],
    /// The first one that works on the image.
    pub first: usize,
    /// The end of those that work on the image.
    pub end: usize,
    /// The number of steps before the chain, if it continues another one.
    pub before: usize,
}

impl ImageSteps<'_> {
    /// Lowers the steps for an image. Passes each random choice and its step to `drawn`. Returns
    /// the resulting image.
    pub fn lower(
        &self,
        image: ImageSpec,
        draw: Draw,
        ops: &mut Vec<Op>,
        mut drawn: impl FnMut(usize, RandomChoice),
    ) -> Result<ImageSpec, String> {
        ops.clear();
        let mut image = image;
        for at in self.first..self.end {
            let step = &self.steps[at];
            let place = self.before + at;
            let named = |problem| format!("step {} ({}): {problem}", place + 1, step.name());
            let next = check::image_step(step, image).map_err(named)?;
            let size = image.size.unwrap_or_default();
            let choice = random::choose(step, &mut draw.rng(place), size);
            choice.inspect(|&choice| drawn(place, choice));
            lower(step, at, choice, size, ops);
            image = next;
        }
        Ok(image)
    }
}

fn lower(
    step: &TransformStep,
    at: usize,
    choice: Option<RandomChoice>,
    size: (u32, u32),
    ops: &mut Vec<Op>,
) {
    let whole = Rect::whole(size.0, size.1);
    match (step, choice) {
        (TransformStep::Resize { size: wanted, max_size, interpolation, antialias }, _) => {
            let new = geometry::resized(size, wanted, *max_size);
            resize(whole, new, *interpolation, *antialias, ops);
        }
        (TransformStep::CenterCrop { size: wanted }, _) => {
            let (rect, padding) = geometry::center_crop(size, wanted.of_crop());
            crop(rect, size, ops);
            pad(padding, PaddingMode::Constant, None, ops);
        }
        (
            TransformStep::RandomResizedCrop { size: wanted, interpolation, antialias, .. },
            Some(RandomChoice::RandomResizedCrop { top, left, height, width }),
        ) => {
            crop(Rect { left, top, width, height }, size, ops);
            let part = Rect::whole(width, height);
            resize(part, wanted.of_crop(), *interpolation, *antialias, ops);
        }
        (
            TransformStep::RandomCrop { padding_mode, .. },
            Some(RandomChoice::RandomCrop { padding, top, left, height, width }),
        ) => {
            pad(padding, *padding_mode, Some(at), ops);
            crop(Rect { left, top, width, height }, geometry::padded(size, padding), ops);
        }
        (TransformStep::Pad { padding, padding_mode, .. }, _) => {
            pad(*padding, *padding_mode, Some(at), ops);
        }
        (_, Some(RandomChoice::RandomHorizontalFlip { flip: true })) => {
            ops.push(Op::Flip(Flip { horizontal: true, vertical: false }));
        }
        (_, Some(RandomChoice::RandomVerticalFlip { flip: true })) => {
            ops.push(Op::Flip(Flip { horizontal: false, vertical: true }));
        }
        (_, Some(RandomChoice::ColorJitter(jitter))) => ops.push(Op::Jitter(jitter)),
        _ => {}
    }
}

fn crop(rect: Rect, size: (u32, u32), ops: &mut Vec<Op>) {
    if rect != Rect::whole(size.0, size.1) {
        ops.push(Op::Crop(rect));
    }
}

fn resize(
    part: Rect,
    (width, height): (u32, u32),
    interpolation: Interpolation,
    antialias: bool,
    ops: &mut Vec<Op>,
) {
    if (part.width, part.height) != (width, height) {
        let window = Rect::whole(width, height);
        ops.push(Op::Resize(Resize { part, width, height, window, interpolation, antialias }));
    }
}

fn pad(padding: Padding, mode: PaddingMode, filled_by: Option<usize>, ops: &mut Vec<Op>) {
    if padding != [0; 4] {
        ops.push(Op::Pad { padding, mode, filled_by });
    }
}

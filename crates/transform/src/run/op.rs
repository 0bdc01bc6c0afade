//! Image steps made concrete for one image.
//!
//! A [`Step`](crate::Step) says what is to be done to any image; its [`Op`]s say what is done to this one:
//! sizes are known, chance has spoken, and what would change nothing is left out.

use crate::check;
use crate::draw::Draw;
use crate::flow::Image;
use crate::geometry::{self, Padding};
use crate::image::Rect;
use crate::ops::Flip;
use crate::ops::resize::Resize;
use crate::random::{self, Choice, Jitter};
use crate::step::{Interpolation, PaddingMode, Step};

/// One pass over an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    Crop(Rect),
    Resize(Resize),
    Pad {
        padding: Padding,
        mode: PaddingMode,
        /// The step that says what constant padding is filled with; black without one.
        filled_by: Option<usize>,
    },
    Flip(Flip),
    Jitter(Jitter),
}

/// The image steps at the head of a chain, after `Decode`.
#[derive(Clone, Copy, Debug)]
pub struct ImageSteps<'a> {
    /// All steps of the chain.
    pub steps: &'a [Step],
    /// Which of them work on the image.
    pub first: usize,
    pub end: usize,
    /// How many steps came before the chain's first, if it goes on where another has ended.
    pub before: usize,
}

impl ImageSteps<'_> {
    /// What is to be done to this image; `told` hears of each choice that is made, and at which
    /// step. Gives the image that comes out.
    pub fn lower(
        &self,
        image: Image,
        draw: Draw,
        ops: &mut Vec<Op>,
        mut told: impl FnMut(usize, Choice),
    ) -> Result<Image, String> {
        ops.clear();
        let mut image = image;
        for at in self.first..self.end {
            let step = &self.steps[at];
            let place = self.before + at;
            let named = |problem| format!("step {} ({}): {problem}", place + 1, step.name());
            let next = check::image_step(step, image).map_err(named)?;
            let size = image.size.unwrap_or_default();
            let choice = random::choose(step, &mut draw.dice(place), size);
            choice.inspect(|&choice| told(place, choice));
            lower(step, at, choice, size, ops);
            image = next;
        }
        Ok(image)
    }
}

fn lower(step: &Step, at: usize, choice: Option<Choice>, size: (u32, u32), ops: &mut Vec<Op>) {
    let whole = Rect::whole(size.0, size.1);
    match (step, choice) {
        (Step::Resize { size: wanted, max_size, interpolation, antialias }, _) => {
            let new = geometry::resized(size, wanted, *max_size);
            resize(whole, new, *interpolation, *antialias, ops);
        }
        (Step::CenterCrop { size: wanted }, _) => {
            let (rect, padding) = geometry::center_crop(size, wanted.of_crop());
            crop(rect, size, ops);
            pad(padding, PaddingMode::Constant, None, ops);
        }
        (
            Step::RandomResizedCrop { size: wanted, interpolation, antialias, .. },
            Some(Choice::RandomResizedCrop { top, left, height, width }),
        ) => {
            crop(Rect { left, top, width, height }, size, ops);
            let part = Rect::whole(width, height);
            resize(part, wanted.of_crop(), *interpolation, *antialias, ops);
        }
        (
            Step::RandomCrop { padding_mode, .. },
            Some(Choice::RandomCrop { padding, top, left, height, width }),
        ) => {
            pad(padding, *padding_mode, Some(at), ops);
            crop(Rect { left, top, width, height }, geometry::padded(size, padding), ops);
        }
        (Step::Pad { padding, padding_mode, .. }, _) => {
            pad(*padding, *padding_mode, Some(at), ops);
        }
        (_, Some(Choice::RandomHorizontalFlip { flip: true })) => {
            ops.push(Op::Flip(Flip { horizontal: true, vertical: false }));
        }
        (_, Some(Choice::RandomVerticalFlip { flip: true })) => {
            ops.push(Op::Flip(Flip { horizontal: false, vertical: true }));
        }
        (_, Some(Choice::ColorJitter(jitter))) => ops.push(Op::Jitter(jitter)),
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

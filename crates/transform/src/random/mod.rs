//! What random steps draw, by torchvision's rules.
//!
//! The distributions are those of torchvision's `get_params` and `make_params`; the generator is
//! [`StepRng`], so a sample gets the same crop in an epoch everywhere.

use serde::{Deserialize, Serialize};

use crate::draw::StepRng;
use crate::geometry::{self, Padding};
use crate::image::Rect;
use crate::step::TransformStep;

/// The draw of one random step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// Counted from 1, as in error messages.
    pub step: usize,
    /// What the step does.
    #[serde(flatten)]
    pub choice: RandomChoice,
}

/// What a random step does to an image; the fields are torchvision's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op")]
#[expect(missing_docs, reason = "torchvision's names")]
pub enum RandomChoice {
    RandomResizedCrop {
        top: u32,
        left: u32,
        height: u32,
        width: u32,
    },
    RandomCrop {
        /// Left, top, right, bottom; before the crop.
        padding: Padding,
        top: u32,
        left: u32,
        height: u32,
        width: u32,
    },
    RandomHorizontalFlip {
        flip: bool,
    },
    RandomVerticalFlip {
        flip: bool,
    },
    ColorJitter(Jitter),
}

/// What `ColorJitter` does, and in which order; `None` leaves an adjustment out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "torchvision's names")]
pub struct Jitter {
    /// 0 is brightness, 1 contrast, 2 saturation, 3 hue.
    pub order: [u8; 4],
    pub brightness: Option<f64>,
    pub contrast: Option<f64>,
    pub saturation: Option<f64>,
    pub hue: Option<f64>,
}

/// Draws what `step` does to an image of this size; `None` if the step is not random.
pub fn choose(step: &TransformStep, rng: &mut StepRng, size: (u32, u32)) -> Option<RandomChoice> {
    Some(match step {
        TransformStep::RandomResizedCrop { scale, ratio, .. } => {
            let Rect { left, top, width, height } = resized_crop(rng, size, *scale, *ratio);
            RandomChoice::RandomResizedCrop { top, left, height, width }
        }
        TransformStep::RandomCrop { size: wanted, padding, pad_if_needed, .. } => {
            let (width, height) = wanted.of_crop();
            let padding = geometry::crop_padding(size, (width, height), *padding, *pad_if_needed);
            let padded = geometry::padded(size, padding);
            let top = place(rng, padded.1, height);
            let left = place(rng, padded.0, width);
            RandomChoice::RandomCrop { padding, top, left, height, width }
        }
        TransformStep::RandomHorizontalFlip { p } => {
            RandomChoice::RandomHorizontalFlip { flip: rng.happens(*p) }
        }
        TransformStep::RandomVerticalFlip { p } => {
            RandomChoice::RandomVerticalFlip { flip: rng.happens(*p) }
        }
        TransformStep::ColorJitter { brightness, contrast, saturation, hue } => {
            let order = permutation(rng);
            let mut factor = |range: Option<[f64; 2]>| range.map(|[a, b]| rng.uniform(a, b));
            RandomChoice::ColorJitter(Jitter {
                order,
                brightness: factor(*brightness),
                contrast: factor(*contrast),
                saturation: factor(*saturation),
                hue: factor(*hue),
            })
        }
        _ => return None,
    })
}

/// Tries ten times to draw an area and a ratio that fit; then takes the largest central part with
/// an allowed ratio.
fn resized_crop(
    rng: &mut StepRng,
    (width, height): (u32, u32),
    scale: [f64; 2],
    ratio: [f64; 2],
) -> Rect {
    let area = f64::from(width) * f64::from(height);
    let (low, high) = (ratio[0].ln(), ratio[1].ln());
    for _ in 0..10 {
        let part = area * rng.uniform(scale[0], scale[1]);
        let ratio = rng.uniform(low, high).exp();
        let w = (part * ratio).sqrt().round_ties_even();
        let h = (part / ratio).sqrt().round_ties_even();
        if 0.0 < w && w <= f64::from(width) && 0.0 < h && h <= f64::from(height) {
            let (w, h) = (w as u32, h as u32);
            let top = place(rng, height, h);
            let left = place(rng, width, w);
            return Rect { left, top, width: w, height: h };
        }
    }
    middle((width, height), ratio)
}

fn middle((width, height): (u32, u32), [low, high]: [f64; 2]) -> Rect {
    let ratio = f64::from(width) / f64::from(height);
    // At least one pixel, where torchvision fails.
    let rounded = |extent: f64| (extent.round_ties_even() as u32).max(1);
    let (w, h) = if ratio < low {
        (width, rounded(f64::from(width) / low))
    } else if ratio > high {
        (rounded(f64::from(height) * high), height)
    } else {
        (width, height)
    };
    Rect { left: (width - w) / 2, top: (height - h) / 2, width: w, height: h }
}

/// Draws where a part of this extent begins.
fn place(rng: &mut StepRng, whole: u32, part: u32) -> u32 {
    rng.below(whole.saturating_sub(part) as usize + 1) as u32
}

/// Draws an order of the four adjustments.
fn permutation(rng: &mut StepRng) -> [u8; 4] {
    let mut order = [0, 1, 2, 3];
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last + 1));
    }
    order
}

#[cfg(test)]
mod tests;

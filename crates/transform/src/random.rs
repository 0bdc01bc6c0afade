//! What random steps draw, by the rules of torchvision.
//!
//! The distributions are those of `get_params` and `make_params` there, the draws are those of
//! [`Dice`]: the same sample of the same epoch gets the same crop everywhere.

use serde::{Deserialize, Serialize};

use crate::draw::Dice;
use crate::geometry::{self, Padding};
use crate::image::Rect;
use crate::step::Step;

/// What the random step at this place has drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// Counted from one, as in messages.
    pub step: usize,
    #[serde(flatten)]
    pub choice: Choice,
}

/// What one random step does to one image.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op")]
pub enum Choice {
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

/// What `ColorJitter` does, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Jitter {
    /// 0 is brightness, 1 contrast, 2 saturation, 3 hue.
    pub order: [u8; 4],
    pub brightness: Option<f64>,
    pub contrast: Option<f64>,
    pub saturation: Option<f64>,
    pub hue: Option<f64>,
}

/// What `step` does to an image of this size; nothing if it leaves nothing to chance.
pub fn choose(step: &Step, dice: &mut Dice, size: (u32, u32)) -> Option<Choice> {
    Some(match step {
        Step::RandomResizedCrop { scale, ratio, .. } => {
            let Rect { left, top, width, height } = resized_crop(dice, size, *scale, *ratio);
            Choice::RandomResizedCrop { top, left, height, width }
        }
        Step::RandomCrop { size: wanted, padding, pad_if_needed, .. } => {
            let (width, height) = wanted.of_crop();
            let padding = geometry::crop_padding(size, (width, height), *padding, *pad_if_needed);
            let padded = geometry::padded(size, padding);
            let top = place(dice, padded.1, height);
            let left = place(dice, padded.0, width);
            Choice::RandomCrop { padding, top, left, height, width }
        }
        Step::RandomHorizontalFlip { p } => Choice::RandomHorizontalFlip { flip: dice.happens(*p) },
        Step::RandomVerticalFlip { p } => Choice::RandomVerticalFlip { flip: dice.happens(*p) },
        Step::ColorJitter { brightness, contrast, saturation, hue } => {
            let order = permutation(dice);
            let mut factor = |range: Option<[f64; 2]>| range.map(|[a, b]| dice.uniform(a, b));
            Choice::ColorJitter(Jitter {
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

/// Ten tries at an area and a ratio that fit; then the largest part in the middle whose ratio is
/// allowed.
fn resized_crop(
    dice: &mut Dice,
    (width, height): (u32, u32),
    scale: [f64; 2],
    ratio: [f64; 2],
) -> Rect {
    let area = f64::from(width) * f64::from(height);
    let (low, high) = (ratio[0].ln(), ratio[1].ln());
    for _ in 0..10 {
        let part = area * dice.uniform(scale[0], scale[1]);
        let ratio = dice.uniform(low, high).exp();
        let w = (part * ratio).sqrt().round_ties_even();
        let h = (part / ratio).sqrt().round_ties_even();
        if 0.0 < w && w <= f64::from(width) && 0.0 < h && h <= f64::from(height) {
            let (w, h) = (w as u32, h as u32);
            let top = place(dice, height, h);
            let left = place(dice, width, w);
            return Rect { left, top, width: w, height: h };
        }
    }
    middle((width, height), ratio)
}

fn middle((width, height): (u32, u32), [low, high]: [f64; 2]) -> Rect {
    let ratio = f64::from(width) / f64::from(height);
    // One pixel at least: torchvision fails where the rounding leaves none.
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

/// Where a part of this extent begins.
fn place(dice: &mut Dice, whole: u32, part: u32) -> u32 {
    dice.below(whole.saturating_sub(part) as usize + 1) as u32
}

/// Any order of the four, each as likely.
fn permutation(dice: &mut Dice) -> [u8; 4] {
    let mut order = [0, 1, 2, 3];
    for last in (1..order.len()).rev() {
        order.swap(last, dice.below(last + 1));
    }
    order
}

#[cfg(test)]
mod tests;

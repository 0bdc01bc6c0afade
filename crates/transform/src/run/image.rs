//! Runs the image steps of a chain on one image.

use std::sync::LazyLock;

use super::fuse;
use super::op::{ImageSteps, Op};
use super::shrink;
use crate::codec::{Decoder, Wanted};
use crate::draw::Draw;
use crate::error::TransformError;
use crate::flow::Image;
use crate::image::{Pixels, Rect};
use crate::ops::{self, Flip, colour, resize::Resizer};
use crate::random::Jitter;
use crate::step::{Fill, Step};

/// Memory for images, which is used again for every sample.
#[derive(Debug, Default)]
pub struct ImageScratch {
    decoder: Decoder,
    resizer: Resizer,
    /// The image as it is, and the one that is being made of it.
    pixels: Pixels,
    next: Pixels,
    ops: Vec<Op>,
}

/// Where pixels come from.
#[derive(Clone, Copy, Debug)]
pub enum Picture<'a> {
    /// A file.
    Encoded { bytes: &'a [u8], wanted: Wanted, dct_scaling: bool },
    /// Pixels, height x width x channels.
    Pixels(&'a [u8]),
}

/// Whether an image is made with less work or step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Fused,
    #[cfg(test)]
    StepByStep,
}

static BLACK: LazyLock<Fill> = LazyLock::new(|| Fill(vec![0]));

/// Makes the image. It is flipped yet, as the answer says.
pub fn run<'s>(
    steps: &ImageSteps<'_>,
    picture: Picture<'_>,
    image: Image,
    draw: Draw,
    way: Way,
    scratch: &'s mut ImageScratch,
) -> Result<(&'s Pixels, Flip), TransformError> {
    let mut ops = std::mem::take(&mut scratch.ops);
    let lowered = steps.lower(image, draw, &mut ops, |_, _| ());
    let result = lowered.map_err(TransformError).and_then(|_| {
        let flip = match way {
            Way::Fused => fuse::fuse(&mut ops, image.size.unwrap_or_default()),
            #[cfg(test)]
            Way::StepByStep => Flip::default(),
        };
        let mut origin = scratch.open(picture, image, way, &mut ops)?;
        for op in &ops {
            scratch.apply(op, std::mem::take(&mut origin), steps.steps)?;
        }
        Ok(flip)
    });
    scratch.ops = ops;
    result.map(|flip| (&scratch.pixels, flip))
}

impl ImageScratch {
    /// Has the pixels that the ops need. Gives from where on (x, y).
    fn open(
        &mut self,
        picture: Picture<'_>,
        image: Image,
        way: Way,
        ops: &mut [Op],
    ) -> Result<(u32, u32), TransformError> {
        match picture {
            Picture::Encoded { bytes, wanted, dct_scaling } => {
                if dct_scaling && let Some(origin) = self.open_shrunk(bytes, &wanted, ops)? {
                    return Ok(origin);
                }
                let region = match way {
                    Way::Fused => self.region(ops, image),
                    #[cfg(test)]
                    Way::StepByStep => None,
                };
                let wanted = Wanted { region, ..wanted };
                let covered = self.decoder.decode(bytes, &wanted, &mut self.pixels)?;
                Ok((covered.left, covered.top))
            }
            Picture::Pixels(bytes) => {
                let ((width, height), channels) =
                    (image.size.unwrap_or_default(), image.channels.unwrap_or_default());
                self.pixels.shape(width, height, channels);
                self.pixels.bytes.copy_from_slice(bytes);
                Ok((0, 0))
            }
        }
    }

    /// The same with a JPEG that is decoded at a fraction of its size, if the first op is a resize
    /// that makes it smaller still. That op then speaks of the shrunk image.
    fn open_shrunk(
        &mut self,
        bytes: &[u8],
        wanted: &Wanted,
        ops: &mut [Op],
    ) -> Result<Option<(u32, u32)>, TransformError> {
        let Some(Op::Resize(resize)) = ops.first_mut() else { return Ok(None) };
        let Some((shrink, shrunk)) = shrink::of(resize) else { return Ok(None) };
        let region = self.resizer.needed(&shrunk);
        let covered =
            self.decoder.decode_shrunk(bytes, wanted, shrink, region, &mut self.pixels)?;
        Ok(covered.map(|covered| {
            *resize = shrunk;
            (covered.left, covered.top)
        }))
    }

    /// The part of the image that has to be decoded, if it is not all of it.
    fn region(&mut self, ops: &[Op], image: Image) -> Option<Rect> {
        let region = match ops.first()? {
            Op::Crop(part) => *part,
            // A whole one needs all of its part; that is known without working out weights.
            Op::Resize(resize) if resize.window == Rect::whole(resize.width, resize.height) => {
                resize.part
            }
            Op::Resize(resize) => self.resizer.needed(resize),
            _ => return None,
        };
        let (width, height) = image.size?;
        (region != Rect::whole(width, height)).then_some(region)
    }

    /// Does one of the ops to the pixels, which are those of the image from `origin` on.
    fn apply(&mut self, op: &Op, origin: (u32, u32), steps: &[Step]) -> Result<(), TransformError> {
        let (from, into) = (&mut self.pixels, &mut self.next);
        match *op {
            Op::Flip(flip) => {
                ops::flip(from, flip);
                return Ok(());
            }
            Op::Jitter(jitter) => return apply_jitter(from, &jitter),
            Op::Crop(part) => {
                let (left, top) = (part.left - origin.0, part.top - origin.1);
                let part = Rect { left, top, ..part };
                if part == Rect::whole(from.width, from.height) {
                    return Ok(());
                }
                ops::crop(from, part, into)?;
            }
            Op::Resize(ref resize) => self.resizer.resize_window(from, origin, resize, into)?,
            Op::Pad { padding, mode, filled_by } => {
                let fill = match filled_by.map(|step| &steps[step]) {
                    Some(Step::Pad { fill, .. } | Step::RandomCrop { fill, .. }) => fill,
                    _ => &BLACK,
                };
                ops::pad(from, padding, fill, mode, into)?;
            }
        }
        std::mem::swap(from, into);
        Ok(())
    }
}

fn apply_jitter(pixels: &mut Pixels, jitter: &Jitter) -> Result<(), TransformError> {
    for which in jitter.order {
        let (adjust, factor): (fn(&mut Pixels, f64) -> _, _) = match which {
            0 => (colour::brightness, jitter.brightness),
            1 => (colour::contrast, jitter.contrast),
            2 => (colour::saturation, jitter.saturation),
            _ => (colour::hue, jitter.hue),
        };
        factor.map_or(Ok(()), |factor| adjust(pixels, factor))?;
    }
    Ok(())
}

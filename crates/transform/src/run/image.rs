//! Runs the image steps of a chain on one image.

use std::sync::LazyLock;

use super::fuse;
use super::op::{ImageSteps, Op};
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
    Encoded { bytes: &'a [u8], wanted: Wanted },
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
        scratch.open(picture, image, way, &mut ops)?;
        ops.iter().try_for_each(|op| scratch.apply(op, steps.steps))?;
        Ok(flip)
    });
    scratch.ops = ops;
    result.map(|flip| (&scratch.pixels, flip))
}

impl ImageScratch {
    /// Has the pixels that the ops need; these then speak of the part that was decoded.
    fn open(
        &mut self,
        picture: Picture<'_>,
        image: Image,
        way: Way,
        ops: &mut [Op],
    ) -> Result<(), TransformError> {
        match picture {
            Picture::Encoded { bytes, wanted } => {
                let region = match way {
                    Way::Fused => fuse::region(ops, image.size.unwrap_or_default()),
                    #[cfg(test)]
                    Way::StepByStep => None,
                };
                let wanted = Wanted { region, ..wanted };
                let covered = self.decoder.decode(bytes, &wanted, &mut self.pixels)?;
                fuse::shift(ops, covered);
            }
            Picture::Pixels(bytes) => {
                let ((width, height), channels) =
                    (image.size.unwrap_or_default(), image.channels.unwrap_or_default());
                self.pixels.shape(width, height, channels);
                self.pixels.bytes.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn apply(&mut self, op: &Op, steps: &[Step]) -> Result<(), TransformError> {
        let (from, into) = (&mut self.pixels, &mut self.next);
        match *op {
            Op::Flip(flip) => {
                ops::flip(from, flip);
                return Ok(());
            }
            Op::Jitter(jitter) => return apply_jitter(from, &jitter),
            Op::Crop(part) if part == Rect::whole(from.width, from.height) => return Ok(()),
            Op::Crop(part) => ops::crop(from, part, into)?,
            Op::Resize { part, width, height, interpolation, antialias } => {
                self.resizer.resize(from, part, width, height, interpolation, antialias, into)?;
            }
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

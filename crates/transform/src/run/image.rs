//! Runs the image steps of a chain on one image.

use std::sync::LazyLock;

use super::fuse;
use super::op::{ImageSteps, Op};
use super::shrink;
use crate::codec::{DecodeRequest, Decoder};
use crate::draw::Draw;
use crate::error::TransformError;
use crate::flow::ImageSpec;
use crate::image::{Pixels, Rect};
use crate::ops::{self, Flip, colour, resize::Resizer};
use crate::random::Jitter;
use crate::step::{PadFill, TransformStep};

/// Memory for images, reused for every sample.
#[derive(Debug, Default)]
pub struct ImageScratch {
    decoder: Decoder,
    resizer: Resizer,
    /// The current image, and the one that is made of it.
    pixels: Pixels,
    next: Pixels,
    ops: Vec<Op>,
}

/// The input of the image steps.
#[derive(Clone, Copy, Debug)]
pub enum ImageInput<'a> {
    /// A file.
    Encoded { bytes: &'a [u8], wanted: DecodeRequest, dct_scaling: bool },
    /// Pixels, height x width x channels.
    Pixels(&'a [u8]),
}

/// Whether operations are fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutionMode {
    Fused,
    #[cfg(test)]
    StepByStep,
}

static BLACK: LazyLock<PadFill> = LazyLock::new(|| PadFill(vec![0]));

/// Runs the image steps. Returns the image and the flip that is left to do.
pub fn run<'s>(
    steps: &ImageSteps<'_>,
    picture: ImageInput<'_>,
    image: ImageSpec,
    draw: Draw,
    way: ExecutionMode,
    scratch: &'s mut ImageScratch,
) -> Result<(&'s Pixels, Flip), TransformError> {
    let mut ops = std::mem::take(&mut scratch.ops);
    let lowered = steps.lower(image, draw, &mut ops, |_, _| ());
    let result = lowered.map_err(TransformError).and_then(|_| {
        let flip = match way {
            ExecutionMode::Fused => fuse::fuse(&mut ops, image.size.unwrap_or_default()),
            #[cfg(test)]
            ExecutionMode::StepByStep => Flip::default(),
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
    /// Decodes the pixels that the operations need. Returns where they begin (x, y).
    fn open(
        &mut self,
        picture: ImageInput<'_>,
        image: ImageSpec,
        way: ExecutionMode,
        ops: &mut [Op],
    ) -> Result<(u32, u32), TransformError> {
        match picture {
            ImageInput::Encoded { bytes, wanted, dct_scaling } => {
                if dct_scaling && let Some(origin) = self.open_shrunk(bytes, &wanted, ops)? {
                    return Ok(origin);
                }
                let region = match way {
                    ExecutionMode::Fused => self.region(ops, image),
                    #[cfg(test)]
                    ExecutionMode::StepByStep => None,
                };
                let wanted = DecodeRequest { region, ..wanted };
                let covered = self.decoder.decode(bytes, &wanted, &mut self.pixels)?;
                Ok((covered.left, covered.top))
            }
            ImageInput::Pixels(bytes) => {
                let ((width, height), channels) =
                    (image.size.unwrap_or_default(), image.channels.unwrap_or_default());
                self.pixels.shape(width, height, channels);
                self.pixels.bytes.copy_from_slice(bytes);
                Ok((0, 0))
            }
        }
    }

    /// Decodes a JPEG at a fraction of its size, if the first operation is a resize to an even
    /// smaller size. Then adapts that operation to the shrunk image.
    fn open_shrunk(
        &mut self,
        bytes: &[u8],
        wanted: &DecodeRequest,
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

    /// Returns the part of the image to decode; `None` for all of it.
    fn region(&mut self, ops: &[Op], image: ImageSpec) -> Option<Rect> {
        let region = match ops.first()? {
            Op::Crop(part) => *part,
            // A full window needs the whole part; the weights are not needed to know that.
            Op::Resize(resize) if resize.window == Rect::whole(resize.width, resize.height) => {
                resize.part
            }
            Op::Resize(resize) => self.resizer.needed(resize),
            _ => return None,
        };
        let (width, height) = image.size?;
        (region != Rect::whole(width, height)).then_some(region)
    }

    /// Applies an operation to the pixels, which begin at `origin` of the image.
    fn apply(
        &mut self,
        op: &Op,
        origin: (u32, u32),
        steps: &[TransformStep],
    ) -> Result<(), TransformError> {
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
                    Some(
                        TransformStep::Pad { fill, .. } | TransformStep::RandomCrop { fill, .. },
                    ) => fill,
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

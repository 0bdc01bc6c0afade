//! The type of the data between two steps of a chain.
//!
//! A sample begins as bytes. `Decode` makes an image of them, `ToTensor` makes a tensor of an
//! image, and `Raw`, `Numpy`, `Int` and `Float` make a tensor of bytes. A flow contains what is
//! known: little when the chain is made, everything when a sample is there. The same checks serve
//! both ([`check`](crate::check)).

use crate::array::{Dtype, Output};
use crate::step::{AxisLayout, TransformStep};

/// The limit without a `Decode`: Pillow refuses more pixels than this.
const MAX_PIXELS: u64 = 178_956_970;

/// The input or output of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Flow {
    Bytes,
    Image(ImageSpec),
    Tensor(TensorSpec),
}

/// An image of uint8, height x width x channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageSpec {
    /// Width and height.
    pub size: Option<(u32, u32)>,
    /// The upper limit of the shorter side, if the size is unknown.
    pub shorter: Option<u32>,
    pub channels: Option<u32>,
    /// The most pixels of any intermediate image. Otherwise a few bytes of a file could exhaust the
    /// memory.
    pub max_pixels: u64,
    /// The origin of the channels, for error messages: ` after Decode(mode="GRAY")`.
    pub origin: &'static str,
}

/// An array of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    pub dtype: Option<Dtype>,
    /// `None` if the number of extents is unknown.
    pub shape: Option<Vec<Option<usize>>>,
    /// The axis order, if the tensor was made of an image.
    pub layout: Option<AxisLayout>,
    pub origin: &'static str,
}

impl Flow {
    /// Returns the output of a chain that ends here.
    pub fn output(&self) -> Output {
        match self {
            Self::Bytes => Output { dtype: Some(Dtype::Uint8), shape: None },
            Self::Image(image) => Output { dtype: Some(Dtype::Uint8), shape: image.shape() },
            Self::Tensor(tensor) => Output { dtype: tensor.dtype, shape: tensor.known_shape() },
        }
    }

    /// Returns the bytes of the data, if known.
    pub fn bytes(&self) -> Option<usize> {
        match self {
            Self::Bytes => None,
            Self::Image(image) => {
                let (width, height) = image.size?;
                Some(width as usize * height as usize * image.channels? as usize)
            }
            Self::Tensor(tensor) => tensor.count()?.checked_mul(tensor.dtype?.size()),
        }
    }

    /// Returns the flow of a Python function's output, which is an image if the next step works on
    /// images.
    pub fn of(output: &Output, next: Option<&TransformStep>) -> Result<Self, String> {
        if next.is_some_and(TransformStep::works_on_images) {
            return ImageSpec::of(output).map(Self::Image);
        }
        let shape = output.shape.as_ref().map(|shape| shape.iter().copied().map(Some).collect());
        Ok(Self::Tensor(TensorSpec { dtype: output.dtype, shape, layout: None, origin: "" }))
    }
}

impl ImageSpec {
    /// Checks that an image of this size is within `max_pixels`.
    pub fn may_become(&self, (width, height): (u32, u32)) -> Result<(), String> {
        if u64::from(width) * u64::from(height) <= self.max_pixels {
            return Ok(());
        }
        Err(format!(
            "it would make an image of {width} x {height} pixels (width x height), more than the \
             {} that max_pixels of Decode allows",
            self.max_pixels
        ))
    }

    fn shape(&self) -> Option<Vec<usize>> {
        let (width, height) = self.size?;
        Some(vec![height as usize, width as usize, self.channels? as usize])
    }

    fn of(output: &Output) -> Result<Self, String> {
        if let Some(dtype) = output.dtype
            && dtype != Dtype::Uint8
        {
            return Err(format!("works on images of uint8, but {dtype} comes in"));
        }
        let unknown =
            Self { size: None, shorter: None, channels: None, max_pixels: MAX_PIXELS, origin: "" };
        let Some(shape) = &output.shape else { return Ok(unknown) };
        let extents: Option<Vec<u32>> = shape.iter().map(|&n| u32::try_from(n).ok()).collect();
        match extents.as_deref() {
            Some(&[height, width, channels @ 1..=4]) if height > 0 && width > 0 => {
                Ok(Self { size: Some((width, height)), channels: Some(channels), ..unknown })
            }
            // Grey, like Pillow's images of mode "L".
            Some(&[height, width]) if height > 0 && width > 0 => {
                Ok(Self { size: Some((width, height)), channels: Some(1), ..unknown })
            }
            _ => Err(format!(
                "works on images [height, width, channels], but an array of shape {shape:?} \
                 comes in"
            )),
        }
    }
}

impl TensorSpec {
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().copied().collect()
    }

    /// Returns the number of elements, if known.
    pub fn count(&self) -> Option<usize> {
        self.shape.as_ref()?.iter().try_fold(1_usize, |count, &extent| count.checked_mul(extent?))
    }

    /// Returns the axis of `count` factors: the channel axis of the layout. Without a layout it is
    /// the first axis, as in torch, or the last if only that one has `count` elements.
    pub fn channel_axis(&self, count: usize) -> usize {
        let rank = self.shape.as_ref().map_or(0, Vec::len);
        match self.layout {
            Some(AxisLayout::Chw) => rank.saturating_sub(3),
            Some(AxisLayout::Hwc) => rank.saturating_sub(1),
            None => {
                let extent = |axis: usize| self.shape.as_ref()?.get(axis).copied()?;
                let last = rank.saturating_sub(1);
                let only_last = extent(0) != Some(count) && extent(last) == Some(count);
                if only_last { last } else { 0 }
            }
        }
    }
}

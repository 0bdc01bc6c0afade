//! What flows from one step of a chain to the next.
//!
//! A sample begins as bytes. `Decode` makes an image of them, `ToTensor` makes a tensor of an
//! image, and `Raw`, `Numpy`, `Int` and `Float` make a tensor at once. Of sizes and kinds a flow
//! knows what is known at the time: little when a chain is made, all when a sample is at hand.
//! The same checks serve both ([`check`](crate::check)).

use crate::array::{Dtype, Output};
use crate::step::{Layout, Step};

/// The limit where no `Decode` says one: what Pillow refuses, which is twice what it warns of.
const MAX_PIXELS: u64 = 178_956_970;

/// What a step is given, or gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Flow {
    Bytes,
    Image(Image),
    Tensor(Tensor),
}

/// An image of uint8, height x width x channels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Image {
    /// Width and height.
    pub size: Option<(u32, u32)>,
    /// What the shorter side has at most, where no more is known of the size.
    pub shorter: Option<u32>,
    pub channels: Option<u32>,
    /// No image that is made on the way may have more pixels: a few bytes of a file could
    /// otherwise take all memory.
    pub max_pixels: u64,
    /// Where the channels come from, for messages: ` after Decode(mode="GRAY")`.
    pub origin: &'static str,
}

/// An array of numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: Option<Dtype>,
    /// `None` if not even the number of extents is known.
    pub shape: Option<Vec<Option<usize>>>,
    /// Which axis is the channels', if it was made of an image.
    pub layout: Option<Layout>,
    pub origin: &'static str,
}

impl Flow {
    /// What a chain gives that ends here.
    pub fn output(&self) -> Output {
        match self {
            Self::Bytes => Output { dtype: Some(Dtype::Uint8), shape: None },
            Self::Image(image) => Output { dtype: Some(Dtype::Uint8), shape: image.shape() },
            Self::Tensor(tensor) => Output { dtype: tensor.dtype, shape: tensor.known_shape() },
        }
    }

    /// Bytes of what comes out here, if they are known.
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

    /// What a Python function has given before `next`.
    ///
    /// It says no more than numbers and extents: it is an image if the next step works on images.
    pub fn of(output: &Output, next: Option<&Step>) -> Result<Self, String> {
        if next.is_some_and(Step::works_on_images) {
            return Image::of(output).map(Self::Image);
        }
        let shape = output.shape.as_ref().map(|shape| shape.iter().copied().map(Some).collect());
        Ok(Self::Tensor(Tensor { dtype: output.dtype, shape, layout: None, origin: "" }))
    }
}

impl Image {
    /// Whether an image of this size may be made of it.
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
            // Grey, as Pillow's images of mode "L" come.
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

impl Tensor {
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().copied().collect()
    }

    /// How many numbers, if that is known.
    pub fn count(&self) -> Option<usize> {
        self.shape.as_ref()?.iter().try_fold(1_usize, |count, &extent| count.checked_mul(extent?))
    }

    /// The axis along which `count` factors lie: where the layout puts channels. Without a layout
    /// it is the first, as torch has it, or the last if only that has as many.
    pub fn channel_axis(&self, count: usize) -> usize {
        let rank = self.shape.as_ref().map_or(0, Vec::len);
        match self.layout {
            Some(Layout::Chw) => rank.saturating_sub(3),
            Some(Layout::Hwc) => rank.saturating_sub(1),
            None => {
                let extent = |axis: usize| self.shape.as_ref()?.get(axis).copied()?;
                let last = rank.saturating_sub(1);
                let only_last = extent(0) != Some(count) && extent(last) == Some(count);
                if only_last { last } else { 0 }
            }
        }
    }
}

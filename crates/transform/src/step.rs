//! The steps of a chain, as plain data.
//!
//! Names and arguments are those of `torchvision.transforms.v2` where it has the step. In JSON a
//! step is `{"op": "Resize", "size": [256]}`.

use serde::{Deserialize, Serialize};

use crate::array::Dtype;

/// One step. Fields without a comment are torchvision's arguments of that name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", deny_unknown_fields)]
#[expect(missing_docs, reason = "torchvision's arguments")]
pub enum TransformStep {
    /// Decodes an image file: JPEG, PNG, WebP, BMP or the first frame of a GIF, recognised by its
    /// content.
    Decode {
        mode: Mode,
        /// Rotates the image by its EXIF data. torchvision and Pillow do not by default.
        apply_exif_orientation: bool,
        /// An image with more pixels is refused before memory is allocated for it.
        max_pixels: u64,
        /// Decodes JPEGs that become much smaller at 1/2, 1/4 or 1/8 of their size. The pixels then
        /// differ slightly from torchvision's.
        #[serde(default)]
        dct_scaling: bool,
    },
    /// Reads the bytes as an array of this shape. A `None` extent takes the remaining numbers.
    Raw { dtype: Dtype, shape: Vec<Option<usize>> },
    /// Reads the bytes as a NumPy file (`.npy`).
    Numpy,
    /// Reads the bytes as an integer in decimal text, such as a label: an int64 scalar.
    Int,
    /// Reads the bytes as a number in decimal text: a float32 scalar.
    Float,
    /// Resizes an image.
    Resize { size: Size, interpolation: Interpolation, max_size: Option<u32>, antialias: bool },
    /// Crops the middle.
    CenterCrop { size: Size },
    /// Crops a random part and resizes it.
    RandomResizedCrop {
        size: Size,
        scale: [f64; 2],
        ratio: [f64; 2],
        interpolation: Interpolation,
        antialias: bool,
    },
    /// Crops a random part.
    RandomCrop {
        size: Size,
        /// Left, top, right, bottom.
        padding: Option<[u32; 4]>,
        pad_if_needed: bool,
        fill: PadFill,
        padding_mode: PaddingMode,
    },
    /// Pads an image.
    Pad {
        /// Left, top, right, bottom.
        padding: [u32; 4],
        fill: PadFill,
        padding_mode: PaddingMode,
    },
    /// Flips left and right with probability `p`.
    RandomHorizontalFlip { p: f64 },
    /// Flips top and bottom with probability `p`.
    RandomVerticalFlip { p: f64 },
    /// Adjusts colours by factors from these ranges; `None` leaves an adjustment out.
    ColorJitter {
        brightness: Option<[f64; 2]>,
        contrast: Option<[f64; 2]>,
        saturation: Option<[f64; 2]>,
        hue: Option<[f64; 2]>,
    },
    /// Converts pixels to numbers: floats in `[0, 1]`, uint8 unchanged.
    ToTensor { dtype: Dtype, layout: AxisLayout },
    /// Computes `(x - mean) / std` for each channel.
    Normalize { mean: Vec<f64>, std: Vec<f64> },
    /// Changes the shape. A `None` extent takes the remaining numbers.
    Reshape { shape: Vec<Option<usize>> },
    /// Computes `x * scale + shift`, for all numbers or for each channel.
    ScaleShift { scale: Vec<f64>, shift: Vec<f64> },
    /// Computes `ln(x + offset)`.
    Log { offset: f64 },
    /// Converts numbers to another dtype by value.
    ToDtype { dtype: Dtype },
}

/// One or two extents, as in torchvision: `[shorter side]` or `[height, width]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(pub Vec<u32>);

/// The channels that an image is decoded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Three channels.
    #[serde(rename = "RGB")]
    Rgb,
    /// One channel.
    #[serde(rename = "GRAY")]
    Gray,
    /// The one to four channels of the file.
    #[serde(rename = "UNCHANGED")]
    Unchanged,
}

/// How pixels are interpolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// Linear in both directions.
    Bilinear,
    /// Cubic in both directions.
    Bicubic,
}

/// The order of an image's axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AxisLayout {
    /// Channels, height, width.
    #[serde(rename = "CHW")]
    Chw,
    /// Height, width, channels.
    #[serde(rename = "HWC")]
    Hwc,
}

/// The pixels beyond the edge of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingMode {
    /// A constant, see [`PadFill`].
    Constant,
    /// The nearest pixel of the edge.
    Edge,
    /// The mirror image without the edge.
    Reflect,
    /// The mirror image with the edge.
    Symmetric,
}

/// The pixels of a constant padding: one value, or one per channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PadFill(pub Vec<u8>);

impl TransformStep {
    /// The names of all steps.
    pub const NAMES: [&'static str; 19] = [
        "Decode",
        "Raw",
        "Numpy",
        "Int",
        "Float",
        "Resize",
        "CenterCrop",
        "RandomResizedCrop",
        "RandomCrop",
        "Pad",
        "RandomHorizontalFlip",
        "RandomVerticalFlip",
        "ColorJitter",
        "ToTensor",
        "Normalize",
        "Reshape",
        "ScaleShift",
        "Log",
        "ToDtype",
    ];

    /// Returns whether the step's input is an image.
    pub const fn works_on_images(&self) -> bool {
        matches!(
            self,
            Self::Resize { .. }
                | Self::CenterCrop { .. }
                | Self::RandomResizedCrop { .. }
                | Self::RandomCrop { .. }
                | Self::Pad { .. }
                | Self::RandomHorizontalFlip { .. }
                | Self::RandomVerticalFlip { .. }
                | Self::ColorJitter { .. }
                | Self::ToTensor { .. }
        )
    }

    /// Returns the step's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Decode { .. } => "Decode",
            Self::Raw { .. } => "Raw",
            Self::Numpy => "Numpy",
            Self::Int => "Int",
            Self::Float => "Float",
            Self::Resize { .. } => "Resize",
            Self::CenterCrop { .. } => "CenterCrop",
            Self::RandomResizedCrop { .. } => "RandomResizedCrop",
            Self::RandomCrop { .. } => "RandomCrop",
            Self::Pad { .. } => "Pad",
            Self::RandomHorizontalFlip { .. } => "RandomHorizontalFlip",
            Self::RandomVerticalFlip { .. } => "RandomVerticalFlip",
            Self::ColorJitter { .. } => "ColorJitter",
            Self::ToTensor { .. } => "ToTensor",
            Self::Normalize { .. } => "Normalize",
            Self::Reshape { .. } => "Reshape",
            Self::ScaleShift { .. } => "ScaleShift",
            Self::Log { .. } => "Log",
            Self::ToDtype { .. } => "ToDtype",
        }
    }
}

//! The steps of a chain, as plain data.
//!
//! Their names and arguments are those of `torchvision.transforms.v2`; where a name is not known
//! there, of what it does. Written as JSON a step is `{"op": "Resize", "size": [256]}`.

use serde::{Deserialize, Serialize};

use crate::array::Dtype;

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", deny_unknown_fields)]
pub enum Step {
    /// An image file becomes pixels: JPEG, PNG, WebP, BMP, the first frame of a GIF; told by its
    /// content, not by its name.
    Decode {
        mode: Mode,
        /// Turns it as its EXIF data say. torchvision and PIL do not by default.
        apply_exif_orientation: bool,
        /// More pixels than this are refused before memory is taken for them.
        max_pixels: u64,
        /// Decodes JPEGs that become much smaller at half, a quarter or an eighth of their size.
        /// Pixels are not quite torchvision's then.
        #[serde(default)]
        dct_scaling: bool,
    },
    /// The bytes are an array of this shape. A `None` extent takes what is left.
    Raw {
        dtype: Dtype,
        shape: Vec<Option<usize>>,
    },
    /// The bytes are a file of NumPy (`.npy`).
    Numpy,
    /// The bytes are a whole number in decimal text, such as a label: an int64 without extents.
    Int,
    /// The bytes are a number in decimal text: a float32 without extents.
    Float,
    Resize {
        size: Size,
        interpolation: Interpolation,
        max_size: Option<u32>,
        antialias: bool,
    },
    CenterCrop {
        size: Size,
    },
    RandomResizedCrop {
        size: Size,
        scale: [f64; 2],
        ratio: [f64; 2],
        interpolation: Interpolation,
        antialias: bool,
    },
    RandomCrop {
        size: Size,
        /// Left, top, right, bottom.
        padding: Option<[u32; 4]>,
        pad_if_needed: bool,
        fill: Fill,
        padding_mode: PaddingMode,
    },
    /// Left, top, right, bottom.
    Pad {
        padding: [u32; 4],
        fill: Fill,
        padding_mode: PaddingMode,
    },
    RandomHorizontalFlip {
        p: f64,
    },
    RandomVerticalFlip {
        p: f64,
    },
    /// Ranges that factors are drawn from, as torchvision's; `None` leaves it out.
    ColorJitter {
        brightness: Option<[f64; 2]>,
        contrast: Option<[f64; 2]>,
        saturation: Option<[f64; 2]>,
        hue: Option<[f64; 2]>,
    },
    /// Pixels become numbers: for floats in `[0, 1]`, for uint8 as they are.
    ToTensor {
        dtype: Dtype,
        layout: Layout,
    },
    /// `(x - mean) / std` for each channel.
    Normalize {
        mean: Vec<f64>,
        std: Vec<f64>,
    },
    /// A `None` extent takes what is left.
    Reshape {
        shape: Vec<Option<usize>>,
    },
    /// `x * scale + shift`, for all numbers or for each channel.
    ScaleShift {
        scale: Vec<f64>,
        shift: Vec<f64>,
    },
    /// `ln(x + offset)`.
    Log {
        offset: f64,
    },
    /// Numbers of another kind, by value.
    ToDtype {
        dtype: Dtype,
    },
}

/// An extent or two, as torchvision takes them: `[shorter side]` or `[height, width]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(pub Vec<u32>);

/// What pixels are decoded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    #[serde(rename = "RGB")]
    Rgb,
    #[serde(rename = "GRAY")]
    Gray,
    /// As they are in the file: one to four channels.
    #[serde(rename = "UNCHANGED")]
    Unchanged,
}

/// How pixels between pixels are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    Nearest,
    Bilinear,
    Bicubic,
}

/// How the axes of an image follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    #[serde(rename = "CHW")]
    Chw,
    #[serde(rename = "HWC")]
    Hwc,
}

/// What is beyond the edge of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingMode {
    Constant,
    Edge,
    Reflect,
    Symmetric,
}

/// The pixels of a constant padding: one value, or one a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fill(pub Vec<u8>);

impl Step {
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

    /// Whether it takes an image and nothing else.
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

    /// Its name, as people write it.
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

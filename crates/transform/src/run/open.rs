//! The first look at a sample, before anything is decoded.

use super::image::Picture;
use crate::array::{Array, Dtype, Output};
use crate::check;
use crate::codec::{self, Wanted};
use crate::error::TransformError;
use crate::flow::{Flow, Image, Tensor};
use crate::npy::Npy;
use crate::step::{Mode, Step};

/// A sample whose size is known.
#[derive(Debug)]
pub enum Opened<'a> {
    Bytes(&'a [u8]),
    Image {
        picture: Picture<'a>,
        image: Image,
    },
    Raw {
        dtype: Dtype,
        bytes: &'a [u8],
    },
    /// What a Python function has given.
    Array(&'a Array),
    Npy(Npy<'a>),
    Scalar {
        dtype: Dtype,
        bytes: [u8; 8],
    },
}

impl<'a> Opened<'a> {
    /// A sample as the chain's first step takes it.
    pub fn sample(step: Option<&Step>, sample: &'a [u8]) -> Result<Self, TransformError> {
        match step {
            Some(Step::Decode { mode, apply_exif_orientation, max_pixels, dct_scaling }) => {
                let wanted = Wanted {
                    mode: *mode,
                    apply_exif_orientation: *apply_exif_orientation,
                    max_pixels: *max_pixels,
                    region: None,
                };
                encoded(sample, wanted, *dct_scaling)
            }
            Some(Step::Raw { dtype, shape }) => {
                raw_fits(*dtype, shape, sample.len())?;
                Ok(Self::Raw { dtype: *dtype, bytes: sample })
            }
            Some(Step::Numpy) => Npy::parse(sample).map(Self::Npy),
            Some(Step::Int) => {
                let number: i64 = parsed(sample, "a whole number of 64 bits")?;
                Ok(Self::Scalar { dtype: Dtype::Int64, bytes: number.to_ne_bytes() })
            }
            Some(Step::Float) => {
                let number: f32 = parsed(sample, "a number")?;
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&number.to_ne_bytes());
                Ok(Self::Scalar { dtype: Dtype::Float32, bytes })
            }
            _ => Ok(Self::Bytes(sample)),
        }
    }

    /// An array as the chain's first step takes it.
    pub fn array(step: Option<&Step>, array: &'a Array) -> Result<Self, TransformError> {
        let count = array.shape.iter().try_fold(array.dtype.size(), |n, &e| n.checked_mul(e));
        if count != Some(array.bytes.len()) {
            return Err(TransformError(format!(
                "an array of {} and shape {:?} does not have {} bytes",
                array.dtype,
                array.shape,
                array.bytes.len()
            )));
        }
        let output = Output { dtype: Some(array.dtype), shape: Some(array.shape.clone()) };
        match Flow::of(&output, step).map_err(TransformError)? {
            Flow::Image(image) => Ok(Self::Image { picture: Picture::Pixels(&array.bytes), image }),
            _ => Ok(Self::Array(array)),
        }
    }

    /// What flows out of the chain's first step; all of it is known.
    pub fn flow(&self, step: Option<&Step>) -> Flow {
        let tensor = |dtype, shape| {
            Flow::Tensor(Tensor {
                dtype: Some(dtype),
                shape: Some(shape),
                layout: None,
                origin: "",
            })
        };
        match self {
            Self::Bytes(_) => Flow::Bytes,
            Self::Image { image, .. } => Flow::Image(*image),
            Self::Npy(npy) => tensor(npy.dtype, npy.shape.iter().copied().map(Some).collect()),
            Self::Scalar { dtype, .. } => tensor(*dtype, vec![]),
            Self::Array(Array { dtype, shape, .. }) => {
                tensor(*dtype, shape.iter().copied().map(Some).collect())
            }
            Self::Raw { dtype, bytes } => {
                let count = bytes.len() / dtype.size();
                let shape = match step {
                    Some(Step::Raw { shape, .. }) => check::filled(shape, count),
                    _ => vec![Some(count)],
                };
                tensor(*dtype, shape)
            }
        }
    }
}

fn encoded(bytes: &[u8], wanted: Wanted, dct_scaling: bool) -> Result<Opened<'_>, TransformError> {
    let info = codec::probe(bytes)?;
    // Before memory is taken for what the chain makes of it.
    codec::check_size(&info, &wanted)?;
    let (channels, origin) = match wanted.mode {
        Mode::Rgb => (3, " after Decode(mode=\"RGB\")"),
        Mode::Gray => (1, " after Decode(mode=\"GRAY\")"),
        Mode::Unchanged => (info.channels, ""),
    };
    let size = info.size(wanted.apply_exif_orientation);
    let max_pixels = wanted.max_pixels;
    let (size, channels) = (Some(size), Some(channels));
    let image = Image { size, shorter: None, channels, max_pixels, origin };
    Ok(Opened::Image { picture: Picture::Encoded { bytes, wanted, dct_scaling }, image })
}

/// Whether this many bytes make an array of this shape.
fn raw_fits(dtype: Dtype, shape: &[Option<usize>], length: usize) -> Result<(), TransformError> {
    let known = shape.iter().flatten().product::<usize>() * dtype.size();
    let open = shape.contains(&None);
    if (open && length.is_multiple_of(known)) || (!open && length == known) {
        return Ok(());
    }
    let make = if open { "a multiple of " } else { "" };
    Err(TransformError(format!(
        "it has {length} bytes, where {make}{known} make the array of {dtype}"
    )))
}

fn parsed<T: std::str::FromStr>(sample: &[u8], what: &str) -> Result<T, TransformError> {
    let text = str::from_utf8(sample).ok().map(str::trim);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let start = String::from_utf8_lossy(&sample[..sample.len().min(20)]);
        TransformError(format!("it is not {what} in decimal text: it begins with {start:?}"))
    })
}

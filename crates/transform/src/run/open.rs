//! Reads the header of a sample, before anything is decoded.

use super::image::ImageInput;
use crate::array::{Array, Dtype, Output};
use crate::check;
use crate::codec::{self, DecodeRequest};
use crate::error::TransformError;
use crate::flow::{Flow, ImageSpec, TensorSpec};
use crate::npy::Npy;
use crate::step::{Mode, TransformStep};

/// A sample whose type and size are known.
#[derive(Debug)]
pub enum Opened<'a> {
    Bytes(&'a [u8]),
    Image {
        picture: ImageInput<'a>,
        image: ImageSpec,
    },
    Raw {
        dtype: Dtype,
        bytes: &'a [u8],
    },
    /// The output of a Python function.
    Array(&'a Array),
    Npy(Npy<'a>),
    Scalar {
        dtype: Dtype,
        bytes: [u8; 8],
    },
}

impl<'a> Opened<'a> {
    /// Opens a sample for the chain's first step.
    pub fn sample(step: Option<&TransformStep>, sample: &'a [u8]) -> Result<Self, TransformError> {
        match step {
            Some(TransformStep::Decode {
                mode,
                apply_exif_orientation,
                max_pixels,
                dct_scaling,
            }) => {
                let wanted = DecodeRequest {
                    mode: *mode,
                    apply_exif_orientation: *apply_exif_orientation,
                    max_pixels: *max_pixels,
                    region: None,
                };
                encoded(sample, wanted, *dct_scaling)
            }
            Some(TransformStep::Raw { dtype, shape }) => {
                raw_fits(*dtype, shape, sample.len())?;
                Ok(Self::Raw { dtype: *dtype, bytes: sample })
            }
            Some(TransformStep::Numpy) => Npy::parse(sample).map(Self::Npy),
            Some(TransformStep::Int) => {
                let number: i64 = parsed(sample, "a 64-bit integer")?;
                Ok(Self::Scalar { dtype: Dtype::Int64, bytes: number.to_ne_bytes() })
            }
            Some(TransformStep::Float) => {
                let number: f32 = parsed(sample, "a number")?;
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&number.to_ne_bytes());
                Ok(Self::Scalar { dtype: Dtype::Float32, bytes })
            }
            _ => Ok(Self::Bytes(sample)),
        }
    }

    /// Opens an array for the chain's first step.
    pub fn array(step: Option<&TransformStep>, array: &'a Array) -> Result<Self, TransformError> {
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
            Flow::Image(image) => {
                Ok(Self::Image { picture: ImageInput::Pixels(&array.bytes), image })
            }
            _ => Ok(Self::Array(array)),
        }
    }

    /// Returns the output of the chain's first step.
    pub fn flow(&self, step: Option<&TransformStep>) -> Flow {
        let tensor = |dtype, shape| {
            Flow::Tensor(TensorSpec {
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
                    Some(TransformStep::Raw { shape, .. }) => check::filled(shape, count),
                    _ => vec![Some(count)],
                };
                tensor(*dtype, shape)
            }
        }
    }
}

fn encoded(
    bytes: &[u8],
    wanted: DecodeRequest,
    dct_scaling: bool,
) -> Result<Opened<'_>, TransformError> {
    let info = codec::probe(bytes)?;
    // Before memory is allocated for the output.
    codec::check_size(&info, &wanted)?;
    let (channels, origin) = match wanted.mode {
        Mode::Rgb => (3, " after Decode(mode=\"RGB\")"),
        Mode::Gray => (1, " after Decode(mode=\"GRAY\")"),
        Mode::Unchanged => (info.channels, ""),
    };
    let size = info.size(wanted.apply_exif_orientation);
    let max_pixels = wanted.max_pixels;
    let (size, channels) = (Some(size), Some(channels));
    let image = ImageSpec { size, shorter: None, channels, max_pixels, origin };
    Ok(Opened::Image { picture: ImageInput::Encoded { bytes, wanted, dct_scaling }, image })
}

/// Checks that this many bytes are an array of this shape.
fn raw_fits(dtype: Dtype, shape: &[Option<usize>], length: usize) -> Result<(), TransformError> {
    let known = shape.iter().flatten().product::<usize>() * dtype.size();
    let open = shape.contains(&None);
    if (open && length.is_multiple_of(known)) || (!open && length == known) {
        return Ok(());
    }
    let make = if open { "a multiple of " } else { "" };
    Err(TransformError(format!(
        "it has {length} bytes, but the array of {dtype} needs {make}{known}"
    )))
}

fn parsed<T: std::str::FromStr>(sample: &[u8], what: &str) -> Result<T, TransformError> {
    let text = str::from_utf8(sample).ok().map(str::trim);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| {
        let start = String::from_utf8_lossy(&sample[..sample.len().min(20)]);
        TransformError(format!("it is not {what} in decimal text: it begins with {start:?}"))
    })
}

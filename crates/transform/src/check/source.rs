//! Checks of steps that read the sample's bytes.

use crate::array::Dtype;
use crate::flow::{ImageSpec, TensorSpec};
use crate::step::Mode;

pub fn decode(mode: Mode, max_pixels: u64) -> Result<ImageSpec, String> {
    if max_pixels == 0 {
        return Err("max_pixels is 0; give the most pixels that an image may have".into());
    }
    let (channels, origin) = match mode {
        Mode::Rgb => (Some(3), " after Decode(mode=\"RGB\")"),
        Mode::Gray => (Some(1), " after Decode(mode=\"GRAY\")"),
        Mode::Unchanged => (None, ""),
    };
    Ok(ImageSpec { size: None, shorter: None, channels, max_pixels, origin })
}

pub fn raw(dtype: Dtype, shape: &[Option<usize>]) -> Result<TensorSpec, String> {
    super::tensor::one_open_extent(shape)?;
    super::tensor::fits_memory(shape, dtype.size())?;
    Ok(TensorSpec { shape: Some(shape.to_vec()), ..plain(Some(dtype)) })
}

/// The type and shape are known when the file is read.
pub fn numpy() -> TensorSpec {
    plain(None)
}

pub fn int() -> TensorSpec {
    TensorSpec { shape: Some(vec![]), ..plain(Some(Dtype::Int64)) }
}

pub fn float() -> TensorSpec {
    TensorSpec { shape: Some(vec![]), ..plain(Some(Dtype::Float32)) }
}

fn plain(dtype: Option<Dtype>) -> TensorSpec {
    TensorSpec { dtype, shape: None, layout: None, origin: "" }
}

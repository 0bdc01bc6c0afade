//! Steps that read the sample's bytes.

use crate::array::Dtype;
use crate::flow::{Image, Tensor};
use crate::step::Mode;

pub fn decode(mode: Mode, max_pixels: u64) -> Result<Image, String> {
    if max_pixels == 0 {
        return Err("max_pixels is 0; let it be the most pixels that an image may have".into());
    }
    let (channels, origin) = match mode {
        Mode::Rgb => (Some(3), " after Decode(mode=\"RGB\")"),
        Mode::Gray => (Some(1), " after Decode(mode=\"GRAY\")"),
        Mode::Unchanged => (None, ""),
    };
    Ok(Image { size: None, shorter: None, channels, max_pixels, origin })
}

pub fn raw(dtype: Dtype, shape: &[Option<usize>]) -> Result<Tensor, String> {
    super::tensor::one_open_extent(shape)?;
    super::tensor::fits_memory(shape, dtype.size())?;
    Ok(Tensor { shape: Some(shape.to_vec()), ..plain(Some(dtype)) })
}

/// What is in the file is only known when it is read.
pub fn numpy() -> Tensor {
    plain(None)
}

pub fn int() -> Tensor {
    Tensor { shape: Some(vec![]), ..plain(Some(Dtype::Int64)) }
}

pub fn float() -> Tensor {
    Tensor { shape: Some(vec![]), ..plain(Some(Dtype::Float32)) }
}

fn plain(dtype: Option<Dtype>) -> Tensor {
    Tensor { dtype, shape: None, layout: None, origin: "" }
}

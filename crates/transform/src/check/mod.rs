//! Checks whether a step accepts its input, and computes its output.
//!
//! One small function per step. An error is the second half of a sentence whose first half names
//! the step: "step 3 (Normalize): needs floats; put ToTensor before it".

mod image;
mod source;
mod tensor;

use crate::flow::{Flow, ImageSpec, TensorSpec};
use crate::step::TransformStep;

pub use image::step as image_step;
pub use tensor::filled;

/// Returns the output of `step` for the input `flow`.
pub fn step(step: &TransformStep, flow: &Flow) -> Result<Flow, String> {
    match step {
        TransformStep::Decode { mode, max_pixels, .. } => {
            first(flow)?;
            source::decode(*mode, *max_pixels).map(Flow::Image)
        }
        TransformStep::Raw { dtype, shape } => {
            first(flow)?;
            source::raw(*dtype, shape).map(Flow::Tensor)
        }
        TransformStep::Numpy => first(flow).map(|()| Flow::Tensor(source::numpy())),
        TransformStep::Int => first(flow).map(|()| Flow::Tensor(source::int())),
        TransformStep::Float => first(flow).map(|()| Flow::Tensor(source::float())),
        TransformStep::ToTensor { dtype, layout } => {
            image::to_tensor(*dtype, *layout, needs_image(flow)?).map(Flow::Tensor)
        }
        TransformStep::Normalize { mean, std } => {
            tensor::normalize(mean, std, needs_floats(flow)?).map(Flow::Tensor)
        }
        TransformStep::Reshape { shape } => {
            tensor::reshape(shape, needs_tensor(flow)?).map(Flow::Tensor)
        }
        TransformStep::ScaleShift { scale, shift } => {
            tensor::scale_shift(scale, shift, needs_floats(flow)?).map(Flow::Tensor)
        }
        TransformStep::Log { offset } => {
            tensor::log(*offset, needs_floats(flow)?).map(Flow::Tensor)
        }
        TransformStep::ToDtype { dtype } => {
            tensor::to_dtype(*dtype, needs_tensor(flow)?).map(Flow::Tensor)
        }
        on_image => image::step(on_image, needs_image(flow)?).map(Flow::Image),
    }
}

/// Checks the input of a step that reads the sample's bytes.
fn first(flow: &Flow) -> Result<(), String> {
    match flow {
        Flow::Bytes => Ok(()),
        _ => Err("reads the sample's bytes; make it the first step".into()),
    }
}

fn needs_image(flow: &Flow) -> Result<ImageSpec, String> {
    match flow {
        Flow::Image(image) => Ok(*image),
        Flow::Bytes => Err("works on images; put Decode before it".into()),
        Flow::Tensor(TensorSpec { layout: Some(_), .. }) => {
            Err("works on images and not on tensors; put it before ToTensor".into())
        }
        Flow::Tensor(_) => {
            Err("works on images, but an array comes in; begin with Decode instead".into())
        }
    }
}

fn needs_tensor(flow: &Flow) -> Result<&TensorSpec, String> {
    match flow {
        Flow::Tensor(tensor) => Ok(tensor),
        Flow::Image(_) => Err("works on tensors; put ToTensor before it".into()),
        Flow::Bytes => Err("works on numbers; begin with Raw, Numpy or Decode".into()),
    }
}

fn needs_floats(flow: &Flow) -> Result<&TensorSpec, String> {
    match flow {
        Flow::Image(_) => Err("needs floats; put ToTensor before it".into()),
        _ => match needs_tensor(flow)? {
            TensorSpec { dtype: Some(dtype), layout, .. } if !dtype.is_float() => {
                let remedy = if layout.is_some() && *dtype == crate::Dtype::Uint8 {
                    "let ToTensor give float32"
                } else {
                    "put ToDtype(\"float32\") before it"
                };
                Err(format!("needs floats, but {dtype} comes in; {remedy}"))
            }
            tensor => Ok(tensor),
        },
    }
}

//! Folds steps into `ToTensor`.
//!
//! A pixel is a byte, so an operation on single numbers is a table of 256 numbers per channel, made
//! once for the chain. `ToTensor` includes the following `Normalize`, `ScaleShift`, `Log` and
//! `ToDtype` in its tables.

use half::{bf16, f16};

use crate::array::Dtype;
use crate::error::TransformError;
use crate::ops::tensor::Tables;
use crate::step::{AxisLayout, TransformStep};

/// How an image becomes a tensor.
#[derive(Clone, Debug)]
pub struct Folded {
    pub tables: Tables,
    pub layout: AxisLayout,
    /// The number of folded steps with `ToTensor`; 0 if the chain ends in an image.
    pub steps: usize,
}

/// Folds the steps after the image steps. An error includes the index of its step.
pub fn fold(steps: &[TransformStep]) -> Result<Folded, (usize, TransformError)> {
    let at = |place: usize| move |error: TransformError| (place, error);
    let Some((TransformStep::ToTensor { dtype, layout }, rest)) = steps.split_first() else {
        let tables = Tables::to_tensor(Dtype::Uint8).map_err(at(0))?;
        return Ok(Folded { tables, layout: AxisLayout::Hwc, steps: 0 });
    };
    let mut tables = Tables::to_tensor(*dtype).map_err(at(0))?;
    let mut folded = 1;
    for step in rest {
        let Some(more) = folded_into(&tables, step) else { break };
        tables = more.map_err(at(folded))?;
        folded += 1;
    }
    Ok(Folded { tables, layout: *layout, steps: folded })
}

fn folded_into(tables: &Tables, step: &TransformStep) -> Option<Result<Tables, TransformError>> {
    let dtype = tables.dtype();
    let tables = tables.clone();
    Some(match step {
        TransformStep::Normalize { mean, std } => tables.normalize(mean, std),
        TransformStep::ScaleShift { scale, shift } => {
            let at = |factors: &[f64], channel: usize| {
                rounded(dtype, factors[channel.min(factors.len() - 1)])
            };
            tables
                .map(scale.len(), |channel, x| x * at(scale, channel))
                .and_then(|tables| tables.map(shift.len(), |channel, x| x + at(shift, channel)))
        }
        TransformStep::Log { offset } => tables
            .map(1, |_, x| x + rounded(dtype, *offset))
            .and_then(|tables| tables.map(1, |_, x| x.ln())),
        TransformStep::ToDtype { dtype: wanted } if is_table(*wanted) => tables.to_dtype(*wanted),
        _ => return None,
    })
}

/// Returns whether tables support this dtype.
fn is_table(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Uint8 | Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32)
}

/// Rounds a factor to the dtype.
fn rounded(dtype: Dtype, factor: f64) -> f32 {
    match dtype {
        Dtype::Float16 => f16::from_f32(factor as f32).to_f32(),
        Dtype::Bfloat16 => bf16::from_f32(factor as f32).to_f32(),
        _ => factor as f32,
    }
}

//! Checks of steps that work on numbers.

use crate::array::{Dtype, bytes_of};
use crate::flow::TensorSpec;

pub fn normalize(mean: &[f64], std: &[f64], tensor: &TensorSpec) -> Result<TensorSpec, String> {
    if mean.is_empty() || mean.len() != std.len() {
        return Err(format!(
            "has {} and {}; give one of each per channel",
            counted(mean.len(), "mean"),
            counted(std.len(), "std")
        ));
    }
    finite("mean", mean)?;
    finite("std", std)?;
    if let Some(at) = std.iter().position(|&std| std == 0.0) {
        return Err(format!("std {} is zero; give a number to divide by", at + 1));
    }
    factors_fit("mean", mean.len(), tensor)?;
    Ok(tensor.clone())
}

pub fn scale_shift(
    scale: &[f64],
    shift: &[f64],
    tensor: &TensorSpec,
) -> Result<TensorSpec, String> {
    for (what, factors) in [("scale", scale), ("shift", shift)] {
        if factors.is_empty() {
            return Err(format!("has no {what}; give one, or one per channel"));
        }
        finite(what, factors)?;
        factors_fit(what, factors.len(), tensor)?;
    }
    if scale.len() > 1 && shift.len() > 1 && scale.len() != shift.len() {
        return Err(format!(
            "has {} and {}; give one of each per channel",
            counted(scale.len(), "scale"),
            counted(shift.len(), "shift")
        ));
    }
    Ok(tensor.clone())
}

pub fn log(offset: f64, tensor: &TensorSpec) -> Result<TensorSpec, String> {
    finite("offset", &[offset])?;
    Ok(tensor.clone())
}

pub fn to_dtype(dtype: Dtype, tensor: &TensorSpec) -> Result<TensorSpec, String> {
    fits_memory(tensor.shape.as_deref().unwrap_or_default(), dtype.size())?;
    Ok(TensorSpec { dtype: Some(dtype), ..tensor.clone() })
}

/// Checks the number of factors: one for all numbers, or one per channel.
fn factors_fit(what: &str, factors: usize, tensor: &TensorSpec) -> Result<(), String> {
    let (true, Some(shape)) = (factors > 1, &tensor.shape) else { return Ok(()) };
    let has = counted(factors, what);
    let Some(&extent) = shape.get(tensor.channel_axis(factors)) else {
        return Err(format!("has {has}, but a single number without extents comes in"));
    };
    match extent {
        Some(channels) if channels != factors && tensor.layout.is_some() => Err(format!(
            "has {has}, but the image has {}{}",
            counted(channels, "channel"),
            tensor.origin
        )),
        Some(channels) if channels != factors => Err(format!(
            "has {has}, but the array has {} (its first extent)",
            counted(channels, "channel")
        )),
        _ => Ok(()),
    }
}

pub fn reshape(shape: &[Option<usize>], tensor: &TensorSpec) -> Result<TensorSpec, String> {
    one_open_extent(shape)?;
    fits_memory(shape, tensor.dtype.map_or(1, Dtype::size))?;
    let mut shape = shape.to_vec();
    if let Some(count) = tensor.count() {
        fill_open_extent(&mut shape, count).map_err(|to| {
            format!("its input has {count} numbers, which do not fit the shape {to}")
        })?;
    }
    Ok(TensorSpec { shape: Some(shape), layout: None, ..tensor.clone() })
}

/// Sets the open extent to the remaining of `count` numbers. The error is the shape as text.
fn fill_open_extent(shape: &mut [Option<usize>], count: usize) -> Result<(), String> {
    let known: usize = shape.iter().flatten().product();
    let wanted = shown(shape);
    match shape.iter_mut().find(|extent| extent.is_none()) {
        Some(open) if known > 0 && count.is_multiple_of(known) => *open = Some(count / known),
        None if known == count => {}
        _ => return Err(wanted),
    }
    Ok(())
}

/// Returns the shape of `count` numbers, which are known to fit.
pub fn filled(shape: &[Option<usize>], count: usize) -> Vec<Option<usize>> {
    let mut shape = shape.to_vec();
    let fits = fill_open_extent(&mut shape, count);
    debug_assert!(fits.is_ok());
    shape
}

pub fn one_open_extent(shape: &[Option<usize>]) -> Result<(), String> {
    if shape.iter().filter(|extent| extent.is_none()).count() > 1 {
        return Err(format!("shape {} leaves more than one extent open", shown(shape)));
    }
    if shape.contains(&None) && shape.contains(&Some(0)) {
        return Err(format!("shape {} has an extent of 0 beside an open one", shown(shape)));
    }
    Ok(())
}

pub fn fits_memory(shape: &[Option<usize>], size: usize) -> Result<(), String> {
    match bytes_of(shape.iter().flatten().copied(), size) {
        Some(_) => Ok(()),
        None => Err(format!("shape {} exceeds the address space", shown(shape))),
    }
}

/// Formats a shape like Python.
fn shown(shape: &[Option<usize>]) -> String {
    let extents: Vec<String> =
        shape.iter().map(|extent| extent.map_or("None".into(), |n| n.to_string())).collect();
    format!("[{}]", extents.join(", "))
}

fn finite(what: &str, factors: &[f64]) -> Result<(), String> {
    match factors.iter().find(|factor| !factor.is_finite()) {
        Some(factor) => Err(format!("{what} {factor} is not a finite number")),
        None => Ok(()),
    }
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

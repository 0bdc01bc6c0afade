//! Checks arguments from Python.

use std::time::Duration;

use belady_engine::BadSamples;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// Returns a `ValueError` with the sentence of an error.
pub fn wrong(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Checks a sample's number.
pub fn sample_id(sample: i64, samples: u32) -> PyResult<u32> {
    u32::try_from(sample).ok().filter(|&id| id < samples).ok_or_else(|| {
        PyIndexError::new_err(format!("there is no sample {sample}; the dataset has {samples}"))
    })
}

/// Checks a positive number.
pub fn positive(name: &str, value: i64) -> PyResult<u32> {
    u32::try_from(value).ok().filter(|&value| value > 0).ok_or_else(|| {
        PyValueError::new_err(format!("{name} must be from 1 to {}, not {value}", u32::MAX))
    })
}

/// Returns a `TypeError` that names the type of the argument.
pub fn no_type(what: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let kind = given.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string());
    PyTypeError::new_err(format!("{what}, not {kind}"))
}

/// Checks a number of seconds.
pub fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        PyValueError::new_err(format!(
            "{name} must be a number of seconds that is not negative, not {value}"
        ))
    })
}

/// Parses the handling of samples that cannot be read.
pub fn bad_samples(argument: &str, name: &str) -> PyResult<BadSamples> {
    match name {
        "raise" => Ok(BadSamples::Raise),
        "skip" => Ok(BadSamples::Skip),
        "replace" => Ok(BadSamples::Replace),
        _ => Err(PyValueError::new_err(format!(
            "{argument} must be \"raise\", \"skip\" or \"replace\", not {name:?}"
        ))),
    }
}

//! Errors as Python raises them.
//!
//! A wrong argument is a `ValueError`, a sample that cannot be read a `SampleError` with its
//! number and path, a wait without end a `StalledError`; what a callback raised is raised again
//! as it was.

use std::error::Error;
use std::io::ErrorKind;

use belady_control::sampler::OrderError;
use belady_data::source::{OpenError, ReadError};
use belady_engine::EngineError;
use pyo3::create_exception;
use pyo3::exceptions::{
    PyException, PyFileNotFoundError, PyIndexError, PyOSError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;

create_exception!(
    belady,
    BeladyError,
    PyException,
    "Something failed that is no mistake in an argument."
);
create_exception!(belady, SampleError, BeladyError, "A sample could not be read.");
create_exception!(
    belady,
    StalledError,
    BeladyError,
    "The source does not answer, or all of the staging buffer is held by the caller."
);

/// A mistake in an argument, as the crates say it.
pub fn wrong(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

pub fn defect() -> PyErr {
    BeladyError::new_err("a thread of belady ended with a panic, which is a defect of belady")
}

/// Why a dataset cannot be opened: the user's mistake, or the storage's.
pub fn opening(error: &OpenError) -> PyErr {
    let text = error.to_string();
    match error {
        // As ImageFolder raises it.
        OpenError::Missing { .. } | OpenError::EmptyClasses { .. } => {
            PyFileNotFoundError::new_err(text)
        }
        OpenError::NoFile { error, .. } if error.kind() == ErrorKind::NotFound => {
            PyFileNotFoundError::new_err(text)
        }
        OpenError::Unreadable { .. } | OpenError::NoFile { .. } => PyOSError::new_err(text),
        OpenError::Index(_) => BeladyError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

/// Why a sample cannot be read.
pub fn reading(py: Python<'_>, error: &ReadError) -> PyErr {
    sample_error(py, error, error.to_string())
}

/// Why there is no order for an epoch.
pub fn ordering(py: Python<'_>, error: &OrderError) -> PyErr {
    raised_before(py, error).unwrap_or_else(|| PyValueError::new_err(error.to_string()))
}

/// What a callback raised, if that is behind an error.
fn raised_before(py: Python<'_>, error: &(dyn Error + 'static)) -> Option<PyErr> {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<PyErr>()).map(|it| it.clone_ref(py))
}

pub fn running(py: Python<'_>, error: &EngineError) -> PyErr {
    if let Some(raised) = raised_before(py, error) {
        return raised;
    }
    let text = error.to_string();
    match error {
        EngineError::BadSample { error, .. } => sample_error(py, error, text),
        EngineError::SourceHangs { .. } | EngineError::AllLent { .. } => {
            StalledError::new_err(text)
        }
        EngineError::StagingTooSmall { .. }
        | EngineError::SimulatorOnly(..)
        | EngineError::Policy(_)
        | EngineError::Sampler(_)
        | EngineError::Order(_)
        | EngineError::EmptyEpochs { .. } => PyValueError::new_err(text),
        EngineError::Trace { .. } => PyOSError::new_err(text),
        _ => BeladyError::new_err(text),
    }
}

fn sample_error(py: Python<'_>, error: &ReadError, text: String) -> PyErr {
    let raised = SampleError::new_err(text);
    let value = raised.value(py);
    let told = value
        .setattr("sample", error.sample())
        .and_then(|()| value.setattr("path", error.path().as_os_str()));
    match told {
        Ok(()) => raised,
        Err(other) => other,
    }
}

/// A sample's number as Python gives it.
pub fn sample_id(sample: i64, samples: u32) -> PyResult<u32> {
    u32::try_from(sample).ok().filter(|&id| id < samples).ok_or_else(|| {
        PyIndexError::new_err(format!("there is no sample {sample}; the dataset has {samples}"))
    })
}

/// A number that has to be positive.
pub fn positive(name: &str, value: i64) -> PyResult<u32> {
    u32::try_from(value).ok().filter(|&value| value > 0).ok_or_else(|| {
        PyValueError::new_err(format!("{name} must be from 1 to {}, not {value}", u32::MAX))
    })
}

pub fn no_type(what: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let kind = given.get_type().name().map_or_else(|_| "object".into(), |name| name.to_string());
    PyTypeError::new_err(format!("{what}, not {kind}"))
}

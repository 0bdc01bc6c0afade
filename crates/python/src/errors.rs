//! Converts errors to Python exceptions.
//!
//! A wrong argument is a `ValueError`, a sample that cannot be read is a `SampleError` with its
//! number and path, and a wait that makes no progress is a `StalledError`. An exception of a
//! callback is raised unchanged.

use std::error::Error;
use std::io::ErrorKind;
use std::path::Path;

use belady_control::sampler::OrderError;
use belady_data::source::{OpenError, ReadError};
use belady_engine::{EngineError, ErrorClass};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyFileNotFoundError, PyOSError, PyValueError};
use pyo3::prelude::*;

create_exception!(
    belady,
    BeladyError,
    PyException,
    "An operation failed for another reason than a wrong argument."
);
create_exception!(belady, SampleError, BeladyError, "A sample could not be read.");
create_exception!(
    belady,
    StalledError,
    BeladyError,
    "The source does not respond, or the caller holds all of the staging buffer."
);
create_exception!(
    belady,
    NodeLostError,
    BeladyError,
    "The engine of this node's processes has ended; an engine of this process can go on."
);

/// Returns the error of a panic.
pub fn defect() -> PyErr {
    BeladyError::new_err(
        "a thread of belady panicked, which is a bug: report it with the program's output",
    )
}

/// Converts an error of opening a dataset.
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

/// Converts an error of reading a sample.
pub fn reading(py: Python<'_>, error: &ReadError) -> PyErr {
    sample_error(py, error.sample(), error.path(), error.to_string())
}

/// Converts an error of an epoch's order.
pub fn ordering(py: Python<'_>, error: &OrderError) -> PyErr {
    raised_before(py, error).unwrap_or_else(|| PyValueError::new_err(error.to_string()))
}

/// Returns the exception of a callback that caused an error, if any.
fn raised_before(py: Python<'_>, error: &(dyn Error + 'static)) -> Option<PyErr> {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.find_map(|cause| cause.downcast_ref::<PyErr>()).map(|it| it.clone_ref(py))
}

/// Converts an error of the engine.
pub fn running(py: Python<'_>, error: &EngineError) -> PyErr {
    if let Some(raised) = raised_before(py, error) {
        return raised;
    }
    let text = error.to_string();
    match error.class() {
        ErrorClass::Sample { sample, path } => sample_error(py, sample, &path, text),
        ErrorClass::Stalled => StalledError::new_err(text),
        ErrorClass::Configuration => PyValueError::new_err(text),
        ErrorClass::File => PyOSError::new_err(text),
        ErrorClass::Lost => NodeLostError::new_err(text),
        ErrorClass::Transform { .. } | ErrorClass::Other => BeladyError::new_err(text),
    }
}

fn sample_error(py: Python<'_>, sample: u32, path: &Path, text: String) -> PyErr {
    let raised = SampleError::new_err(text);
    let value = raised.value(py);
    let set =
        value.setattr("sample", sample).and_then(|()| value.setattr("path", path.as_os_str()));
    match set {
        Ok(()) => raised,
        Err(other) => other,
    }
}

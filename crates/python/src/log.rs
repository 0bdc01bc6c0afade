//! The rate limit of warnings, of the engine and of Python's logger.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use belady_base::logging::{Limiter, finish};
use pyo3::prelude::*;

/// Logs how many warnings of the engine the rate limit has suppressed. Called when the program
/// ends.
#[pyfunction]
pub fn finish_log(py: Python<'_>) {
    py.detach(finish);
}

/// The rate limit of a logger's warnings. Lines with the same key are of one kind.
#[pyclass(name = "LogLimiter", module = "belady._native", frozen)]
#[derive(Debug, Default)]
pub struct PyLogLimiter(Mutex<Limiter<(i64, String)>>);

#[pymethods]
impl PyLogLimiter {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Returns whether a line is logged; one that is not is counted. `text` is the line before
    /// formatting.
    fn admits(&self, level: i64, text: String, line: String) -> bool {
        self.locked().admits((level, text), Instant::now(), || line)
    }

    /// Returns lines about what was suppressed, for kinds whose interval has passed or for all.
    #[pyo3(signature = (*, all=false))]
    fn counts(&self, all: bool) -> Vec<String> {
        self.locked().counts(Instant::now(), all)
    }
}

impl PyLogLimiter {
    fn locked(&self) -> std::sync::MutexGuard<'_, Limiter<(i64, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

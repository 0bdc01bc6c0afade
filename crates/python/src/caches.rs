//! Removes caches on disk.

use std::path::PathBuf;

use belady_data::tier::disk::{ManageError, Which, clear};
use pyo3::prelude::*;

use crate::errors::BeladyError;

/// Removes the caches in a directory, if none of them is in use.
#[pyfunction]
pub fn clear_caches(py: Python<'_>, directory: PathBuf) -> PyResult<()> {
    match py.detach(|| clear(&directory, Which::All)) {
        Ok(_) | Err(ManageError::NoCache(_)) => Ok(()),
        Err(error) => Err(BeladyError::new_err(error.to_string())),
    }
}

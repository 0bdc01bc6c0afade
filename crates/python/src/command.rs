//! The `belady` command, which the wheel carries inside this module.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Tells how many warnings were held back since there were too many of one kind: the program ends.
#[pyfunction]
pub fn finish_log(py: Python<'_>) {
    py.detach(belady::logging::finish);
}

/// Runs the `belady` command line; its exit status.
#[pyfunction]
pub fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| belady::run(std::iter::once("belady".into()).chain(arguments)))
}

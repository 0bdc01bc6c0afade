//! The `belady` command, which the wheel carries inside this module.

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the `belady` command line; its exit status.
#[pyfunction]
pub fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| belady::run(std::iter::once("belady".into()).chain(arguments)))
}

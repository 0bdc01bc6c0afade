//! The buffer protocol: memory that Python reads without a copy.

use std::ffi::{c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::Bytes;

/// Fills in a view of plain bytes, kept valid by `owner`.
///
/// # Safety
/// `view` is what Python handed to `__getbuffer__` of `owner`, which holds on to `bytes`.
pub unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    bytes: &Bytes,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no view to fill in"));
    }
    let start = bytes.start().cast_mut().cast::<c_void>();
    let length = bytes.len().cast_signed();
    let readonly = c_int::from(!bytes.is_writable());
    // SAFETY: the view is Python's; it takes a reference to `owner`, which keeps the memory.
    let filled =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, length, readonly, flags) };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

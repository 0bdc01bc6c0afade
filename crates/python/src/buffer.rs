//! The buffer protocol: exports memory to Python without a copy.

use std::ffi::{CStr, c_int, c_void};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::LentBytes;

/// Fills in a view of bytes that `owner` keeps valid.
///
/// # Safety
/// `view` is the argument of `__getbuffer__` of `owner`, which owns `bytes`.
pub unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    bytes: &LentBytes,
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

/// The array that a view describes.
#[derive(Debug)]
pub struct Shown<'a> {
    pub start: *const u8,
    pub shape: &'a [ffi::Py_ssize_t],
    /// In bytes.
    pub strides: &'a [ffi::Py_ssize_t],
    /// The bytes of an element.
    pub size: usize,
    /// The format of an element in the module `struct`.
    pub format: &'static CStr,
    pub writable: bool,
}

impl Shown<'_> {
    /// Returns whether the array is contiguous in C order.
    fn is_contiguous(&self) -> bool {
        let mut next = self.size.cast_signed();
        self.shape.iter().zip(self.strides).rev().all(|(&extent, &stride)| {
            let fits = extent <= 1 || stride == next;
            next *= extent;
            fits
        })
    }

    /// Returns whether the array is contiguous in Fortran order too.
    fn is_columns(&self) -> bool {
        self.is_contiguous() && self.shape.iter().filter(|&&extent| extent > 1).count() <= 1
    }
}

/// Fills in a view of an array that `owner` keeps valid.
///
/// # Safety
/// `view` is the argument of `__getbuffer__` of `owner`, which owns the memory, the shape and the
/// strides.
pub unsafe fn fill_array(
    owner: &Bound<'_, PyAny>,
    array: &Shown<'_>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let asked = |what: c_int| flags & what == what;
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no view to fill in"));
    }
    if asked(ffi::PyBUF_WRITABLE) && !array.writable {
        return Err(PyBufferError::new_err("this batch is read-only"));
    }
    let needs_contiguous = !asked(ffi::PyBUF_STRIDES)
        || asked(ffi::PyBUF_C_CONTIGUOUS)
        || asked(ffi::PyBUF_ANY_CONTIGUOUS);
    if needs_contiguous && !array.is_contiguous() {
        return Err(PyBufferError::new_err(
            "the samples are not contiguous: request a buffer with strides",
        ));
    }
    if asked(ffi::PyBUF_F_CONTIGUOUS) && !array.is_columns() {
        return Err(PyBufferError::new_err(
            "this array is contiguous in C order, not in Fortran order",
        ));
    }
    // A scalar has neither shape nor strides.
    let if_asked = |what: c_int, extents: &[ffi::Py_ssize_t]| {
        let shown = asked(what) && !extents.is_empty();
        if shown { extents.as_ptr().cast_mut() } else { std::ptr::null_mut() }
    };
    let format = if asked(ffi::PyBUF_FORMAT) { array.format.as_ptr() } else { std::ptr::null() };
    let size = array.size.cast_signed();
    // SAFETY: Python passes the view. It takes a reference to the owner, which owns the memory, the
    // shape and the strides.
    unsafe {
        (*view).buf = array.start.cast_mut().cast::<c_void>();
        (*view).len = array.shape.iter().product::<ffi::Py_ssize_t>() * size;
        (*view).itemsize = size;
        (*view).readonly = c_int::from(!array.writable);
        (*view).ndim =
            if asked(ffi::PyBUF_ND) { array.shape.len().cast_signed() as c_int } else { 1 };
        (*view).format = format.cast_mut();
        (*view).shape = if_asked(ffi::PyBUF_ND, array.shape);
        (*view).strides = if_asked(ffi::PyBUF_STRIDES, array.strides);
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = std::ptr::null_mut();
        (*view).obj = owner.clone().into_ptr();
    }
    Ok(())
}

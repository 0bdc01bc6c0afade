//! Numbers in memory, with a shape.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::sync::Arc;

use belady_engine::{Block, Rows};
use belady_transform::{self as transform, Dtype};
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::buffer::{self, Shown};
use crate::dlpack::{self, Request, Tensor};
use crate::process::Home;

/// Numbers in memory: a writable buffer, and DLPack. bfloat16 shows as "H" in buffers.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Array {
    dtype: Dtype,
    shape: Box<[ffi::Py_ssize_t]>,
    /// In bytes.
    strides: Box<[ffi::Py_ssize_t]>,
    bytes: usize,
    start: *mut u8,
    owner: Arc<dyn Keeper>,
}

// SAFETY: an address into memory that the owner keeps; who writes when is between its users.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

/// What keeps the numbers where they are.
trait Keeper: std::fmt::Debug + Send + Sync {}

impl Keeper for Home<Arc<Block>> {}
impl Keeper for Own {}

/// A block of a batch. In a forked child it is a copy of the parent's, which nobody takes back.
pub type Shared = Arc<Home<Arc<Block>>>;

/// Memory that belongs to one array and its copies of the name.
#[derive(Debug)]
pub struct Own {
    memory: Box<[UnsafeCell<u8>]>,
    dtype: Dtype,
    shape: Vec<usize>,
}

// SAFETY: only addresses are given out; who writes when is between the users of the buffer.
unsafe impl Sync for Own {}

impl Own {
    pub fn new(array: transform::Array) -> Arc<Self> {
        let bytes = Box::into_raw(array.bytes.into_boxed_slice());
        // SAFETY: `UnsafeCell<u8>` lies in memory as `u8` does.
        let memory = unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) };
        Arc::new(Self { memory, dtype: array.dtype, shape: array.shape })
    }
}

impl Array {
    pub fn of_rows(rows: &Rows, block: &Shared) -> Self {
        // SAFETY: the rows lie within their block.
        let start = unsafe { block.start().as_ptr().add(rows.offset) };
        Self::new(rows.dtype, &rows.shape, start, block.clone())
    }

    pub fn of_own(own: &Arc<Own>) -> Self {
        let start = own.memory.as_ptr().cast::<u8>().cast_mut();
        Self::new(own.dtype, &own.shape, start, own.clone())
    }

    fn new(dtype: Dtype, shape: &[usize], start: *mut u8, owner: Arc<dyn Keeper>) -> Self {
        let mut strides = vec![0; shape.len()];
        let mut stride = dtype.size();
        for (place, extent) in strides.iter_mut().zip(shape).rev() {
            *place = stride.cast_signed();
            stride *= extent;
        }
        Self {
            dtype,
            shape: shape.iter().map(|extent| extent.cast_signed()).collect(),
            strides: strides.into(),
            bytes: stride,
            start,
            owner,
        }
    }

    /// The same numbers in memory of their own.
    fn copied(&self) -> Self {
        let mut bytes = Vec::with_capacity(self.bytes);
        // SAFETY: `start` is good for so many bytes as long as `self`; a program that writes to
        // them at the same time gets what it deserves, but bytes are bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start, bytes.as_mut_ptr(), self.bytes);
            bytes.set_len(self.bytes);
        }
        let shape = self.shape.iter().map(|&extent| extent as usize).collect();
        Self::of_own(&Own::new(transform::Array { dtype: self.dtype, shape, bytes }))
    }
}

#[pymethods]
impl Array {
    #[getter]
    fn dtype(&self) -> String {
        dtype_name(self.dtype)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    /// Of the first byte, to be compared with what `on_block` was told.
    #[getter]
    fn address(&self) -> usize {
        self.start as usize
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.shape.first().ok_or_else(|| PyTypeError::new_err("a number has no len()"));
        first.map(|&extent| extent as usize)
    }

    /// One of the first axis, on the same memory.
    fn __getitem__(&self, index: isize) -> PyResult<Self> {
        let (Some((&rows, shape)), Some((&stride, strides))) =
            (self.shape.split_first(), self.strides.split_first())
        else {
            return Err(PyTypeError::new_err("a number has no rows"));
        };
        let at = if index < 0 { index + rows } else { index };
        if !(0..rows).contains(&at) {
            return Err(PyIndexError::new_err(format!("there is no row {index} among {rows}")));
        }
        Ok(Self {
            dtype: self.dtype,
            shape: shape.into(),
            strides: strides.into(),
            bytes: stride as usize,
            // SAFETY: within the array, whose owner the row keeps too.
            start: unsafe { self.start.offset(at * stride) },
            owner: self.owner.clone(),
        })
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let Self { dtype, shape, strides, start, .. } = slf.get();
        let (start, size, format) = (start.cast_const(), dtype.size(), format(*dtype));
        let shown = Shown { start, shape, strides, size, format, writable: true };
        // SAFETY: passed on from Python; the array holds on to all of it.
        unsafe { buffer::fill_array(slf.as_any(), &shown, view, flags) }
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = Request { stream, max_version, device: dl_device, copy };
        let copied = (copy == Some(true)).then(|| py.detach(|| self.copied()));
        let this = copied.as_ref().unwrap_or(self);
        let size = this.dtype.size().cast_signed();
        let tensor = Tensor {
            start: this.start,
            kind: kind(this.dtype),
            shape: this.shape.iter().map(|&extent| extent as i64).collect(),
            // In numbers.
            strides: this.strides.iter().map(|&stride| (stride / size) as i64).collect(),
            writable: true,
            copied: copied.is_some(),
        };
        tensor.export(py, Box::new(this.owner.clone()), &request)
    }

    #[allow(clippy::unused_self)]
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }
}

/// As numpy and torch call it.
pub fn dtype_name(dtype: Dtype) -> String {
    dtype.name().to_owned()
}

/// As the module `struct` calls it. It has no name for bfloat16.
fn format(dtype: Dtype) -> &'static CStr {
    match dtype {
        Dtype::Uint8 => c"B",
        Dtype::Int8 => c"b",
        Dtype::Int16 => c"h",
        Dtype::Uint16 | Dtype::Bfloat16 => c"H",
        Dtype::Int32 => c"i",
        Dtype::Uint32 => c"I",
        Dtype::Int64 => c"q",
        Dtype::Uint64 => c"Q",
        Dtype::Float16 => c"e",
        Dtype::Float32 => c"f",
        Dtype::Float64 => c"d",
    }
}

/// As DLPack calls it: kDLInt, kDLUInt, kDLFloat or kDLBfloat, and how many bits.
fn kind(dtype: Dtype) -> (u8, u8) {
    let code = match dtype {
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => 0,
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => 1,
        Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => 2,
        Dtype::Bfloat16 => 4,
    };
    (code, 8 * dtype.size() as u8)
}

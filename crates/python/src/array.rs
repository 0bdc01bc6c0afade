//! The class `Array`.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::sync::Arc;

use belady_engine::{OutputBlock, RowArray};
use belady_transform::{self as transform, Dtype};
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::buffer::{self, Shown};
use crate::dlpack::{self, DlpackRequest, DlpackTensor};
use crate::process::Home;

/// An array with a writable buffer and DLPack. In buffers, bfloat16 has the format "H".
#[pyclass(name = "Array", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyArray {
    dtype: Dtype,
    shape: Box<[ffi::Py_ssize_t]>,
    /// In bytes.
    strides: Box<[ffi::Py_ssize_t]>,
    bytes: usize,
    start: *mut u8,
    owner: Arc<dyn Keeper>,
}

// SAFETY: an address into memory that the owner keeps; its users synchronise their writes.
unsafe impl Send for PyArray {}
// SAFETY: as above.
unsafe impl Sync for PyArray {}

/// An owner of an array's memory.
trait Keeper: std::fmt::Debug + Send + Sync {}

impl Keeper for Home<Arc<OutputBlock>> {}
impl Keeper for OwnedArray {}

/// A block of a batch. In a forked child it is a copy of the parent's, and is never reused.
pub type Shared = Arc<Home<Arc<OutputBlock>>>;

/// An array that owns its memory.
#[derive(Debug)]
pub struct OwnedArray {
    memory: Box<[UnsafeCell<u8>]>,
    dtype: Dtype,
    shape: Vec<usize>,
}

// SAFETY: only addresses are exposed; the users of the buffer synchronise their writes.
unsafe impl Sync for OwnedArray {}

impl OwnedArray {
    pub fn new(array: transform::Array) -> Arc<Self> {
        let bytes = Box::into_raw(array.bytes.into_boxed_slice());
        // SAFETY: `UnsafeCell<u8>` has the layout of `u8`.
        let memory = unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) };
        Arc::new(Self { memory, dtype: array.dtype, shape: array.shape })
    }
}

impl PyArray {
    /// Returns an array on the memory of a block.
    pub fn of_rows(rows: &RowArray, block: &Shared) -> Self {
        // SAFETY: the rows lie within their block.
        let start = unsafe { block.start().as_ptr().add(rows.offset) };
        Self::new(rows.dtype, &rows.shape, start, block.clone())
    }

    /// Returns an array on its own memory.
    pub fn of_own(own: &Arc<OwnedArray>) -> Self {
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

    /// Returns a copy.
    fn copied(&self) -> Self {
        let mut bytes = Vec::with_capacity(self.bytes);
        // SAFETY: `start` is valid for this many bytes while `self` exists. A program that writes
        // to them at the same time gets an undefined mix of bytes.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start, bytes.as_mut_ptr(), self.bytes);
            bytes.set_len(self.bytes);
        }
        let shape = self.shape.iter().map(|&extent| extent as usize).collect();
        Self::of_own(&OwnedArray::new(transform::Array { dtype: self.dtype, shape, bytes }))
    }
}

#[pymethods]
impl PyArray {
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

    /// Address of the first byte, as `on_block` gets it.
    #[getter]
    fn address(&self) -> usize {
        self.start as usize
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.shape.first().ok_or_else(|| PyTypeError::new_err("a number has no len()"));
        first.map(|&extent| extent as usize)
    }

    /// A row of the first axis, on the same memory.
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
        // SAFETY: Python passes the view; the array owns the memory, the shape and the strides.
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
        let request = DlpackRequest { stream, max_version, device: dl_device, copy };
        let copied = (copy == Some(true)).then(|| py.detach(|| self.copied()));
        let this = copied.as_ref().unwrap_or(self);
        let size = this.dtype.size().cast_signed();
        let tensor = DlpackTensor {
            start: this.start,
            kind: kind(this.dtype),
            shape: this.shape.iter().map(|&extent| extent as i64).collect(),
            // In elements.
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

/// Returns the name in numpy and torch.
pub fn dtype_name(dtype: Dtype) -> String {
    dtype.name().to_owned()
}

/// Returns the format of the module `struct`, which has none for bfloat16.
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

/// Returns DLPack's type code (kDLInt, kDLUInt, kDLFloat or kDLBfloat) and the number of bits.
fn kind(dtype: Dtype) -> (u8, u8) {
    let code = match dtype {
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => 0,
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => 1,
        Dtype::Float16 | Dtype::Float32 | Dtype::Float64 => 2,
        Dtype::Bfloat16 => 4,
    };
    (code, 8 * dtype.size() as u8)
}

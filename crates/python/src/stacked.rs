//! The class `Stacked`: a batch of equally long samples as one array.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::buffer::{self, Shown};
use crate::dlpack::{self, DlpackRequest, DlpackTensor};
use crate::errors::BeladyError;
use crate::memory::{LentBatch, SampleBytes};

/// A batch of equally long samples, with a buffer of two dimensions and DLPack.
#[pyclass(name = "Stacked", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyStacked {
    lent: Arc<LentBatch>,
    shape: [ffi::Py_ssize_t; 2],
    strides: [ffi::Py_ssize_t; 2],
}

impl PyStacked {
    /// Returns the batch as one array, if its samples have equal lengths and equal distances in the
    /// staging buffer.
    pub fn of(lent: &Arc<LentBatch>) -> Option<Self> {
        let (first, rest) = lent.places.split_first()?;
        let stride =
            rest.first().map_or(first.length.cast_signed(), |second| distance(first, second));
        let even = lent.places.windows(2).all(|pair| distance(&pair[0], &pair[1]) == stride);
        let alike = lent.places.iter().all(|place| place.in_slot && place.length == first.length);
        // Rows must not overlap, as empty samples or a repeated one would.
        if !even || !alike || stride < first.length.cast_signed() {
            return None;
        }
        let shape = [lent.places.len().cast_signed(), first.length.cast_signed()];
        Some(Self { lent: lent.clone(), shape, strides: [stride, 1] })
    }

    fn start(&self) -> PyResult<*const u8> {
        if !self.lent.batch.is_here() {
            let elsewhere = "this batch was lent to another process: read it in this process";
            return Err(BeladyError::new_err(elsewhere));
        }
        Ok(self.lent.places[0].start)
    }
}

fn distance(from: &SampleBytes, to: &SampleBytes) -> isize {
    (to.start as isize).wrapping_sub(from.start as isize)
}

#[pymethods]
impl PyStacked {
    #[getter]
    fn shape(&self) -> (usize, usize) {
        (self.shape[0] as usize, self.shape[1] as usize)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let shown = Shown {
            start: this.start()?,
            shape: &this.shape,
            strides: &this.strides,
            size: 1,
            format: c"B",
            writable: this.lent.writable,
        };
        // SAFETY: Python passes the view; `this` owns the batch, the shape and the strides.
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
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "a batch is exported without a copy: leave out copy=True",
            ));
        }
        let tensor = DlpackTensor {
            start: self.start()?,
            kind: dlpack::UINT8,
            shape: self.shape.map(|extent| extent as i64).to_vec(),
            strides: self.strides.map(|stride| stride as i64).to_vec(),
            writable: self.lent.writable,
            copied: false,
        };
        tensor.export(py, Box::new(self.lent.clone()), &request)
    }

    #[allow(clippy::unused_self)]
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }
}

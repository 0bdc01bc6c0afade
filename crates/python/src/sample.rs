//! The class `Sample`.

use std::ffi::{OsString, c_int};
use std::sync::Arc;

use belady_base::SampleId;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer;
use crate::dlpack::{self, DlpackRequest};
use crate::errors::BeladyError;
use crate::memory::{LentBatch, LentBytes};
use crate::open_dataset::OpenDataset;

/// The bytes of a sample, with a buffer (read-only unless the loader is writable) and DLPack.
#[pyclass(name = "Sample", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PySample(LentBytes);

impl PySample {
    /// Returns a sample of a batch. If the loader is writable, a sample in a cache is copied, so
    /// that all samples are writable.
    pub fn of_batch(lent: &Arc<LentBatch>, at: usize) -> Self {
        let bytes = LentBytes::Lent { lent: lent.clone(), at: at as u32 };
        Self(if lent.writable && bytes.is_cached() { bytes.copied() } else { bytes })
    }

    pub fn of_own(bytes: Vec<u8>, id: SampleId, dataset: Arc<OpenDataset>) -> Self {
        Self(LentBytes::own(bytes, id, dataset))
    }

    fn bytes(&self) -> PyResult<&LentBytes> {
        if self.0.is_here() {
            return Ok(&self.0);
        }
        Err(BeladyError::new_err(
            "this Sample was lent to another process: read it in this process",
        ))
    }
}

#[pymethods]
impl PySample {
    #[getter]
    fn id(&self) -> SampleId {
        self.0.id()
    }

    #[getter]
    fn label(&self) -> Option<u32> {
        self.0.dataset().label(self.0.id())
    }

    #[getter]
    fn path(&self) -> OsString {
        self.0.dataset().sample_path(self.0.id())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.bytes()?;
        PyBytes::new_with(py, bytes.len(), |into| {
            // SAFETY: `start` is valid for `len` bytes while `self` exists; `into` has that length.
            unsafe {
                std::ptr::copy_nonoverlapping(bytes.start(), into.as_mut_ptr(), into.len());
            }
            Ok(())
        })
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().bytes()?;
        // SAFETY: Python passes the view; the sample owns its bytes.
        unsafe { buffer::fill(slf.as_any(), bytes, view, flags) }
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
        dlpack::export_bytes(py, self.bytes()?, &request)
    }

    #[allow(clippy::unused_self)]
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }
}

//! A list of transforms that was checked.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use belady_transform::{self as transform, Draw, Scratch, Step, TransformError};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::array::{Array, Own, dtype_name};
use crate::errors::{BeladyError, defect, wrong};

thread_local! {
    /// Threads of Python's that decode use it again and again.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A list of steps that fit together.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Chain(pub Arc<transform::Chain>);

#[pymethods]
impl Chain {
    #[new]
    fn new(steps: &str) -> PyResult<Self> {
        let steps: Vec<Step> = serde_json::from_str(steps).map_err(wrong)?;
        Ok(Self(Arc::new(transform::Chain::new(steps).map_err(wrong)?)))
    }

    /// Dtype and shape of what comes out; None if the shape depends on the sample.
    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> PyResult<(String, Option<Bound<'py, PyTuple>>)> {
        let output = self.0.output();
        let shape = output.shape.as_ref().map(|shape| PyTuple::new(py, shape)).transpose()?;
        Ok((dtype_name(output.dtype), shape))
    }

    /// Transforms a sample: anything with a buffer. Lets other threads run.
    fn run(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        seed: u64,
        epoch: u32,
        sample: u32,
    ) -> PyResult<Array> {
        let buffer = PyBuffer::<u8>::get(data)?;
        let bytes = contiguous(&buffer)?;
        let draw = Draw { seed, epoch, sample };
        let made = py.detach(|| with_scratch(|scratch| self.0.run(bytes, draw, scratch)))?;
        Ok(Array::of_own(&Own::new(made)))
    }
}

/// The bytes of a buffer.
fn contiguous(buffer: &PyBuffer<u8>) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the bytes of a sample must lie without gaps"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer holds its memory in place as long as it lives. Who writes to it while it
    // is transformed gets what he deserves; decoders read all of it as untrusted anyhow.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// Runs a transform with the thread's scratch. A panic in it is an error like others.
fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> Result<T, TransformError>) -> PyResult<T> {
    SCRATCH.with_borrow_mut(|scratch| {
        let done = catch_unwind(AssertUnwindSafe(|| work(scratch)));
        done.unwrap_or_else(|_| {
            // It may have been left in any state.
            *scratch = Scratch::default();
            Err(TransformError(defect().to_string()))
        })
        .map_err(|error| BeladyError::new_err(error.to_string()))
    })
}

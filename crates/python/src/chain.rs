//! A list of transforms that was checked.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use belady_engine::{Parts, Value};
use belady_transform::{self as transform, Draw, Dtype, Output, Scratch, Step, TransformError};
use pyo3::IntoPyObjectExt;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

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
    #[pyo3(signature = (steps, *, before=None))]
    fn new(steps: &str, before: Option<usize>) -> PyResult<Self> {
        let steps = Step::list(steps).map_err(wrong)?;
        let chain = match before {
            None => transform::Chain::new(steps),
            Some(before) => transform::Chain::after(&Output::default(), before, steps),
        };
        Ok(Self(Arc::new(chain.map_err(wrong)?)))
    }

    /// Dtype and shape of what comes out; None if the shape depends on the sample.
    #[getter]
    fn output<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Option<String>, Option<Bound<'py, PyTuple>>)> {
        let output = self.0.output();
        let shape = output.shape.as_ref().map(|shape| PyTuple::new(py, shape)).transpose()?;
        Ok((output.dtype.map(dtype_name), shape))
    }

    /// Transforms a sample: the bytes of anything with a buffer. Lets other threads run.
    fn run(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        seed: u64,
        epoch: u32,
        sample: u32,
    ) -> PyResult<Array> {
        let buffer = PyUntypedBuffer::get(data)?;
        let bytes = contiguous(&buffer)?;
        let draw = Draw { seed, epoch, sample };
        let made = py.detach(|| with_scratch(|scratch| self.0.run(bytes, draw, scratch)))?;
        Ok(Array::of_own(&Own::new(made)))
    }

    /// The same on an array that a function gave; for chains that go on from one.
    #[expect(clippy::too_many_arguments, reason = "an array, and what is drawn for it")]
    fn run_array(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        dtype: &str,
        shape: Vec<usize>,
        seed: u64,
        epoch: u32,
        sample: u32,
    ) -> PyResult<Array> {
        let array = array_of(data, dtype, shape)?;
        let draw = Draw { seed, epoch, sample };
        let made = py.detach(|| with_scratch(|scratch| self.0.run_array(&array, draw, scratch)))?;
        Ok(Array::of_own(&Own::new(made)))
    }

    /// What random steps draw for an image of this size, as JSON.
    fn drawn(
        &self,
        seed: u64,
        epoch: u32,
        sample: u32,
        width: u32,
        height: u32,
    ) -> PyResult<String> {
        let drawn = self.0.drawn(Draw { seed, epoch, sample }, width, height).map_err(wrong)?;
        serde_json::to_string(&drawn).map_err(wrong)
    }

    /// ValueError unless all that is done to an image is one window, as a kernel makes it.
    fn check_window(&self) -> PyResult<()> {
        self.0.check_window().map_err(wrong)
    }
}

/// A part of a sample (see `Loader.transformed`), transformed by a chain if there is one.
#[pyfunction]
#[pyo3(signature = (data, name, chain=None, seed=0, epoch=0, sample=0))]
pub fn part<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    name: String,
    chain: Option<&Bound<'py, Chain>>,
    seed: u64,
    epoch: u32,
    sample: u32,
) -> PyResult<Bound<'py, PyAny>> {
    let buffer = PyUntypedBuffer::get(data)?;
    let bytes = contiguous(&buffer)?;
    let field = crate::transformer::field(Some(name), chain.map(Bound::as_unbound));
    let draw = Draw { seed, epoch, sample };
    let made = py.detach(|| {
        with_scratch(|scratch| field.run(&mut Parts::new(bytes), draw, scratch, None))
    })?;
    match made {
        Some(Value::Array(array)) => Array::of_own(&Own::new(array)).into_bound_py_any(py),
        Some(Value::Bytes(bytes)) => PyBytes::new(py, &bytes).into_bound_py_any(py),
        None => Err(defect()),
    }
}

/// What Python gives as an array, as the chain takes it.
fn array_of(data: &Bound<'_, PyAny>, dtype: &str, shape: Vec<usize>) -> PyResult<transform::Array> {
    let dtype = Dtype::ALL.into_iter().find(|known| known.name() == dtype);
    let dtype = dtype.ok_or_else(|| wrong("arrays of this dtype cannot be transformed"))?;
    let buffer = PyUntypedBuffer::get(data)?;
    let bytes = contiguous(&buffer)?.to_vec();
    let expected = shape.iter().try_fold(dtype.size(), |all, &extent| all.checked_mul(extent));
    if expected != Some(bytes.len()) {
        return Err(wrong(format!("{} bytes are no {dtype} of the shape {shape:?}", bytes.len())));
    }
    Ok(transform::Array { dtype, shape, bytes })
}

/// The bytes of a buffer.
fn contiguous(buffer: &PyUntypedBuffer) -> PyResult<&[u8]> {
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

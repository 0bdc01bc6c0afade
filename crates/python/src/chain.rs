//! The class `Chain`.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use belady_engine::{SampleParts, Value};
use belady_transform::{
    self as transform, Draw, Dtype, Output, Scratch, TransformError, TransformStep,
};
use pyo3::IntoPyObjectExt;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::arguments::wrong;
use crate::array::{OwnedArray, PyArray, dtype_name};
use crate::errors::{BeladyError, defect};

thread_local! {
    /// Reused by every transform of a Python thread.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A validated list of transforms.
#[pyclass(name = "Chain", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyChain(pub Arc<transform::Chain>);

#[pymethods]
impl PyChain {
    #[new]
    #[pyo3(signature = (steps, *, before=None))]
    fn new(steps: &str, before: Option<usize>) -> PyResult<Self> {
        let steps = TransformStep::list(steps).map_err(wrong)?;
        let chain = match before {
            None => transform::Chain::new(steps),
            Some(before) => transform::Chain::after(&Output::default(), before, steps),
        };
        Ok(Self(Arc::new(chain.map_err(wrong)?)))
    }

    /// Dtype and shape of the output; None if the shape depends on the sample.
    #[getter]
    fn output<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Option<String>, Option<Bound<'py, PyTuple>>)> {
        let output = self.0.output();
        let shape = output.shape.as_ref().map(|shape| PyTuple::new(py, shape)).transpose()?;
        Ok((output.dtype.map(dtype_name), shape))
    }

    /// Transforms a sample, any object with a buffer. Releases the interpreter.
    fn run(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        seed: u64,
        epoch: u32,
        sample: u32,
    ) -> PyResult<PyArray> {
        let buffer = PyUntypedBuffer::get(data)?;
        let bytes = contiguous(&buffer)?;
        let draw = Draw { seed, epoch, sample };
        let made = py.detach(|| with_scratch(|scratch| self.0.run(bytes, draw, scratch)))?;
        Ok(PyArray::of_own(&OwnedArray::new(made)))
    }

    /// The same on an array that a function gave; for chains that go on from one.
    #[expect(clippy::too_many_arguments, reason = "an array and its draw")]
    fn run_array(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        dtype: &str,
        shape: Vec<usize>,
        seed: u64,
        epoch: u32,
        sample: u32,
    ) -> PyResult<PyArray> {
        let array = array_of(data, dtype, shape)?;
        let draw = Draw { seed, epoch, sample };
        let made = py.detach(|| with_scratch(|scratch| self.0.run_array(&array, draw, scratch)))?;
        Ok(PyArray::of_own(&OwnedArray::new(made)))
    }

    /// The random choices for an image of this size, as JSON.
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

    /// Raises ValueError unless the chain can be computed by one kernel as a window of the image.
    fn check_window(&self) -> PyResult<()> {
        self.0.check_window().map_err(wrong)
    }
}

/// Returns a part of a sample (see `Loader.transformed`), transformed by the chain if one is given.
#[pyfunction]
#[pyo3(signature = (data, name, chain=None, seed=0, epoch=0, sample=0))]
pub fn sample_part<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    name: String,
    chain: Option<&Bound<'py, PyChain>>,
    seed: u64,
    epoch: u32,
    sample: u32,
) -> PyResult<Bound<'py, PyAny>> {
    let buffer = PyUntypedBuffer::get(data)?;
    let bytes = contiguous(&buffer)?;
    let field = field(Some(name), chain.map(Bound::as_unbound));
    let draw = Draw { seed, epoch, sample };
    let made = py.detach(|| {
        with_scratch(|scratch| field.run(&mut SampleParts::new(bytes), draw, scratch, None))
    })?;
    match made {
        Some(Value::Array(array)) => PyArray::of_own(&OwnedArray::new(array)).into_bound_py_any(py),
        Some(Value::Bytes(bytes)) => PyBytes::new(py, &bytes).into_bound_py_any(py),
        None => Err(defect()),
    }
}

/// Copies an array from Python.
fn array_of(data: &Bound<'_, PyAny>, dtype: &str, shape: Vec<usize>) -> PyResult<transform::Array> {
    let dtype = Dtype::ALL.into_iter().find(|known| known.name() == dtype);
    let dtype = dtype.ok_or_else(|| wrong("arrays of this dtype cannot be transformed"))?;
    let buffer = PyUntypedBuffer::get(data)?;
    let bytes = contiguous(&buffer)?.to_vec();
    let expected = shape.iter().try_fold(dtype.size(), |all, &extent| all.checked_mul(extent));
    if expected != Some(bytes.len()) {
        return Err(wrong(format!(
            "{} bytes are not an array of {dtype} of shape {shape:?}",
            bytes.len()
        )));
    }
    Ok(transform::Array { dtype, shape, bytes })
}

/// Returns the bytes of a contiguous buffer.
fn contiguous(buffer: &PyUntypedBuffer) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the bytes of a sample must be contiguous"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer keeps its memory in place while it exists. A program that writes to it at
    // the same time gets an undefined image; decoders treat all bytes as untrusted.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// Runs a transform with the thread's scratch, and returns a panic in it as an error.
fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> Result<T, TransformError>) -> PyResult<T> {
    SCRATCH.with_borrow_mut(|scratch| {
        let done = catch_unwind(AssertUnwindSafe(|| work(scratch)));
        done.unwrap_or_else(|_| {
            // The panic may have left it in any state.
            *scratch = Scratch::default();
            Err(TransformError(defect().to_string()))
        })
        .map_err(|error| BeladyError::new_err(error.to_string()))
    })
}

/// Returns the specification of a field: a part of each sample and its chain.
pub fn field(part: Option<String>, chain: Option<&Py<PyChain>>) -> belady_engine::FieldSpec {
    let transform = chain.map(|chain| chain.get().0.clone() as Arc<dyn belady_engine::Transform>);
    belady_engine::FieldSpec { part, transform }
}

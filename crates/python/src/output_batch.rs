//! The class `OutputBatch`: a transformed batch.

use std::ffi::OsString;
use std::sync::Arc;

use belady_engine::{self as engine, OutputColumn, RowArray, Value};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::array::{OwnedArray, PyArray, Shared};
use crate::open_dataset::OpenDataset;
use crate::process::Home;

/// A transformed batch. Its memory is reused after the last reference is dropped.
#[pyclass(name = "OutputBatch", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyOutputBatch {
    epoch: u32,
    iteration: u32,
    samples: Box<[u32]>,
    kept: Option<Vec<u32>>,
    failures: Vec<(u32, String)>,
    fields: Vec<OutputField>,
    block: Option<Shared>,
    bytes: usize,
    dataset: Arc<OpenDataset>,
}

#[derive(Debug)]
enum OutputField {
    Rows(RowArray),
    Stacked(Arc<OwnedArray>),
    Loose(Vec<Loose>),
}

#[derive(Debug)]
enum Loose {
    Array(Arc<OwnedArray>),
    Bytes(Vec<u8>),
}

impl PyOutputBatch {
    pub fn new(made: engine::OutputBatch, dataset: Arc<OpenDataset>) -> Self {
        let bytes = made.bytes();
        let failed = |failed: engine::FailedSample| (failed.position, failed.error.to_string());
        Self {
            epoch: made.step.epoch,
            iteration: made.step.iteration,
            samples: made.samples,
            kept: made.kept,
            failures: made.failures.into_iter().map(failed).collect(),
            fields: made.columns.into_iter().map(OutputField::of).collect(),
            block: made.block.map(|block| Arc::new(Home::new(block))),
            bytes,
            dataset,
        }
    }

    /// Returns the memory of its arrays.
    pub fn block(&self) -> Option<&engine::OutputBlock> {
        self.block.as_ref().map(|block| &****block)
    }
}

impl OutputField {
    fn of(column: OutputColumn) -> Self {
        match column {
            OutputColumn::Rows(rows) => Self::Rows(rows),
            OutputColumn::Stacked(array) => Self::Stacked(OwnedArray::new(array)),
            OutputColumn::Loose(values) => Self::Loose(values.into_iter().map(Loose::of).collect()),
        }
    }
}

impl Loose {
    fn of(value: Value) -> Self {
        match value {
            Value::Array(array) => Self::Array(OwnedArray::new(array)),
            Value::Bytes(bytes) => Self::Bytes(bytes),
        }
    }

    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Array(own) => PyArray::of_own(own).into_bound_py_any(py),
            Self::Bytes(bytes) => PyBytes::new(py, bytes).into_bound_py_any(py),
        }
    }
}

#[pymethods]
impl PyOutputBatch {
    /// The loader's epoch, without the offset `first`.
    #[getter]
    fn epoch(&self) -> u32 {
        self.epoch
    }

    #[getter]
    fn iteration(&self) -> u32 {
        self.iteration
    }

    #[getter]
    fn ids(&self) -> Vec<u32> {
        self.samples.to_vec()
    }

    #[getter]
    fn labels(&self) -> Vec<i64> {
        let label = |&id: &u32| self.dataset.label(id).map_or(-1, i64::from);
        self.samples.iter().map(label).collect()
    }

    /// The labels as native int64.
    fn labels_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.dataset.labels(self.samples.iter().copied()))
    }

    fn paths(&self) -> Vec<OsString> {
        self.samples.iter().map(|&id| self.dataset.sample_path(id)).collect()
    }

    /// Positions of the samples in the fields; None for all, in order.
    #[getter]
    fn kept(&self) -> Option<Vec<u32>> {
        self.kept.clone()
    }

    /// Position and reason of the samples that could not be transformed.
    #[getter]
    fn failures(&self) -> Vec<(u32, String)> {
        self.failures.clone()
    }

    /// Number of samples that were read, with failed ones.
    fn __len__(&self) -> usize {
        self.samples.len()
    }

    #[getter]
    fn fields(&self) -> usize {
        self.fields.len()
    }

    /// One array if the chain's shape is fixed, else one per sample; without a chain, the bytes.
    fn field<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let field = self.fields.get(index).ok_or_else(|| {
            let fields = self.fields.len();
            PyIndexError::new_err(format!("there is no field {index}; the batch has {fields}"))
        })?;
        match (field, &self.block) {
            (OutputField::Rows(rows), Some(block)) => {
                PyArray::of_rows(rows, block).into_bound_py_any(py)
            }
            (OutputField::Rows(rows), None) => {
                let (dtype, shape) = (rows.dtype, rows.shape.clone());
                let empty = belady_transform::Array { dtype, shape, bytes: vec![] };
                PyArray::of_own(&OwnedArray::new(empty)).into_bound_py_any(py)
            }
            (OutputField::Stacked(own), _) => PyArray::of_own(own).into_bound_py_any(py),
            (OutputField::Loose(values), _) => {
                let list = PyList::empty(py);
                for value in values {
                    list.append(value.object(py)?)?;
                }
                Ok(list.into_any())
            }
        }
    }

    /// Bytes of memory that it holds.
    #[getter]
    fn bytes(&self) -> usize {
        self.bytes
    }
}

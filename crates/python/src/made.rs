//! A batch that was transformed.

use std::ffi::OsString;
use std::sync::Arc;

use belady_engine::{self as engine, Column, Rows, Value};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::array::{Array, Own, Shared};
use crate::dataset::Listed;
use crate::process::Home;

/// A transformed batch. Its memory is used again when the last reference is dropped.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Made {
    epoch: u32,
    iteration: u32,
    samples: Box<[u32]>,
    kept: Option<Vec<u32>>,
    failures: Vec<(u32, String)>,
    fields: Vec<Field>,
    block: Option<Shared>,
    bytes: usize,
    dataset: Arc<Listed>,
}

#[derive(Debug)]
enum Field {
    Rows(Rows),
    Stacked(Arc<Own>),
    Loose(Vec<Loose>),
}

#[derive(Debug)]
enum Loose {
    Array(Arc<Own>),
    Bytes(Vec<u8>),
}

impl Made {
    pub fn new(made: engine::Made, dataset: Arc<Listed>) -> Self {
        let bytes = made.bytes();
        let failed = |failed: engine::Failed| (failed.position, failed.error.to_string());
        Self {
            epoch: made.step.epoch,
            iteration: made.step.iteration,
            samples: made.samples,
            kept: made.kept,
            failures: made.failures.into_iter().map(failed).collect(),
            fields: made.columns.into_iter().map(Field::of).collect(),
            block: made.block.map(|block| Arc::new(Home::new(block))),
            bytes,
            dataset,
        }
    }

    /// Where its arrays lie, and how long that is.
    pub fn block(&self) -> Option<&engine::Block> {
        self.block.as_ref().map(|block| &****block)
    }
}

impl Field {
    fn of(column: Column) -> Self {
        match column {
            Column::Rows(rows) => Self::Rows(rows),
            Column::Stacked(array) => Self::Stacked(Own::new(array)),
            Column::Loose(values) => Self::Loose(values.into_iter().map(Loose::of).collect()),
        }
    }
}

impl Loose {
    fn of(value: Value) -> Self {
        match value {
            Value::Array(array) => Self::Array(Own::new(array)),
            Value::Bytes(bytes) => Self::Bytes(bytes),
        }
    }

    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Array(own) => Array::of_own(own).into_bound_py_any(py),
            Self::Bytes(bytes) => PyBytes::new(py, bytes).into_bound_py_any(py),
        }
    }
}

#[pymethods]
impl Made {
    /// As the loader counts: `first` is not added.
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

    /// Samples that were read, failed ones included.
    fn __len__(&self) -> usize {
        self.samples.len()
    }

    #[getter]
    fn fields(&self) -> usize {
        self.fields.len()
    }

    /// One array where the chain's shape is fixed, else one a sample; without a chain the bytes.
    fn field<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyAny>> {
        let field = self.fields.get(index).ok_or_else(|| {
            let fields = self.fields.len();
            PyIndexError::new_err(format!("there is no field {index}; the batch has {fields}"))
        })?;
        match (field, &self.block) {
            (Field::Rows(rows), Some(block)) => Array::of_rows(rows, block).into_bound_py_any(py),
            (Field::Rows(rows), None) => {
                let (dtype, shape) = (rows.dtype, rows.shape.clone());
                let empty = belady_transform::Array { dtype, shape, bytes: vec![] };
                Array::of_own(&Own::new(empty)).into_bound_py_any(py)
            }
            (Field::Stacked(own), _) => Array::of_own(own).into_bound_py_any(py),
            (Field::Loose(values), _) => {
                let list = PyList::empty(py);
                for value in values {
                    list.append(value.object(py)?)?;
                }
                Ok(list.into_any())
            }
        }
    }

    /// Memory that it holds.
    #[getter]
    fn bytes(&self) -> usize {
        self.bytes
    }
}

//! The class `Batch`.

use std::ffi::OsString;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::memory::LentBatch;
use crate::sample::PySample;
use crate::stacked::PyStacked;

/// A lent batch. Its memory is released when the last reference is dropped.
#[pyclass(name = "Batch", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyBatch(pub Arc<LentBatch>);

impl PyBatch {
    /// Returns the batch.
    ///
    /// # Errors
    /// In a forked child.
    pub fn lent(&self) -> PyResult<&Arc<LentBatch>> {
        self.0.batch.get("Batch")?;
        Ok(&self.0)
    }
}

#[pymethods]
impl PyBatch {
    #[getter]
    fn epoch(&self) -> PyResult<u32> {
        Ok(self.lent()?.batch.step().epoch)
    }

    #[getter]
    fn iteration(&self) -> PyResult<u32> {
        Ok(self.lent()?.batch.step().iteration)
    }

    /// Ids of the delivered samples: without skipped ones, with substitutes.
    #[getter]
    fn ids(&self) -> PyResult<Vec<u32>> {
        Ok(self.lent()?.places.iter().map(|place| place.id).collect())
    }

    #[getter]
    fn labels(&self) -> PyResult<Vec<i64>> {
        let lent = self.lent()?;
        let label = |id| lent.dataset.label(id).map_or(-1, i64::from);
        Ok(lent.places.iter().map(|place| label(place.id)).collect())
    }

    /// The labels as native int64.
    fn labels_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let lent = self.lent()?;
        let labels = lent.dataset.labels(lent.places.iter().map(|place| place.id));
        Ok(PyBytes::new(py, &labels))
    }

    fn paths(&self) -> PyResult<Vec<OsString>> {
        let lent = self.lent()?;
        Ok(lent.places.iter().map(|place| lent.dataset.sample_path(place.id)).collect())
    }

    fn __len__(&self) -> usize {
        self.0.places.len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<PySample> {
        Ok(PySample::of_batch(self.lent()?, self.at(index)?))
    }

    fn samples<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let lent = self.lent()?;
        PyList::new(py, (0..lent.places.len()).map(|at| PySample::of_batch(lent, at)))
    }

    /// Offset and length of a sample in the shared memory; None if it is elsewhere.
    fn shared_range(&self, index: isize) -> PyResult<Option<(usize, usize)>> {
        let at = self.at(index)?;
        let lent = self.lent()?;
        Ok(lent.batch.place(lent.places[at].index as usize))
    }

    /// All samples as one array, if they have equal lengths and equal distances in memory.
    fn stacked(&self) -> PyResult<Option<PyStacked>> {
        Ok(PyStacked::of(self.lent()?))
    }
}

impl PyBatch {
    /// Returns the position of a sample; a negative index counts from the end.
    fn at(&self, index: isize) -> PyResult<usize> {
        let samples = self.0.places.len();
        let at = if index < 0 {
            samples.checked_sub(index.unsigned_abs())
        } else {
            Some(index as usize)
        };
        at.filter(|&at| at < samples).ok_or_else(|| {
            PyIndexError::new_err(format!("there is no sample {index}; the batch has {samples}"))
        })
    }
}

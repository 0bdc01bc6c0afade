//! A batch, lent.

use std::ffi::OsString;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::memory::Lent;
use crate::sample::Sample;
use crate::stacked::Stacked;

/// A batch, lent: its memory goes back when the last reference is dropped.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Batch(pub Arc<Lent>);

impl Batch {
    pub fn lent(&self) -> PyResult<&Arc<Lent>> {
        self.0.batch.get("Batch")?;
        Ok(&self.0)
    }
}

#[pymethods]
impl Batch {
    #[getter]
    fn epoch(&self) -> PyResult<u32> {
        Ok(self.lent()?.batch.step().epoch)
    }

    #[getter]
    fn iteration(&self) -> PyResult<u32> {
        Ok(self.lent()?.batch.step().iteration)
    }

    /// Ids of the samples that are there: without skipped ones, with substitutes.
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

    fn __getitem__(&self, index: isize) -> PyResult<Sample> {
        Ok(Sample::of_batch(self.lent()?, self.at(index)?))
    }

    fn samples<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let lent = self.lent()?;
        PyList::new(py, (0..lent.places.len()).map(|at| Sample::of_batch(lent, at)))
    }

    /// Offset and length in the shared memory, if the sample lies there.
    fn place(&self, index: isize) -> PyResult<Option<(usize, usize)>> {
        let at = self.at(index)?;
        let lent = self.lent()?;
        Ok(lent.batch.place(lent.places[at].index as usize))
    }

    /// All samples as one array, if they are equally long and lie evenly in memory.
    fn stacked(&self) -> PyResult<Option<Stacked>> {
        Ok(Stacked::of(self.lent()?))
    }
}

impl Batch {
    /// Where a sample is among those that are there; from the end if it is negative.
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

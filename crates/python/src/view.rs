//! The class `View`.

use std::sync::Arc;

use belady_engine as engine;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::errors::running;
use crate::open_dataset::OpenDataset;
use crate::process::Home;
use crate::sample::PySample;

/// Random access to a dataset through the engine's caches.
#[pyclass(name = "View", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyView {
    view: Home<engine::View>,
    dataset: Arc<OpenDataset>,
}

impl PyView {
    pub fn new(engine: &engine::Engine, dataset: Arc<OpenDataset>) -> PyResult<Self> {
        let view = engine.view(dataset.source.get("Dataset")?.clone(), &dataset.name());
        Ok(Self { view: Home::new(view), dataset })
    }
}

#[pymethods]
impl PyView {
    fn read<'py>(&self, py: Python<'py>, samples: Vec<i64>) -> PyResult<Bound<'py, PyList>> {
        let view = self.view.get("View")?;
        let read = PyList::empty(py);
        for sample in samples {
            let id = self.dataset.id(sample)?;
            let bytes = py.detach(|| view.read(id)).map_err(|error| running(py, &error))?;
            read.append(PySample::of_own(bytes, id, self.dataset.clone()))?;
            py.check_signals()?;
        }
        Ok(read)
    }
}

//! Random access to a dataset through the engine's caches.

use std::sync::Arc;

use belady_engine as engine;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::dataset::Listed;
use crate::errors::running;
use crate::process::Home;
use crate::sample::Sample;

/// Random access to a dataset through the engine's caches.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct View {
    view: Home<engine::View>,
    dataset: Arc<Listed>,
}

impl View {
    pub fn new(engine: &engine::Engine, dataset: Arc<Listed>) -> PyResult<Self> {
        let view = engine.view(dataset.source.get("Dataset")?.clone(), &dataset.name());
        Ok(Self { view: Home::new(view), dataset })
    }
}

#[pymethods]
impl View {
    fn read<'py>(&self, py: Python<'py>, samples: Vec<i64>) -> PyResult<Bound<'py, PyList>> {
        let view = self.view.get("View")?;
        let read = PyList::empty(py);
        for sample in samples {
            let id = self.dataset.id(sample)?;
            let bytes = py.detach(|| view.read(id)).map_err(|error| running(py, &error))?;
            read.append(Sample::of_own(bytes, id, self.dataset.clone()))?;
            py.check_signals()?;
        }
        Ok(read)
    }
}

//! The class `Transformer`.
//!
//! It can announce the memory of batches to a Python callback, which may pin it for a GPU. The
//! thread that takes the batch makes the call before it returns the batch: threads of the engine
//! never run Python.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belady_engine::{self as engine, EngineError, ErrorClass, OnGone};
use belady_node::{RankLoader, RankTransformed, TransformRecipe};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::running;
use crate::open_dataset::OpenDataset;
use crate::orders::{CallbackFeed, PyOrders};
use crate::output_batch::PyOutputBatch;
use crate::process::Home;
use crate::stats;
use crate::wait::{self, BatchSource, Polled};

/// Delivers transformed batches in order.
#[pyclass(name = "Transformer", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyTransformer {
    inner: Home<TransformerState>,
    /// Owns the callback; the engine does not.
    orders: Py<PyOrders>,
    on_block: Option<Py<PyAny>>,
}

#[derive(Debug)]
struct TransformerState {
    stage: RankTransformed,
    /// The feed at which the engine's threads wait for a callback.
    feed: Option<Arc<CallbackFeed>>,
    dataset: Arc<OpenDataset>,
    closed: AtomicBool,
}

/// What a transformer takes over from its loader.
#[derive(Debug)]
pub struct TransformerParts {
    pub dataset: Arc<OpenDataset>,
    pub feed: Option<Arc<CallbackFeed>>,
    pub orders: Py<PyOrders>,
    pub on_block: Option<Py<PyAny>>,
}

impl PyTransformer {
    /// Starts the threads.
    pub fn start(
        py: Python<'_>,
        loader: RankLoader,
        recipe: TransformRecipe,
        parts: TransformerParts,
    ) -> PyResult<Self> {
        let on_gone = parts.on_block.as_ref().map(|callback| on_gone(callback.clone_ref(py)));
        let stage = py.detach(|| {
            let stage = loader.transformed(recipe, on_gone);
            if let (Err(_), Some(feed)) = (&stage, &parts.feed) {
                feed.stop();
            }
            stage
        });
        let inner = TransformerState {
            stage: stage.map_err(|error| running(py, &error))?,
            feed: parts.feed,
            dataset: parts.dataset,
            closed: AtomicBool::new(false),
        };
        Ok(Self { inner: Home::new(inner), orders: parts.orders, on_block: parts.on_block })
    }

    /// Calls the callback for memory that was not announced before.
    fn announce(&self, py: Python<'_>, made: &PyOutputBatch) -> PyResult<()> {
        if let (Some(callback), Some(block)) = (&self.on_block, made.block())
            && block.announce()
        {
            callback.call1(py, (block.start().as_ptr() as usize, block.len(), true))?;
        }
        Ok(())
    }
}

/// Calls the callback for memory that is freed, on the thread of the last reference.
fn on_gone(callback: Py<PyAny>) -> OnGone {
    OnGone(Box::new(move |start, length| {
        // Not in an interpreter that exits.
        let _ = Python::try_attach(|py| {
            if let Err(error) = callback.call1(py, (start, length, false)) {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        });
    }))
}

#[pymethods]
impl PyTransformer {
    /// As `Loader.next`. With on_error="raise", a sample that cannot be transformed raises
    /// `belady.errors.DecodeError`; the next call continues with the next batch.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<PyOutputBatch>> {
        let inner = self.inner.get("Transformer")?;
        let Some(made) = wait::next(py, inner, timeout)? else { return Ok(None) };
        self.announce(py, &made)?;
        Ok(Some(made))
    }

    /// What it waits for, as text.
    fn waiting_for(&self) -> PyResult<String> {
        Ok(self.inner.get("Transformer")?.waiting_for())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get("Transformer")?;
        py.detach(|| inner.close());
        Ok(())
    }

    /// The metrics of the engine, and under "held" the status of each tier for this loader.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats::of_job(py, &self.inner.get("Transformer")?.stage.monitor())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.orders)?;
        visit.call(&self.on_block)
    }
}

impl BatchSource for TransformerState {
    type Batch = PyOutputBatch;

    fn poll(&self, tick: Duration) -> Polled<PyOutputBatch> {
        let next = self.stage.next_batch_timeout(tick);
        if self.closed.load(Ordering::Acquire) {
            return Polled::Closed;
        }
        match next {
            Ok(engine::Delivery::Batch(made)) => {
                Polled::Batch(PyOutputBatch::new(made, self.dataset.clone()))
            }
            Ok(engine::Delivery::Ended) => Polled::Ended,
            Ok(engine::Delivery::TimedOut) => Polled::NotYet,
            Err(error) => Polled::Failed(error),
        }
    }

    fn raised(&self, py: Python<'_>, error: EngineError) -> PyErr {
        let ErrorClass::Transform { sample, cause } = error.class() else {
            return running(py, &error);
        };
        let path = self.dataset.sample_path(sample);
        let text = format!("decode failed on {}: {cause}", path.display());
        let made = py
            .import("belady.errors")
            .and_then(|errors| errors.getattr("DecodeError")?.call1((text, sample, path)));
        made.map_or_else(|other| other, PyErr::from_value)
    }

    fn waiting_for(&self) -> String {
        self.stage.waiting_for()
    }
}

impl TransformerState {
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(feed) = &self.feed {
            feed.stop();
        }
        self.stage.close();
    }
}

impl Drop for PyTransformer {
    /// Joins threads, which may need Python, so it releases the interpreter.
    fn drop(&mut self) {
        if self.inner.is_here() {
            Python::attach(|py| py.detach(|| self.inner.close()));
        }
    }
}

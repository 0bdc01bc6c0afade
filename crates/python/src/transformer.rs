//! Gives out transformed batches in order.
//!
//! Memory of batches may be announced to a callback of Python's, which pins it for a GPU, say. That
//! happens on the thread that takes the batch, before anyone sees it: threads of the engine never
//! run Python.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use belady_engine::{self as engine, EngineError, OnGone, TransformConfig, Transformed};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::chain::Chain;
use crate::dataset::Listed;
use crate::errors::running;
use crate::made::Made;
use crate::orders::{Feed, Orders};
use crate::patience::{self, Gives, Turn};
use crate::process::Home;
use crate::stats;

/// Gives out transformed batches in order.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Transformer {
    inner: Home<Inner>,
    /// Keeps what a callback is made of; the engine itself does not.
    orders: Py<Orders>,
    on_block: Option<Py<PyAny>>,
}

#[derive(Debug)]
struct Inner {
    stage: Transformed,
    /// Where the engine's threads may wait for a callback.
    feed: Option<Arc<Feed>>,
    dataset: Arc<Listed>,
    closed: AtomicBool,
}

/// What a transformer gets from the loader whose place it takes.
#[derive(Debug)]
pub struct Parts {
    pub dataset: Arc<Listed>,
    pub feed: Option<Arc<Feed>>,
    pub orders: Py<Orders>,
    pub on_block: Option<Py<PyAny>>,
}

/// What is done to a part of each sample.
pub fn field(part: Option<String>, chain: Option<&Py<Chain>>) -> engine::Field {
    let transform = chain.map(|chain| chain.get().0.clone() as Arc<dyn engine::Transform>);
    engine::Field { part, transform }
}

impl Transformer {
    pub fn start(
        py: Python<'_>,
        loader: engine::Loader,
        config: TransformConfig,
        parts: Parts,
    ) -> PyResult<Self> {
        let on_gone = parts.on_block.as_ref().map(|callback| on_gone(callback.clone_ref(py)));
        let config = TransformConfig { on_gone, ..config };
        let stage = py.detach(|| {
            let stage = Transformed::new(loader, config);
            if let (Err(_), Some(feed)) = (&stage, &parts.feed) {
                feed.stop();
            }
            stage
        });
        let inner = Inner {
            stage: stage.map_err(|error| running(py, &error))?,
            feed: parts.feed,
            dataset: parts.dataset,
            closed: AtomicBool::new(false),
        };
        Ok(Self { inner: Home::new(inner), orders: parts.orders, on_block: parts.on_block })
    }

    /// Tells of memory that nobody has seen before.
    fn announce(&self, py: Python<'_>, made: &Made) -> PyResult<()> {
        if let (Some(callback), Some(block)) = (&self.on_block, made.block())
            && block.announce()
        {
            callback.call1(py, (block.start().as_ptr() as usize, block.len(), true))?;
        }
        Ok(())
    }
}

/// Tells of memory that goes, wherever the last one who held it is.
fn on_gone(callback: Py<PyAny>) -> OnGone {
    OnGone(Box::new(move |start, length| {
        // An interpreter that ends is told nothing.
        let _ = Python::try_attach(|py| {
            if let Err(error) = callback.call1(py, (start, length, false)) {
                error.write_unraisable(py, Some(callback.bind(py)));
            }
        });
    }))
}

#[pymethods]
impl Transformer {
    /// As `Loader.next`. With on_error="raise" a sample that cannot be transformed is a
    /// `belady.errors.DecodeError`; the next call goes on with the batch after it.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Made>> {
        let inner = self.inner.get("Transformer")?;
        let Some(made) = patience::next(py, inner, timeout)? else { return Ok(None) };
        self.announce(py, &made)?;
        Ok(Some(made))
    }

    /// What it waits for, in words.
    fn waiting_for(&self) -> PyResult<String> {
        Ok(self.inner.get("Transformer")?.waiting_for())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get("Transformer")?;
        py.detach(|| inner.close());
        Ok(())
    }

    /// The figures of the engine, and under "held" what each tier holds for this loader.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let outlook = self.inner.get("Transformer")?.stage.outlook();
        let figures = stats::figures(py, &outlook.metrics().snapshot())?;
        figures.set_item("held", stats::tiers(py, &outlook.tiers())?)?;
        Ok(figures)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.orders)?;
        visit.call(&self.on_block)
    }
}

impl Gives for Inner {
    type Batch = Made;

    fn turn(&self, tick: Duration) -> Turn<Made> {
        let next = self.stage.next_batch_timeout(tick);
        if self.closed.load(Ordering::Acquire) {
            return Turn::Closed;
        }
        match next {
            Ok(engine::Next::Batch(made)) => Turn::Batch(Made::new(made, self.dataset.clone())),
            Ok(engine::Next::Ended) => Turn::Ended,
            Ok(engine::Next::TimedOut) => Turn::NotYet,
            Err(error) => Turn::Failed(error),
        }
    }

    fn raised(&self, py: Python<'_>, error: EngineError) -> PyErr {
        let EngineError::BadTransform { sample, error } = error else {
            return running(py, &error);
        };
        let path = self.dataset.sample_path(sample);
        let text = format!("decode failed on {}: {error}", path.display());
        let made = py
            .import("belady.errors")
            .and_then(|errors| errors.getattr("DecodeError")?.call1((text, sample, path)));
        made.map_or_else(|other| other, PyErr::from_value)
    }

    fn waiting_for(&self) -> String {
        self.stage.waiting_for()
    }
}

impl Inner {
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        if let Some(feed) = &self.feed {
            feed.stop();
        }
        self.stage.close();
    }
}

impl Drop for Transformer {
    /// Joins threads, so nobody is kept from running meanwhile. They may be in need of Python.
    fn drop(&mut self) {
        if self.inner.is_here() {
            Python::attach(|py| py.detach(|| self.inner.close()));
        }
    }
}

//! The class `Loader`.
//!
//! The engine's loader serves one consumer at a time. Python threads that call it at the same time
//! take turns: a thread takes the engine's loader from the [`SharedLoader`], waits up to a tick for
//! a batch and puts it back.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belady_control::sampler::Step;
use belady_engine as engine;
use belady_node::{RankLoader, RankMonitor, TransformRecipe};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{self, positive};
use crate::batch::PyBatch;
use crate::chain::PyChain;
use crate::errors::{BeladyError, running};
use crate::memory::LentBatch;
use crate::open_dataset::OpenDataset;
use crate::orders::{CallbackFeed, PyOrders};
use crate::process::Home;
use crate::stats;
use crate::transformer::{PyTransformer, TransformerParts};
use crate::wait::{self, BatchSource, Polled};

/// Delivers batches in order.
#[pyclass(name = "Loader", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyLoader {
    inner: Home<LoaderParts>,
    /// Owns the callback; the engine does not.
    orders: Py<PyOrders>,
}

#[derive(Debug)]
struct LoaderParts {
    shared_loader: SharedLoader,
    monitor: RankMonitor,
    /// The feed at which the engine's threads wait for a callback.
    feed: Option<Arc<CallbackFeed>>,
    dataset: Arc<OpenDataset>,
    writable: bool,
    shared: Option<(i32, usize)>,
}

/// The state of the engine's loader.
#[derive(Debug)]
enum LoaderState {
    Here(Box<RankLoader>),
    /// A thread has taken it.
    Out,
    Closed,
    /// A transformer owns it.
    HandedOver,
}

#[derive(Debug)]
struct SharedLoader {
    state: Mutex<LoaderState>,
    back: Condvar,
}

impl PyLoader {
    pub fn new(
        loader: RankLoader,
        dataset: Arc<OpenDataset>,
        orders: &Bound<'_, PyOrders>,
        feed: Option<Arc<CallbackFeed>>,
        writable: bool,
    ) -> Self {
        let shared = loader.shared_memory().map(|it| (it.fd.as_raw_fd(), it.length));
        let monitor = loader.monitor();
        let inner = LoaderParts {
            shared_loader: SharedLoader::new(loader),
            monitor,
            feed,
            dataset,
            writable,
            shared,
        };
        Self { inner: Home::new(inner), orders: orders.clone().unbind() }
    }
}

#[pymethods]
impl PyLoader {
    /// The next batch; None after the last one. Lets other threads run, and Ctrl-C. Raises
    /// TimeoutError when `timeout` seconds pass.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<PyBatch>> {
        let inner = self.inner.get("Loader")?;
        Ok(wait::next(py, inner, timeout)?.map(PyBatch))
    }

    /// Notes that the consumer begins an epoch, so that all of it can be staged.
    fn begin_epoch(&self, epoch: u32) -> PyResult<()> {
        self.inner.get("Loader")?.monitor.begin_epoch(epoch);
        Ok(())
    }

    /// Notes that the consumer has ended its epoch, so that memory is returned to the system.
    fn end_epoch(&self) -> PyResult<()> {
        self.inner.get("Loader")?.monitor.end_epoch();
        Ok(())
    }

    /// What the loader waits for, as text.
    fn waiting_for(&self) -> PyResult<String> {
        Ok(self.inner.get("Loader")?.waiting_for())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get("Loader")?;
        py.detach(|| inner.close());
        Ok(())
    }

    /// The metrics of the engine, and under "held" the status of each tier for this loader.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner.get("Loader")?;
        stats::of_job(py, &inner.monitor)
    }

    /// Descriptor and length of the ring's memory, if it is shared.
    fn shared_memory(&self) -> PyResult<Option<(i32, usize)>> {
        let inner = self.inner.get("Loader")?;
        Ok(inner.shared.filter(|_| !inner.shared_loader.is_closed()))
    }

    /// Starts threads that transform every sample; the transformer takes over this loader.
    #[pyo3(signature = (fields, seed=0, threads=1, depth=2, on_error="raise", on_block=None, first=(0, 0), repeats=false),
        text_signature = "($self, fields, seed=0, threads=1, depth=2, on_error='raise', on_block=None, first=(0, 0), repeats=False)")]
    #[allow(clippy::too_many_arguments)]
    fn transformed(
        &self,
        py: Python<'_>,
        fields: Vec<(Option<String>, Option<Py<PyChain>>)>,
        seed: u64,
        threads: i64,
        depth: i64,
        on_error: &str,
        on_block: Option<Py<PyAny>>,
        first: (u32, u32),
        repeats: bool,
    ) -> PyResult<PyTransformer> {
        let inner = self.inner.get("Loader")?;
        let chain = |chain: Py<PyChain>| chain.get().0.clone();
        let recipe = TransformRecipe {
            fields: fields.into_iter().map(|(part, it)| (part, it.map(chain))).collect(),
            seed,
            first: Step { epoch: first.0, iteration: first.1 },
            repeats,
            threads: positive("threads", threads)? as usize,
            depth: positive("depth", depth)? as usize,
            on_error: arguments::bad_samples("on_error", on_error)?,
        };
        let loader = inner.shared_loader.hand_over().ok_or_else(|| {
            BeladyError::new_err("this loader is closed or in use; start another one")
        })?;
        let parts = TransformerParts {
            dataset: inner.dataset.clone(),
            feed: inner.feed.clone(),
            orders: self.orders.clone_ref(py),
            on_block,
        };
        PyTransformer::start(py, *loader, recipe, parts)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.orders)
    }
}

impl BatchSource for LoaderParts {
    type Batch = Arc<LentBatch>;

    fn poll(&self, tick: Duration) -> Polled<Arc<LentBatch>> {
        let until = Instant::now() + tick;
        let Some(taken) = self.shared_loader.take(until) else { return Polled::NotYet };
        let Some(mut loader) = taken else { return Polled::Closed };
        let next = loader.next_batch_timeout(until.saturating_duration_since(Instant::now()));
        self.shared_loader.put_back(loader);
        match next {
            Ok(engine::Delivery::Batch(batch)) => {
                Polled::Batch(Arc::new(LentBatch::new(batch, self.dataset.clone(), self.writable)))
            }
            Ok(engine::Delivery::Ended) => Polled::Ended,
            Ok(engine::Delivery::TimedOut) => Polled::NotYet,
            Err(error) => Polled::Failed(error),
        }
    }

    fn raised(&self, py: Python<'_>, error: engine::EngineError) -> PyErr {
        running(py, &error)
    }

    fn waiting_for(&self) -> String {
        self.monitor.waiting_for()
    }
}

impl LoaderParts {
    fn close(&self) {
        if self.shared_loader.is_handed_on() {
            return;
        }
        if let Some(feed) = &self.feed {
            feed.stop();
        }
        drop(self.shared_loader.close());
    }
}

impl Drop for PyLoader {
    /// Joins threads, which may need Python, so it releases the interpreter.
    fn drop(&mut self) {
        if self.inner.is_here() {
            Python::attach(|py| py.detach(|| self.inner.close()));
        }
    }
}

impl SharedLoader {
    fn new(loader: RankLoader) -> Self {
        Self { state: Mutex::new(LoaderState::Here(Box::new(loader))), back: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, LoaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the loader: `Some(None)` if it is closed, `None` if other threads had it until the
    /// deadline.
    #[allow(clippy::option_option)]
    fn take(&self, until: Instant) -> Option<Option<Box<RankLoader>>> {
        let mut state = self.lock();
        loop {
            match std::mem::replace(&mut *state, LoaderState::Out) {
                LoaderState::Here(loader) => return Some(Some(loader)),
                gone @ (LoaderState::Closed | LoaderState::HandedOver) => {
                    *state = gone;
                    return Some(None);
                }
                LoaderState::Out => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.back.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Puts the loader back, or drops it if it was closed in the meantime.
    fn put_back(&self, loader: Box<RankLoader>) {
        let mut state = self.lock();
        if matches!(*state, LoaderState::Out) {
            *state = LoaderState::Here(loader);
        }
        drop(state);
        self.back.notify_one();
    }

    fn is_closed(&self) -> bool {
        matches!(*self.lock(), LoaderState::Closed | LoaderState::HandedOver)
    }

    fn is_handed_on(&self) -> bool {
        matches!(*self.lock(), LoaderState::HandedOver)
    }

    /// Takes the loader for ever; `None` if it is closed or a thread has taken it.
    fn hand_over(&self) -> Option<Box<RankLoader>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, LoaderState::HandedOver) {
            LoaderState::Here(loader) => Some(loader),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Closes the loader; a thread that has taken it drops it.
    fn close(&self) -> LoaderState {
        let state = std::mem::replace(&mut *self.lock(), LoaderState::Closed);
        self.back.notify_all();
        state
    }
}

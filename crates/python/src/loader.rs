//! Gives out batches in order.
//!
//! The engine's loader serves one consumer at a time. Python threads that ask at the same time
//! take turns: whoever has it out on the *desk* waits a tick for a batch and lays it back.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belady_control::sampler::Step;
use belady_engine::{self as engine, TransformConfig};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::Batch;
use crate::chain::Chain;
use crate::dataset::Listed;
use crate::engine::what_to_do;
use crate::errors::{BeladyError, positive, running};
use crate::memory::Lent;
use crate::orders::{Feed, Orders};
use crate::patience::{self, Gives, Turn};
use crate::process::Home;
use crate::stats;
use crate::transformer::{Parts, Transformer, field};

/// Gives out batches in order.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Loader {
    inner: Home<Inner>,
    /// Keeps what a callback is made of; the engine itself does not.
    orders: Py<Orders>,
}

#[derive(Debug)]
struct Inner {
    desk: Desk,
    outlook: engine::Outlook,
    /// Where the engine's threads may wait for a callback.
    feed: Option<Arc<Feed>>,
    dataset: Arc<Listed>,
    writable: bool,
    shared: Option<(i32, usize)>,
}

/// Where the engine's loader is.
#[derive(Debug)]
enum State {
    Here(Box<engine::Loader>),
    /// Somebody has it.
    Out,
    Closed,
    /// Somebody has it for good.
    HandedOn,
}

#[derive(Debug)]
struct Desk {
    state: Mutex<State>,
    back: Condvar,
}

impl Loader {
    pub fn new(
        loader: engine::Loader,
        dataset: Arc<Listed>,
        orders: &Bound<'_, Orders>,
        feed: Option<Arc<Feed>>,
        writable: bool,
    ) -> Self {
        let shared = loader.shared_memory().map(|it| (it.fd.as_raw_fd(), it.length));
        let outlook = loader.outlook();
        let inner = Inner { desk: Desk::new(loader), outlook, feed, dataset, writable, shared };
        Self { inner: Home::new(inner), orders: orders.clone().unbind() }
    }
}

#[pymethods]
impl Loader {
    /// The next batch; None after the last one. Lets other threads run, and Ctrl-C. Raises
    /// TimeoutError when `timeout` seconds pass.
    #[pyo3(signature = (timeout=None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Batch>> {
        let inner = self.inner.get("Loader")?;
        Ok(patience::next(py, inner, timeout)?.map(Batch))
    }

    /// Says that the consumer begins an epoch, so that all of it may be staged.
    fn begin_epoch(&self, epoch: u32) -> PyResult<()> {
        self.inner.get("Loader")?.outlook.begin_epoch(epoch);
        Ok(())
    }

    /// Says that the consumer is done with its epoch, so that memory goes back to the system.
    fn rest(&self) -> PyResult<()> {
        self.inner.get("Loader")?.outlook.rest();
        Ok(())
    }

    /// What the loader waits for, in words.
    fn waiting_for(&self) -> PyResult<String> {
        Ok(self.inner.get("Loader")?.waiting_for())
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get("Loader")?;
        py.detach(|| inner.close());
        Ok(())
    }

    /// The figures of the engine, and under "held" what each tier holds for this loader.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner.get("Loader")?;
        let figures = stats::figures(py, &inner.outlook.metrics().snapshot())?;
        figures.set_item("held", stats::tiers(py, &inner.outlook.tiers())?)?;
        Ok(figures)
    }

    /// Descriptor and length of the ring's memory, if it is shared.
    fn shared_memory(&self) -> PyResult<Option<(i32, usize)>> {
        let inner = self.inner.get("Loader")?;
        Ok(inner.shared.filter(|_| !inner.desk.is_closed()))
    }

    /// Its batches with every sample transformed, by threads of their own.
    #[pyo3(signature = (fields, seed=0, threads=1, depth=2, on_error="raise", on_block=None, first=(0, 0), repeats=false),
        text_signature = "($self, fields, seed=0, threads=1, depth=2, on_error='raise', on_block=None, first=(0, 0), repeats=False)")]
    #[allow(clippy::too_many_arguments)]
    fn transformed(
        &self,
        py: Python<'_>,
        fields: Vec<(Option<String>, Option<Py<Chain>>)>,
        seed: u64,
        threads: i64,
        depth: i64,
        on_error: &str,
        on_block: Option<Py<PyAny>>,
        first: (u32, u32),
        repeats: bool,
    ) -> PyResult<Transformer> {
        let inner = self.inner.get("Loader")?;
        let config = TransformConfig {
            fields: fields.into_iter().map(|(part, chain)| field(part, chain.as_ref())).collect(),
            seed,
            first: Step { epoch: first.0, iteration: first.1 },
            repeats,
            threads: positive("threads", threads)? as usize,
            depth: positive("depth", depth)? as usize,
            on_error: what_to_do("on_error", on_error)?,
            on_gone: None,
        };
        let loader = inner.desk.hand_on().ok_or_else(|| {
            BeladyError::new_err("this loader is closed or in use; start another one")
        })?;
        let parts = Parts {
            dataset: inner.dataset.clone(),
            feed: inner.feed.clone(),
            orders: self.orders.clone_ref(py),
            on_block,
        };
        Transformer::start(py, *loader, config, parts)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.orders)
    }
}

impl Gives for Inner {
    type Batch = Arc<Lent>;

    fn turn(&self, tick: Duration) -> Turn<Arc<Lent>> {
        let until = Instant::now() + tick;
        let Some(taken) = self.desk.take(until) else { return Turn::NotYet };
        let Some(mut loader) = taken else { return Turn::Closed };
        let next = loader.next_batch_timeout(until.saturating_duration_since(Instant::now()));
        self.desk.lay_back(loader);
        match next {
            Ok(engine::Next::Batch(batch)) => {
                Turn::Batch(Arc::new(Lent::new(batch, self.dataset.clone(), self.writable)))
            }
            Ok(engine::Next::Ended) => Turn::Ended,
            Ok(engine::Next::TimedOut) => Turn::NotYet,
            Err(error) => Turn::Failed(error),
        }
    }

    fn raised(&self, py: Python<'_>, error: engine::EngineError) -> PyErr {
        running(py, &error)
    }

    fn waiting_for(&self) -> String {
        self.outlook.waiting_for()
    }
}

impl Inner {
    fn close(&self) {
        if self.desk.is_handed_on() {
            return;
        }
        if let Some(feed) = &self.feed {
            feed.stop();
        }
        drop(self.desk.close());
    }
}

impl Drop for Loader {
    /// Joins threads, so nobody is kept from running meanwhile. They may be in need of Python.
    fn drop(&mut self) {
        if self.inner.is_here() {
            Python::attach(|py| py.detach(|| self.inner.close()));
        }
    }
}

impl Desk {
    fn new(loader: engine::Loader) -> Self {
        Self { state: Mutex::new(State::Here(Box::new(loader))), back: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loader, for a while: `Some(None)` if it is closed, `None` if others have it all the
    /// time.
    #[allow(clippy::option_option)]
    fn take(&self, until: Instant) -> Option<Option<Box<engine::Loader>>> {
        let mut state = self.lock();
        loop {
            match std::mem::replace(&mut *state, State::Out) {
                State::Here(loader) => return Some(Some(loader)),
                gone @ (State::Closed | State::HandedOn) => {
                    *state = gone;
                    return Some(None);
                }
                State::Out => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.back.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// It goes if it was closed meanwhile.
    fn lay_back(&self, loader: Box<engine::Loader>) {
        let mut state = self.lock();
        if matches!(*state, State::Out) {
            *state = State::Here(loader);
        }
        drop(state);
        self.back.notify_one();
    }

    fn is_closed(&self) -> bool {
        matches!(*self.lock(), State::Closed | State::HandedOn)
    }

    fn is_handed_on(&self) -> bool {
        matches!(*self.lock(), State::HandedOn)
    }

    /// The loader for good, if it is here.
    fn hand_on(&self) -> Option<Box<engine::Loader>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::HandedOn) {
            State::Here(loader) => Some(loader),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Whoever has the loader lets it go.
    fn close(&self) -> State {
        let state = std::mem::replace(&mut *self.lock(), State::Closed);
        self.back.notify_all();
        state
    }
}

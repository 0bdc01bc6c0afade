//! Orders from a Python callback.
//!
//! The engine requests an epoch on its own thread, which does not run Python. It puts the request
//! into a [`CallbackFeed`]; a Python thread takes it, calls the callback and puts the answer back.
//! Only the
//! `Orders` object in Python owns the callback, so that the garbage collector sees the reference; a
//! feed looks it up for each request.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use belady_control::sampler::{Batching, EpochList, OrderError, OrderProvider, SampleId};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyModule, PyTuple};

use crate::errors::BeladyError;

/// The limits of a callback's epochs.
#[derive(Clone, Copy, Debug)]
pub struct EpochShape {
    pub samples: u32,
    pub batch: Option<u32>,
    pub drop_last: bool,
    pub largest_batch: Option<u32>,
}

/// A callback, owned here only.
#[derive(Debug)]
pub struct Callback {
    slot: Arc<EpochSlot>,
    shape: EpochShape,
}

/// The callback; `None` after the garbage collector has broken a cycle.
#[derive(Debug)]
struct EpochSlot(Mutex<Option<Py<PyAny>>>);

impl Callback {
    pub fn new(callback: Py<PyAny>, shape: EpochShape) -> Self {
        Self { slot: Arc::new(EpochSlot(Mutex::new(Some(callback)))), shape }
    }

    /// Calls the callback on this thread.
    pub fn ask(&self, py: Python<'_>, epoch: u32) -> PyResult<Option<EpochList>> {
        let callback = self.slot.get(py).ok_or_else(gone)?;
        self.shape.list(epoch, &python(py)?.getattr("ask")?.call1((callback, epoch))?)
    }

    /// Returns a feed for one job, and starts its Python thread.
    pub fn feed(&self, py: Python<'_>) -> PyResult<Arc<CallbackFeed>> {
        let feed = Arc::new(CallbackFeed {
            slot: Arc::downgrade(&self.slot),
            shape: self.shape,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = py.import("threading")?.getattr("Thread")?.call1((
            py.None(),
            python(py)?.getattr("feed")?,
            "belady-orders",
            (Feeder(feed.clone()),),
        ))?;
        // A daemon, so that an interpreter that exits does not wait for it.
        thread.setattr("daemon", true)?;
        thread.call_method0("start")?;
        Ok(feed)
    }

    pub fn traverse(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.slot.0.try_lock() {
            Ok(callback) => visit.call(&*callback),
            // Locked, so it is in use.
            Err(_) => Ok(()),
        }
    }

    pub fn clear(&self) {
        let callback = self.slot.lock().take();
        drop(callback);
    }
}

impl EpochSlot {
    fn lock(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.lock().as_ref().map(|callback| callback.clone_ref(py))
    }
}

fn gone() -> PyErr {
    BeladyError::new_err("the callback of this order was garbage-collected: make new orders")
}

/// Returns the module of the helper functions in Python.
fn python(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = MODULE.get_or_try_init(py, || {
        let code = std::ffi::CString::new(include_str!("feed.py"))?;
        PyModule::from_code(py, &code, c"belady/feed.py", c"belady._feed").map(Bound::unbind)
    })?;
    Ok(module.bind(py))
}

/// Passes requests of the engine to a Python thread, and its answers back.
#[derive(Debug)]
pub struct CallbackFeed {
    slot: Weak<EpochSlot>,
    shape: EpochShape,
    state: Mutex<CallbackState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CallbackState {
    asked: Option<u32>,
    answer: Option<PyResult<Option<EpochList>>>,
    stopped: bool,
}

impl CallbackFeed {
    /// Ends the thread and all waits.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, CallbackState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, CallbackState>) -> MutexGuard<'a, CallbackState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, answer: PyResult<Option<EpochList>>) {
        self.lock().answer = Some(answer);
        self.changed.notify_all();
    }
}

impl OrderProvider for CallbackFeed {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        let mut state = self.lock();
        state.asked = Some(epoch);
        self.changed.notify_all();
        loop {
            if let Some(answer) = state.answer.take() {
                return answer.map_err(|error| OrderError::failed(epoch, error));
            }
            if state.stopped {
                return Err(OrderError::failed(epoch, "the loader was closed"));
            }
            state = self.wait(state);
        }
    }

    // A user's sampler is called once for each epoch.
    fn ahead(&self) -> bool {
        false
    }

    fn largest_batch(&self) -> Option<u32> {
        self.shape.largest_batch.or(self.shape.batch)
    }
}

/// The feed's interface for the Python thread.
#[pyclass(frozen)]
struct Feeder(Arc<CallbackFeed>);

#[pymethods]
impl Feeder {
    /// Waits for a request, and returns the callback and the epoch; None at the end.
    fn wanted(&self, py: Python<'_>) -> Option<(Py<PyAny>, u32)> {
        let epoch = py.detach(|| {
            let mut state = self.0.lock();
            loop {
                if state.stopped {
                    return None;
                }
                if let Some(epoch) = state.asked.take() {
                    return Some(epoch);
                }
                state = self.0.wait(state);
            }
        })?;
        let callback = self.0.slot.upgrade().and_then(|slot| slot.get(py));
        if callback.is_none() {
            self.0.answer(Err(gone()));
        }
        callback.map(|callback| (callback, epoch))
    }

    fn gave(&self, given: &Bound<'_, PyAny>, epoch: u32) {
        let list = self.0.shape.list(epoch, given);
        self.0.answer(list);
    }

    fn failed(&self, error: Bound<'_, PyAny>) {
        self.0.answer(Err(PyErr::from_value(error)));
    }
}

impl EpochShape {
    /// Converts the result of a callback to a list.
    fn list(&self, epoch: u32, given: &Bound<'_, PyAny>) -> PyResult<Option<EpochList>> {
        if given.is_none() {
            return Ok(None);
        }
        let (samples, ends) =
            given.cast::<PyTuple>()?.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
        let number = |what: &'static str, limit: u32| {
            move |(position, value): (usize, i64)| {
                u32::try_from(value).ok().filter(|&value| value < limit).ok_or_else(|| {
                    PyValueError::new_err(format!(
                        "the order of epoch {epoch} has {what} {value} at position {position}, \
                         which is not from 0 to {}",
                        limit - 1
                    ))
                })
            }
        };
        let samples = numbers(&samples)?.into_iter().enumerate();
        let samples: PyResult<Vec<SampleId>> =
            samples.map(number("sample", self.samples)).collect();
        let batches = if ends.is_none() {
            let batch = self.batch.ok_or_else(|| {
                PyValueError::new_err(
                    "an order without a batch size must return the ends of its batches",
                )
            })?;
            Batching::Every { batch, drop_last: self.drop_last }
        } else {
            let ends = numbers(&ends)?.into_iter().enumerate();
            Batching::Ends(
                ends.map(number("a batch that ends at", u32::MAX)).collect::<PyResult<_>>()?,
            )
        };
        Ok(Some(EpochList { samples: samples?, batches }))
    }
}

/// Reads whole numbers from a buffer of int64, or from a list.
fn numbers(given: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if let Ok(buffer) = PyBuffer::<i64>::get(given) {
        return buffer.to_vec(given.py());
    }
    given.extract().map_err(|error| {
        let wrong = format!("an order must consist of whole numbers: {error}");
        PyTypeError::new_err(wrong)
    })
}

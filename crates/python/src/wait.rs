//! Waits that release the interpreter and check for signals.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use belady_engine::EngineError;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::arguments::seconds;
use crate::errors::{BeladyError, defect};

/// The interval between two checks for signals: short enough for Ctrl-C, long enough to cost
/// nothing.
pub const TICK: Duration = Duration::from_millis(50);

/// Runs `work`, which may hang in a system call, on a new thread. The calling thread checks for
/// signals and calls `meanwhile`; on an error it returns, and the thread is abandoned.
pub fn patiently<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    mut meanwhile: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let (send, mut receive) = channel();
    std::thread::Builder::new().name("belady-wait".into()).spawn(move || {
        // The receiver is gone if the caller has returned.
        let _ = send.send(work());
    })?;
    loop {
        let waited;
        (waited, receive) = py.detach(move || (receive.recv_timeout(TICK), receive));
        match waited {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals()?;
                meanwhile(py)?;
            }
            Err(RecvTimeoutError::Disconnected) => return Err(defect()),
        }
    }
}

/// The result of a short wait for a batch.
pub enum Polled<T> {
    Batch(T),
    Ended,
    Failed(EngineError),
    NotYet,
    Closed,
}

/// A source of batches, waited for in ticks.
pub trait BatchSource: Sync {
    type Batch: Send;

    /// Waits for a batch, at most for a tick.
    fn poll(&self, tick: Duration) -> Polled<Self::Batch>;

    /// Converts an error to an exception.
    fn raised(&self, py: Python<'_>, error: EngineError) -> PyErr;

    /// Returns what it waits for, as text.
    fn waiting_for(&self) -> String;
}

/// Waits for the next batch; `None` after the last one. Releases the interpreter and checks for
/// signals.
pub fn next<G: BatchSource>(
    py: Python<'_>,
    source: &G,
    timeout: Option<f64>,
) -> PyResult<Option<G::Batch>> {
    let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
        let tick = left.map_or(TICK, |left| left.min(TICK));
        match py.detach(|| source.poll(tick)) {
            Polled::Batch(batch) => return Ok(Some(batch)),
            Polled::Ended => return Ok(None),
            Polled::Failed(error) => return Err(source.raised(py, error)),
            Polled::Closed => {
                return Err(BeladyError::new_err("this loader is closed; start another one"));
            }
            Polled::NotYet => {}
        }
        py.check_signals()?;
        if let Some(timeout) = timeout
            && left.is_some_and(|left| left.is_zero())
        {
            return Err(PyTimeoutError::new_err(format!(
                "no batch within {} s; the loader waits for {}",
                timeout.as_secs_f64(),
                source.waiting_for()
            )));
        }
    }
}

/// A value that joins threads when dropped; the drop releases the interpreter.
#[derive(Debug)]
pub struct Unhurried<T: Send>(ManuallyDrop<T>);

impl<T: Send> Unhurried<T> {
    pub fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }
}

impl<T: Send> Deref for Unhurried<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Send> Drop for Unhurried<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let value = unsafe { ManuallyDrop::take(&mut self.0) };
        // Not in an interpreter that exits: it runs no other thread.
        let _ = Python::try_attach(move |py| py.detach(move || drop(value)));
    }
}

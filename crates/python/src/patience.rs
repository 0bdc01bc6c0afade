//! Waiting as Python wants it: other threads run meanwhile, and signals are heard.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use belady_engine::EngineError;
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::engine::seconds;
use crate::errors::{BeladyError, defect};

/// How long a wait goes on before it looks for signals: Ctrl-C seems immediate, and it costs
/// nothing that can be measured.
pub const TICK: Duration = Duration::from_millis(50);

/// Does what may take long, or hang in a system call, on a thread of its own. The caller looks
/// around `meanwhile` and may leave with an error; the thread is then left to itself.
pub fn patiently<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
    mut meanwhile: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    let (send, mut receive) = channel();
    std::thread::Builder::new().name("belady-wait".into()).spawn(move || {
        // Nobody may be there any more to hear of it.
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

/// How a short wait for a batch ended.
pub enum Turn<T> {
    Batch(T),
    Ended,
    Failed(EngineError),
    NotYet,
    Closed,
}

/// Somebody who gives out batches.
pub trait Gives: Sync {
    type Batch: Send;

    /// Waits no longer than a tick.
    fn turn(&self, tick: Duration) -> Turn<Self::Batch>;

    /// What is raised.
    fn raised(&self, py: Python<'_>, error: EngineError) -> PyErr;

    /// What it waits for, in words.
    fn waiting_for(&self) -> String;
}

/// The next batch; `None` after the last one.
pub fn next<G: Gives>(
    py: Python<'_>,
    giver: &G,
    timeout: Option<f64>,
) -> PyResult<Option<G::Batch>> {
    let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
        let tick = left.map_or(TICK, |left| left.min(TICK));
        match py.detach(|| giver.turn(tick)) {
            Turn::Batch(batch) => return Ok(Some(batch)),
            Turn::Ended => return Ok(None),
            Turn::Failed(error) => return Err(giver.raised(py, error)),
            Turn::Closed => {
                return Err(BeladyError::new_err("this loader is closed; start another one"));
            }
            Turn::NotYet => {}
        }
        py.check_signals()?;
        if let Some(timeout) = timeout
            && left.is_some_and(|left| left.is_zero())
        {
            return Err(PyTimeoutError::new_err(format!(
                "no batch came in {} s; the loader waits for {}",
                timeout.as_secs_f64(),
                giver.waiting_for()
            )));
        }
    }
}

/// Something that waits for threads when it is dropped: other threads of Python run meanwhile.
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
        // An interpreter that ends runs nobody else.
        let _ = Python::try_attach(move |py| py.detach(move || drop(value)));
    }
}

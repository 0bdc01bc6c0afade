//! The processes of a job, once they have met.
//!
//! Where they meet, a library of Python's has ([`meeting`]), or the user or the environment names
//! ([`place`]). Waiting at a place of Python's happens in Python, which hears Ctrl-C; everywhere else it
//! happens on a thread of its own, while Python's listens.

mod meeting;
mod place;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use belady_peer::{self as peer, JoinError, Meet, MeetError, World};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use self::meeting::PythonMeeting;
pub use self::place::meeting_place;
use self::place::{Options, Where};
use crate::errors::BeladyError;
use crate::patience::{Unhurried, patiently};
use crate::process::Home;

/// The processes of a job, once they have met.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Cluster(Home<Inner>);

#[derive(Debug)]
struct Inner {
    cluster: Unhurried<Arc<peer::Cluster>>,
    /// Where they have met, if it is a library of Python's.
    python: Option<Arc<PythonMeeting>>,
    /// Jobs that have begun.
    begun: AtomicU32,
    /// The last exchange.
    last: Mutex<Option<String>>,
}

#[pymethods]
impl Cluster {
    /// Meets at a place that a library of Python's has, which is private to the job.
    #[staticmethod]
    #[pyo3(signature = (meeting, *, key=None, bind=None, tls=None, timeout=300.0))]
    fn join(
        py: Python<'_>,
        meeting: &Bound<'_, PyAny>,
        key: Option<&str>,
        bind: Option<&str>,
        tls: Option<Vec<String>>,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = Options::new(key, bind, tls, timeout)?;
        let meeting = Arc::new(PythonMeeting::new(meeting, options.limit)?);
        let shared: Arc<dyn Meet> = meeting.clone();
        let joined = py.detach(|| peer::join(shared, options.join()));
        let joined = joined.map_err(|error| match error {
            JoinError::Meet(why) => told(Some(&meeting), &why),
            JoinError::Peer(why) => BeladyError::new_err(why.to_string()),
        })?;
        Ok(Self::new(joined, Some(meeting)))
    }

    /// Meets at "HOST:PORT", by hosts, in a directory, or with "mpi" by MPI.
    #[staticmethod]
    #[pyo3(signature = (place, rank, size, *, key=None, bind=None, tls=None, timeout=300.0))]
    #[allow(clippy::too_many_arguments)]
    fn at(
        py: Python<'_>,
        place: Where,
        rank: u32,
        size: u32,
        key: Option<&str>,
        bind: Option<&str>,
        tls: Option<Vec<String>>,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = Options::new(key, bind, tls, timeout)?;
        let world = World { rank, size };
        Self::patiently(py, move || place.go(world, &options))
    }

    /// Meets where the environment says.
    #[staticmethod]
    #[pyo3(signature = (*, key=None, bind=None, tls=None, timeout=300.0))]
    fn found(
        py: Python<'_>,
        key: Option<&str>,
        bind: Option<&str>,
        tls: Option<Vec<String>>,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = Options::new(key, bind, tls, timeout)?;
        Self::patiently(py, move || place::found(&options))
    }

    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.native()?.world().rank)
    }

    #[getter]
    fn size(&self) -> PyResult<u32> {
        Ok(self.native()?.world().size)
    }

    /// Ranks that run on this machine, this one included.
    fn near(&self) -> PyResult<Vec<u32>> {
        Ok(self.native()?.near())
    }

    /// What all ranks gave, by rank.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        name: String,
        mine: Vec<u8>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let all =
            self.at_meeting(py, name, move |meet, name| peer::share(meet, name, Ok(&mine)))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Raises if a rank has other facts.
    fn agree(&self, py: Python<'_>, what: String, facts: Vec<(String, String)>) -> PyResult<()> {
        self.at_meeting(py, what, move |meet, what| {
            let facts: Vec<_> = facts.iter().map(|(name, it)| (&**name, it.clone())).collect();
            peer::agree(meet, what, &facts)
        })
    }

    /// Leaves the others: nothing is served any more.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let cluster = self.native()?;
        py.detach(|| cluster.transport.close());
        Ok(())
    }
}

impl Cluster {
    fn new(cluster: peer::Cluster, python: Option<Arc<PythonMeeting>>) -> Self {
        let cluster = Unhurried::new(Arc::new(cluster));
        let (begun, last) = (AtomicU32::new(0), Mutex::new(None));
        Self(Home::new(Inner { cluster, python, begun, last }))
    }

    fn patiently(
        py: Python<'_>,
        join: impl FnOnce() -> Result<peer::Cluster, JoinError> + Send + 'static,
    ) -> PyResult<Self> {
        let joined = patiently(py, join, |_| Ok(()))?;
        let joined = joined.map_err(|error| BeladyError::new_err(error.to_string()))?;
        Ok(Self::new(joined, None))
    }

    /// For an engine.
    pub fn native(&self) -> PyResult<Arc<peer::Cluster>> {
        Ok(self.0.get("Cluster")?.cluster.clone())
    }

    /// A job begins: waits for all ranks to begin it, so that an engine need not, which does not hear
    /// Ctrl-C.
    pub fn gather(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.0.get("Cluster")?;
        let number = inner.begun.fetch_add(1, Ordering::Relaxed);
        let name = format!("the beginning of job {number}");
        self.at_meeting(py, name, |meet, name| peer::share(meet, name, Ok(&[]))).map(drop)
    }

    fn at_meeting<T: Send + 'static>(
        &self,
        py: Python<'_>,
        name: String,
        ask: impl FnOnce(&dyn Meet, &str) -> Result<T, MeetError> + Send + 'static,
    ) -> PyResult<T> {
        let inner = self.0.get("Cluster")?;
        let (meet, asked) = (inner.cluster.meet.clone(), name.clone());
        let answer = match &inner.python {
            Some(_) => py.detach(|| ask(&*meet, &asked)),
            None => patiently(py, move || ask(&*meet, &asked), |_| Ok(()))?,
        };
        let answer = answer.map_err(|error| told(inner.python.as_deref(), &error))?;
        // Ranks come to exchanges in the same order: a rank that is at this one has got the last.
        let last = inner.last.lock().unwrap_or_else(PoisonError::into_inner).replace(name);
        if let Some(last) = last {
            inner.cluster.meet.release(&last);
        }
        Ok(answer)
    }

    /// Why ranks have not come together, as Python raises it.
    pub fn told(&self, error: &MeetError) -> PyErr {
        told(self.0.python.as_deref(), error)
    }
}

/// What Python has raised at its meeting; else what the meeting says.
fn told(python: Option<&PythonMeeting>, error: &MeetError) -> PyErr {
    let raised = python.and_then(PythonMeeting::raised);
    raised.unwrap_or_else(|| BeladyError::new_err(error.to_string()))
}

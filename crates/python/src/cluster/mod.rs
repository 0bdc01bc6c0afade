//! The class `Cluster`: the processes of a job.
//!
//! The rendezvous is that of a Python library ([`meeting`]), or an address from the user or the
//! environment ([`place`]). A Python rendezvous waits in Python, where Ctrl-C works. Any other
//! waits on a separate thread, while the Python thread checks for signals.

mod meeting;
mod place;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belady_peer::{self as peer, JobWorld, JoinClusterError, Rendezvous, RendezvousError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use self::meeting::PythonMeeting;
use self::place::{RendezvousOptions, Where};
pub use self::place::{launcher, rendezvous_address};
use crate::errors::BeladyError;
use crate::process::Home;
use crate::wait::{Unhurried, patiently};

/// The processes of a job, after their rendezvous.
#[pyclass(name = "Cluster", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyCluster(Home<ClusterParts>);

#[derive(Debug)]
struct ClusterParts {
    cluster: Unhurried<Arc<peer::Cluster>>,
    /// The rendezvous, if it is that of a Python library.
    python: Option<Arc<PythonMeeting>>,
    /// The number of jobs that have begun.
    begun: AtomicU32,
    /// How long ranks wait for each other.
    limit: Duration,
    /// The name of the last exchange.
    last: Mutex<Option<String>>,
}

#[pymethods]
impl PyCluster {
    /// Joins by the rendezvous of a Python library, which is private to the job.
    #[staticmethod]
    #[pyo3(signature = (rendezvous, *, key=None, bind=None, tls=None, timeout=300.0))]
    fn join(
        py: Python<'_>,
        rendezvous: &Bound<'_, PyAny>,
        key: Option<&str>,
        bind: Option<&str>,
        tls: Option<Vec<String>>,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = RendezvousOptions::new(key, bind, tls, timeout)?;
        let meeting = Arc::new(PythonMeeting::new(rendezvous, options.limit)?);
        let shared: Arc<dyn Rendezvous> = meeting.clone();
        let joined = py.detach(|| peer::join(shared, options.join()));
        let joined = joined.map_err(|error| match error {
            JoinClusterError::Rendezvous(why) => rendezvous_error(Some(&meeting), &why),
            JoinClusterError::Peer(why) => BeladyError::new_err(why.to_string()),
        })?;
        Ok(Self::new(joined, Some(meeting), options.limit))
    }

    /// Joins at "HOST:PORT", by a list of hosts, by a directory, or with "mpi" by MPI.
    #[staticmethod]
    #[pyo3(signature = (address, rank, size, *, key=None, bind=None, tls=None, timeout=300.0))]
    #[allow(clippy::too_many_arguments)]
    fn join_at(
        py: Python<'_>,
        address: Where,
        rank: u32,
        size: u32,
        key: Option<&str>,
        bind: Option<&str>,
        tls: Option<Vec<String>>,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = RendezvousOptions::new(key, bind, tls, timeout)?;
        let world = JobWorld { rank, size };
        Self::patiently(py, options.limit, move || address.go(world, &options))
    }

    /// Joins at the rendezvous address of the environment.
    #[staticmethod]
    #[pyo3(signature = (*, key=None, bind=None, tls=None, timeout=300.0))]
    fn join_from_environment(
        py: Python<'_>,
        key: Option<&str>,
        bind: Option<&str>,
        tls: Option<Vec<String>>,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = RendezvousOptions::new(key, bind, tls, timeout)?;
        Self::patiently(py, options.limit, move || place::found(&options))
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
    fn local_ranks(&self) -> PyResult<Vec<u32>> {
        Ok(self.native()?.near())
    }

    /// Whether samples travel over TCP, and not over MPI.
    #[getter]
    fn is_over_tcp(&self) -> PyResult<bool> {
        Ok(self.native()?.tcp.is_some())
    }

    /// Exchanges bytes with all ranks, and returns theirs by rank.
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

    /// Raises if the facts of a rank differ.
    fn agree(&self, py: Python<'_>, what: String, facts: Vec<(String, String)>) -> PyResult<()> {
        self.at_meeting(py, what, move |meet, what| {
            let facts: Vec<_> = facts.iter().map(|(name, it)| (&**name, it.clone())).collect();
            peer::agree(meet, what, &facts)
        })
    }

    /// Leaves the job: this process serves no more samples.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let cluster = self.native()?;
        py.detach(|| cluster.transport.close());
        Ok(())
    }
}

impl PyCluster {
    fn new(cluster: peer::Cluster, python: Option<Arc<PythonMeeting>>, limit: Duration) -> Self {
        let cluster = Unhurried::new(Arc::new(cluster));
        let (begun, last) = (AtomicU32::new(0), Mutex::new(None));
        Self(Home::new(ClusterParts { cluster, python, begun, limit, last }))
    }

    fn patiently(
        py: Python<'_>,
        limit: Duration,
        join: impl FnOnce() -> Result<peer::Cluster, JoinClusterError> + Send + 'static,
    ) -> PyResult<Self> {
        let joined = patiently(py, join, |_| Ok(()))?;
        let joined = joined.map_err(|error| BeladyError::new_err(error.to_string()))?;
        Ok(Self::new(joined, None, limit))
    }

    /// Returns the cluster for an engine.
    pub fn native(&self) -> PyResult<Arc<peer::Cluster>> {
        Ok(self.0.get("Cluster")?.cluster.clone())
    }

    /// Returns how long ranks wait for each other.
    pub fn limit(&self) -> PyResult<Duration> {
        Ok(self.0.get("Cluster")?.limit)
    }

    /// Waits for all ranks to begin a job, so that the engine, which cannot be interrupted by
    /// Ctrl-C, does not wait.
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
        ask: impl FnOnce(&dyn Rendezvous, &str) -> Result<T, RendezvousError> + Send + 'static,
    ) -> PyResult<T> {
        let inner = self.0.get("Cluster")?;
        let (meet, asked) = (inner.cluster.rendezvous.clone(), name.clone());
        let answer = match &inner.python {
            Some(_) => py.detach(|| ask(&*meet, &asked)),
            None => patiently(py, move || ask(&*meet, &asked), |_| Ok(()))?,
        };
        let answer = answer.map_err(|error| rendezvous_error(inner.python.as_deref(), &error))?;
        // All ranks make exchanges in the same order: a rank in this one has ended the last one.
        let last = inner.last.lock().unwrap_or_else(PoisonError::into_inner).replace(name);
        if let Some(last) = last {
            inner.cluster.rendezvous.release(&last);
        }
        Ok(answer)
    }

    /// Converts an error of the rendezvous.
    pub fn rendezvous_error(&self, error: &RendezvousError) -> PyErr {
        rendezvous_error(self.0.python.as_deref(), error)
    }
}

/// Returns the exception of a Python rendezvous, if any; else the error's text.
fn rendezvous_error(python: Option<&PythonMeeting>, error: &RendezvousError) -> PyErr {
    let raised = python.and_then(PythonMeeting::raised);
    raised.unwrap_or_else(|| BeladyError::new_err(error.to_string()))
}

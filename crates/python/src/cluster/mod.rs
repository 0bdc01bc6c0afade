//! The processes of a job, once they have met.

mod meeting;

use std::sync::Arc;

use belady_peer::{self as peer, Meet, MeetError, World};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use self::meeting::PythonMeeting;
use crate::engine::seconds;
use crate::errors::{BeladyError, wrong};
use crate::patience::Unhurried;
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
}

#[pymethods]
impl Cluster {
    #[staticmethod]
    #[pyo3(signature = (meeting, *, key=None, bind=None, tls=None, timeout=300.0))]
    fn join(
        py: Python<'_>,
        meeting: &Bound<'_, PyAny>,
        key: Option<String>,
        bind: Option<String>,
        tls: Option<(String, String, String)>,
        timeout: f64,
    ) -> PyResult<Self> {
        let _ = (key, bind, tls);
        let meeting = Arc::new(PythonMeeting::new(meeting, seconds("timeout", timeout)?)?);
        let shared: Arc<dyn Meet> = meeting.clone();
        let joined = py.detach(|| -> Result<peer::Cluster, MeetError> {
            let other = |e: &dyn std::fmt::Display| MeetError::Other(e.to_string());
            let text = shared.broadcast("key", peer::key::Key::random().map_err(|e| other(&e))?.to_text().as_bytes())?;
            let key = peer::key::Key::from_text(&String::from_utf8_lossy(&text)).map_err(|e| other(&e))?;
            let config = peer::tcp::TcpConfig::new(shared.world(), key, shared.interface().unwrap_or_else(peer::meet::interface::usual));
            let transport = peer::tcp::TcpTransport::start(config).map_err(|e| other(&e))?;
            let all = shared.exchange("addresses", &transport.address().to_bytes())?;
            for (rank, address) in (0..).zip(all) {
                transport.set_address(rank, peer::tcp::Address::from_bytes(&address).unwrap());
            }
            Ok(peer::Cluster::new(shared, transport))
        });
        let joined = joined.map_err(|error| meeting.raised().unwrap_or_else(|| BeladyError::new_err(error.to_string())))?;
        let cluster = Unhurried::new(Arc::new(joined));
        Ok(Self(Home::new(Inner { cluster, python: Some(meeting) })))
    }

    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.world()?.rank)
    }

    #[getter]
    fn size(&self) -> PyResult<u32> {
        Ok(self.world()?.size)
    }

    /// What all ranks gave, by rank.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        mine: &[u8],
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let inner = self.0.get("Cluster")?;
        let all = py.detach(|| inner.cluster.meet.exchange(name, mine));
        let all = all.map_err(|error| self.raised(&error))?;
        Ok(all.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Raises if a rank has other facts.
    fn agree(&self, py: Python<'_>, what: &str, facts: Vec<(String, String)>) -> PyResult<()> {
        let inner = self.0.get("Cluster")?;
        let facts: Vec<_> = facts.iter().map(|(name, value)| (&**name, value.clone())).collect();
        let agreed = py.detach(|| peer::agree::agree(&*inner.cluster.meet, what, &facts));
        agreed.map_err(|error| self.raised(&error))
    }
}

impl Cluster {
    /// For an engine.
    pub fn native(&self) -> PyResult<Arc<peer::Cluster>> {
        Ok(self.0.get("Cluster")?.cluster.clone())
    }

    fn world(&self) -> PyResult<World> {
        Ok(self.0.get("Cluster")?.cluster.world())
    }

    /// What Python has raised at the meeting; else what the meeting says.
    pub fn raised(&self, error: &MeetError) -> PyErr {
        let python = self.0.python.as_ref().and_then(|meeting| meeting.raised());
        python.unwrap_or_else(|| BeladyError::new_err(error.to_string()))
    }
}

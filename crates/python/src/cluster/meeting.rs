//! The rendezvous of a Python library: torch's store, jax's, MPI.
//!
//! The native code calls it on a Python thread that has released the interpreter. An exception
//! there, Ctrl-C too, is stored, and raised by the function of this module that Python called.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belady_peer::rendezvous::interface;
use belady_peer::tcp::MachineId;
use belady_peer::{JobWorld, Rendezvous, RendezvousError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// A `Rendezvous` in Python (`belady/_cluster/rendezvous.py`).
#[derive(Debug)]
pub struct PythonMeeting {
    meeting: Py<PyAny>,
    world: JobWorld,
    limit: Duration,
    interface: Option<IpAddr>,
    raised: Mutex<Option<PyErr>>,
    /// Exchanges to release with the next call to Python: `release` itself must not wait for
    /// Python.
    released: Mutex<Vec<String>>,
}

impl PythonMeeting {
    pub fn new(meeting: &Bound<'_, PyAny>, limit: Duration) -> PyResult<Self> {
        let number = |name| meeting.getattr(name)?.extract::<u32>();
        let world = JobWorld { rank: number("rank")?, size: number("size")? };
        let mut this = Self {
            meeting: meeting.clone().unbind(),
            world,
            limit,
            interface: None,
            raised: Mutex::default(),
            released: Mutex::default(),
        };
        let host: Option<String> = meeting.call_method0("reached_by")?.extract()?;
        let py = meeting.py();
        // A machine's name often resolves to an address that only the machine itself can reach.
        let machines = this.ask(py, "machines", format!("{:?}", MachineId::this()).as_bytes())?;
        let all_here = machines.iter().all(|other| *other == machines[0]);
        let host = host.or_else(|| all_here.then(|| "127.0.0.1".to_owned()));
        let found = host.and_then(|host| py.detach(|| towards(&host)));
        this.interface = found.filter(|address| all_here || !address.is_loopback());
        Ok(this)
    }

    /// Takes the stored exception.
    pub fn raised(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn ask(&self, py: Python<'_>, name: &str, mine: &[u8]) -> PyResult<Vec<Vec<u8>>> {
        let released =
            std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner));
        if !released.is_empty() {
            self.meeting.call_method1(py, "release", (released,))?;
        }
        let arguments = (name, PyBytes::new(py, mine), self.limit.as_secs_f64());
        let given = self.meeting.call_method1(py, "exchange", arguments)?;
        let given: Vec<PyBackedBytes> = given.extract(py)?;
        Ok(given.into_iter().map(|bytes| bytes.to_vec()).collect())
    }
}

impl Rendezvous for PythonMeeting {
    fn world(&self) -> JobWorld {
        self.world
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let asked = Python::try_attach(|py| {
            self.ask(py, name, mine).map_err(|error| {
                let text = error.value(py).to_string();
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                text
            })
        });
        match asked {
            Some(Ok(all)) if all.len() == self.world.size as usize => Ok(all),
            Some(Ok(all)) => Err(RendezvousError::Other(format!(
                "the exchange of {name} returned the data of {} ranks, not of {}",
                all.len(),
                self.world.size
            ))),
            Some(Err(text)) => Err(RendezvousError::Other(text)),
            None => Err(RendezvousError::Other(format!(
                "cannot exchange {name}: the interpreter exits"
            ))),
        }
    }

    fn release(&self, name: &str) {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
    }

    fn interface(&self) -> Option<IpAddr> {
        self.interface
    }
}

/// Returns the address of this machine on the route to a host.
fn towards(host: &str) -> Option<IpAddr> {
    let mut all = (host, 0).to_socket_addrs().ok()?;
    all.find_map(|address| interface::towards(address.ip()))
}

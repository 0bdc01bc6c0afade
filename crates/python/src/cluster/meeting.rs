//! A meeting that a library of Python's has: torch's store, jax's, MPI.
//!
//! The native side asks from a thread of Python's, which has let go of the interpreter meanwhile. What
//! Python raises there, Ctrl-C included, is kept and raised again by whoever called into this module.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belady_peer::meet::interface;
use belady_peer::tcp::Machine;
use belady_peer::{Meet, MeetError, World};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// A `Meeting` of Python's (`belady/peers/meeting.py`).
#[derive(Debug)]
pub struct PythonMeeting {
    meeting: Py<PyAny>,
    world: World,
    limit: Duration,
    interface: Option<IpAddr>,
    raised: Mutex<Option<PyErr>>,
    /// Exchanges that this process needs no more, and that Python was not told of yet: where they are
    /// released, Python must not be waited for.
    released: Mutex<Vec<String>>,
}

impl PythonMeeting {
    pub fn new(meeting: &Bound<'_, PyAny>, limit: Duration) -> PyResult<Self> {
        let number = |name| meeting.getattr(name)?.extract::<u32>();
        let world = World { rank: number("rank")?, size: number("size")? };
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
        // A machine often knows its own name by an address that only itself can reach.
        let machines = this.ask(py, "machines", format!("{:?}", Machine::this()).as_bytes())?;
        let all_here = machines.iter().all(|other| *other == machines[0]);
        let host = host.or_else(|| all_here.then(|| "127.0.0.1".to_owned()));
        let found = host.and_then(|host| py.detach(|| towards(&host)));
        this.interface = found.filter(|address| all_here || !address.is_loopback());
        Ok(this)
    }

    /// What Python has raised since the last call.
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

impl Meet for PythonMeeting {
    fn world(&self) -> World {
        self.world
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        let asked = Python::try_attach(|py| {
            self.ask(py, name, mine).map_err(|error| {
                let text = error.value(py).to_string();
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                text
            })
        });
        match asked {
            Some(Ok(all)) if all.len() == self.world.size as usize => Ok(all),
            Some(Ok(all)) => Err(MeetError::Other(format!(
                "{} of {} ranks gave something to {name}",
                all.len(),
                self.world.size
            ))),
            Some(Err(text)) => Err(MeetError::Other(text)),
            None => Err(MeetError::Other(format!("Python ends, so there is no {name}"))),
        }
    }

    fn release(&self, name: &str) {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
    }

    fn interface(&self) -> Option<IpAddr> {
        self.interface
    }
}

/// The address of this machine by which one reaches a host.
fn towards(host: &str) -> Option<IpAddr> {
    let mut all = (host, 0).to_socket_addrs().ok()?;
    all.find_map(|address| interface::towards(address.ip()))
}

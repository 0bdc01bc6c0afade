//! Rendezvous addresses from the user or the environment.

use std::time::Duration;

use belady_peer::rendezvous::hosts::{self, Hosts};
use belady_peer::rendezvous::interface::Bind;
use belady_peer::rendezvous::launcher::{self as launched_by, Variables};
use belady_peer::rendezvous::{FindOptions, RendezvousAddress, directory, find, keys, tcp};
use belady_peer::tcp::Tls;
use belady_peer::{
    Cluster, JobKey, JobWorld, JoinClusterError, JoinOptions, Rendezvous, RendezvousError, join,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::seconds;
use crate::arguments::wrong;

/// A rendezvous address from Python.
#[derive(Debug, FromPyObject)]
pub enum Where {
    Named(String),
    Hosts(Vec<String>),
}

/// The options of joining.
#[derive(Clone, Debug)]
pub struct RendezvousOptions {
    key: Option<JobKey>,
    bind: Option<Bind>,
    tls: Option<Tls>,
    pub limit: Duration,
}

impl RendezvousOptions {
    pub fn new(
        key: Option<&str>,
        bind: Option<&str>,
        tls: Option<Vec<String>>,
        timeout: f64,
    ) -> PyResult<Self> {
        let variables = launched_by::of_this_process();
        let key = match key {
            // A key has 64 characters and no slash; anything else is a path.
            Some(text) if text.len() == 64 && !text.contains('/') => {
                Some(JobKey::from_text(text).map_err(wrong)?)
            }
            Some(path) => Some(keys::read_file(path.as_ref()).map_err(wrong)?),
            None => keys::given(&variables).map_err(wrong)?,
        };
        let bind = bind.map(Bind::from).or_else(|| Bind::given(&variables));
        let tls = tls.map(certificates).transpose()?;
        Ok(Self { key, bind, tls, limit: seconds("timeout", timeout)? })
    }

    pub fn join(&self) -> JoinOptions {
        let Self { key, bind, tls, .. } = self.clone();
        JoinOptions { key, bind, tls, ..JoinOptions::default() }
    }
}

/// Converts the paths of certificate, private key and authority, and the optional name in all
/// certificates.
fn certificates(paths: Vec<String>) -> PyResult<Tls> {
    let (paths, name) = match paths.len() {
        3 => (paths, None),
        4 => (paths[..3].to_vec(), paths.into_iter().next_back()),
        _ => {
            return Err(PyValueError::new_err(
                "tls must be the paths of certificate, private key and authority, and optionally \
                 the name in all certificates",
            ));
        }
    };
    let [certificate, key, authority] = [0, 1, 2].map(|at: usize| paths[at].clone().into());
    Ok(Tls { certificate, key, authority, name })
}

impl Where {
    /// Waits for all ranks at this address, and joins them.
    pub fn go(
        &self,
        world: JobWorld,
        options: &RendezvousOptions,
    ) -> Result<Cluster, JoinClusterError> {
        if matches!(self, Self::Named(name) if name == "mpi") {
            return over_mpi(world, options);
        }
        let place = match self {
            Self::Named(name) => name.parse()?,
            Self::Hosts(hosts) => Hosts::parse(&hosts.join(","))?.address(),
        };
        join(meet(&place, world, options)?, options.join())
    }
}

fn meet(
    place: &RendezvousAddress,
    world: JobWorld,
    options: &RendezvousOptions,
) -> Result<std::sync::Arc<dyn Rendezvous>, RendezvousError> {
    let RendezvousOptions { key, bind, limit, .. } = options.clone();
    let listen = bind.map(|bind| bind.address()).transpose()?;
    let known = launched_by::find(&launched_by::of_this_process(), &hosts::is_this_machine);
    let job = known.ok().flatten().and_then(|found| found.job).unwrap_or_default();
    match (place, key) {
        (RendezvousAddress::Directory(directory), key) => directory::start(
            directory,
            directory::DirectoryOptions { world, job, key, limit, listen },
        ),
        (RendezvousAddress::Server { .. }, Some(key)) => {
            tcp::start(place, tcp::TcpRendezvousOptions { world, job, key, limit })
        }
        (RendezvousAddress::Server { .. }, None) => Err(keys::missing(place)),
    }
}

/// Joins at the rendezvous address of the environment.
pub fn found(options: &RendezvousOptions) -> Result<Cluster, JoinClusterError> {
    let RendezvousOptions { key, bind, limit, .. } = options.clone();
    let wishes = FindOptions { key, listen: bind, limit };
    let meet = find(&launched_by::of_this_process(), wishes)?;
    let missing = || RendezvousError::Other("the environment names no other processes".to_owned());
    join(meet.ok_or_else(missing)?, options.join())
}

/// Rank, number of ranks, and the same on this node, from the launcher of this process; None
/// without a launcher. The default environment is that of this process.
#[pyfunction]
#[pyo3(signature = (environment=None))]
pub fn launcher(environment: Option<Variables>) -> PyResult<Option<(u32, u32, u32, u32)>> {
    let variables = environment.unwrap_or_else(launched_by::of_this_process);
    let found = launched_by::launched(&variables).map_err(wrong)?;
    Ok(found.map(|it| (it.world.rank, it.world.size, it.local_rank, it.local_size)))
}

/// The rendezvous address from the launcher of this process; None if it has none.
///
/// Without a key, it is a directory of the user, which needs a name of the job that all ranks know.
#[pyfunction]
#[pyo3(signature = (key=None))]
pub fn rendezvous_address(py: Python<'_>, key: Option<&str>) -> PyResult<Option<String>> {
    let variables: Variables = launched_by::of_this_process();
    let found = py.detach(|| launched_by::find(&variables, &hosts::is_this_machine));
    let Some(found) = found.map_err(wrong)? else { return Ok(None) };
    let has_key = key.is_some() || keys::given(&variables).map_err(wrong)?.is_some();
    let in_directory = found.all_here || found.job.is_some();
    Ok(match found.address {
        Some(place) if found.is_given || has_key => Some(place.to_string()),
        _ if in_directory => Some("a directory in your home".to_owned()),
        _ => None,
    })
}

#[cfg(feature = "mpi")]
fn over_mpi(world: JobWorld, options: &RendezvousOptions) -> Result<Cluster, JoinClusterError> {
    use belady_peer::mpi::{self, MpiConfig, MpiTransport};

    let config = MpiConfig { rendezvous_timeout: options.limit, ..MpiConfig::default() };
    let transport = MpiTransport::start(config)?;
    let met = transport.rendezvous().world();
    if met != world {
        return Err(RendezvousError::Other(format!(
            "this process is rank {} of {} in its job and rank {} of {} in MPI: start it with the \
             mpirun of the MPI that belady was built with ({})",
            world.rank,
            world.size,
            met.rank,
            met.size,
            mpi::version()
        ))
        .into());
    }
    Ok(Cluster::new(transport.rendezvous(), transport))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(_world: JobWorld, _options: &RendezvousOptions) -> Result<Cluster, JoinClusterError> {
    Err(RendezvousError::Other(
        "this belady was built without MPI: run `pip install -C build-args=\"--features mpi\" .` in \
         a checkout (docs/mpi.md), or leave out peers=\"mpi\" to use MPI for the rendezvous and TCP \
         for samples"
            .to_owned(),
    )
    .into())
}

//! Places to meet that need nothing of Python's.

use std::time::Duration;

use belady_peer::meet::environment::{self, Variables};
use belady_peer::meet::interface::Bind;
use belady_peer::meet::list::{self, Hosts};
use belady_peer::meet::{Place, Wishes, file, find, keys, point};
use belady_peer::tcp::Tls;
use belady_peer::{Cluster, JoinError, JoinOptions, Key, Meet, MeetError, World, join};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::engine::seconds;
use crate::errors::wrong;

/// A place as Python names it.
#[derive(Debug, FromPyObject)]
pub enum Where {
    Named(String),
    Hosts(Vec<String>),
}

/// How to take part.
#[derive(Clone, Debug)]
pub struct Options {
    key: Option<Key>,
    bind: Option<Bind>,
    tls: Option<Tls>,
    pub limit: Duration,
}

impl Options {
    pub fn new(
        key: Option<&str>,
        bind: Option<&str>,
        tls: Option<Vec<String>>,
        timeout: f64,
    ) -> PyResult<Self> {
        let key = match key {
            // A path has a slash, or at least is not as long.
            Some(text) if text.len() == 64 && !text.contains('/') => {
                Some(Key::from_text(text).map_err(wrong)?)
            }
            Some(path) => Some(keys::read_file(path.as_ref()).map_err(wrong)?),
            None => keys::given(&environment::of_this_process()).map_err(wrong)?,
        };
        let bind = bind.map(|bind| match bind.parse::<Bind>() {
            Ok(bind) => bind,
            Err(never) => match never {},
        });
        let tls = tls.map(certificates).transpose()?;
        Ok(Self { key, bind, tls, limit: seconds("timeout", timeout)? })
    }

    pub fn join(&self) -> JoinOptions {
        let Self { key, bind, tls, .. } = self.clone();
        JoinOptions { key, bind, tls, ..JoinOptions::default() }
    }
}

/// Paths of certificate, private key and authority, and the name in all certificates if there is one.
fn certificates(paths: Vec<String>) -> PyResult<Tls> {
    let (paths, name) = match paths.len() {
        3 => (paths, None),
        4 => (paths[..3].to_vec(), paths.into_iter().next_back()),
        _ => {
            return Err(PyValueError::new_err(
                "tls has to be the paths of certificate, private key and authority, and perhaps \
                 the name that all certificates bear",
            ));
        }
    };
    let [certificate, key, authority] = [0, 1, 2].map(|at: usize| paths[at].clone().into());
    Ok(Tls { certificate, key, authority, name })
}

impl Where {
    /// Goes there, and waits for the others.
    pub fn go(&self, world: World, options: &Options) -> Result<Cluster, JoinError> {
        if matches!(self, Self::Named(name) if name == "mpi") {
            return over_mpi(world, options);
        }
        let place = match self {
            Self::Named(name) => name.parse()?,
            Self::Hosts(hosts) => Hosts::parse(&hosts.join(","))?.place(),
        };
        join(meet(&place, world, options)?, options.join())
    }
}

fn meet(
    place: &Place,
    world: World,
    options: &Options,
) -> Result<std::sync::Arc<dyn Meet>, MeetError> {
    let Options { key, bind, limit, .. } = options.clone();
    let listen = bind.map(|bind| bind.address()).transpose()?;
    let known = environment::find(&environment::of_this_process(), &list::is_this_machine);
    let job = known.ok().flatten().and_then(|found| found.job).unwrap_or_default();
    match (place, key) {
        (Place::Directory(directory), key) => {
            file::meet(directory, file::Options { world, job, key, limit, listen })
        }
        (Place::Point { .. }, Some(key)) => {
            point::meet(place, point::Options { world, job, key, limit })
        }
        (Place::Point { .. }, None) => Err(keys::missing(place)),
    }
}

/// Goes where the environment says.
pub fn found(options: &Options) -> Result<Cluster, JoinError> {
    let Options { key, bind, limit, .. } = options.clone();
    let wishes = Wishes { key, listen: bind, limit };
    let meet = find(&environment::of_this_process(), wishes)?;
    let nobody = || MeetError::Other("the environment says nothing of other processes".to_owned());
    join(meet.ok_or_else(nobody)?, options.join())
}

/// Where what started this process says that ranks can meet; None if it says nothing.
///
/// Without a key, that is a directory of the user's, which needs a name for the job that all ranks know.
#[pyfunction]
#[pyo3(signature = (key=None))]
pub fn meeting_place(py: Python<'_>, key: Option<&str>) -> PyResult<Option<String>> {
    let variables: Variables = environment::of_this_process();
    let found = py.detach(|| environment::find(&variables, &list::is_this_machine));
    let Some(found) = found.map_err(wrong)? else { return Ok(None) };
    let has_key = key.is_some() || keys::given(&variables).map_err(wrong)?.is_some();
    let in_directory = found.all_here || found.job.is_some();
    Ok(match found.place {
        Some(place) if found.is_given || has_key => Some(place.to_string()),
        _ if in_directory => Some("a directory in your home".to_owned()),
        _ => None,
    })
}

#[cfg(feature = "mpi")]
fn over_mpi(world: World, options: &Options) -> Result<Cluster, JoinError> {
    use belady_peer::mpi::{self, MpiConfig, MpiTransport};

    let config = MpiConfig { meeting: options.limit, ..MpiConfig::default() };
    let transport = MpiTransport::start(config)?;
    let met = transport.meet().world();
    if met != world {
        return Err(MeetError::Other(format!(
            "this process is rank {} of {} in its job and rank {} of {} in MPI: start it by the \
             mpirun of the MPI that belady was built for ({})",
            world.rank,
            world.size,
            met.rank,
            met.size,
            mpi::version()
        ))
        .into());
    }
    Ok(Cluster::new(transport.meet(), transport))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(_world: World, _options: &Options) -> Result<Cluster, JoinError> {
    Err(MeetError::Other(
        "this build of belady cannot send by MPI: install one that can, in a checkout, by `pip install \
         -C build-args=\"--features mpi\" .` (docs/mpi.md), or leave peers=\"mpi\" out, and processes \
         that mpirun has started meet by MPI and talk over TCP"
            .to_owned(),
    )
    .into())
}

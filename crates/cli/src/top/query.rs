//! Queries the vitals that nodes have published at the rendezvous. It needs the job's key; a
//! rendezvous directory contains it, readable by its owner only.

use std::path::Path;
use std::time::Duration;

use belady_engine::metrics::{VITALS, Vitals};
use belady_peer::JobKey;
use belady_peer::rendezvous::launcher::{self, Variables};
use belady_peer::rendezvous::{RendezvousAddress, directory, keys, tcp};

use crate::usage::UsageError;

/// The time limit of a query.
const PATIENCE: Duration = Duration::from_secs(5);

/// The last vitals of each rank, if it has published any.
pub type JobVitals = Vec<Option<Vitals>>;

/// A job's rendezvous address and key.
#[derive(Clone, Debug)]
pub struct VitalsQuery {
    place: RendezvousAddress,
    /// The key that was given, if any; a directory contains it.
    key: Option<JobKey>,
    /// The job, if a directory has several.
    job: Option<String>,
}

impl VitalsQuery {
    /// Takes the address and the key from the options, or from the environment.
    pub fn new(meet: Option<&str>, key_file: Option<&Path>) -> anyhow::Result<Self> {
        let variables = launcher::of_this_process();
        let meet = meet.map(str::to_owned).or_else(|| variables.get("BELADY_MEET").cloned());
        let meet = meet.filter(|meet| !meet.is_empty()).ok_or_else(|| {
            UsageError::new(
                "the job's rendezvous address is missing: give --meet HOST:PORT or --meet DIR, as \
                 given to its processes",
            )
        })?;
        let place: RendezvousAddress = meet.parse().map_err(usage)?;
        let key = key(key_file, &variables)?;
        if key.is_none() && matches!(place, RendezvousAddress::Server { .. }) {
            return Err(usage(keys::missing(&place)).into());
        }
        let job = variables.get("BELADY_JOB").filter(|job| !job.is_empty()).cloned();
        Ok(Self { place, key, job })
    }

    /// Returns the rendezvous address.
    pub fn place(&self) -> String {
        self.place.to_string()
    }

    /// Queries the vitals of all ranks.
    pub fn ask(&self) -> anyhow::Result<JobVitals> {
        let (place, key) = match (&self.place, &self.key) {
            // Looked up each time: rank 0 may have been restarted on another host.
            (RendezvousAddress::Directory(directory), key) => {
                let (place, noted) = directory::find(directory, self.job.as_deref())?;
                (place, key.clone().unwrap_or(noted))
            }
            (place, Some(key)) => (place.clone(), key.clone()),
            (place, None) => return Err(keys::missing(place).into()),
        };
        let all = tcp::ask(&place, &key, VITALS, PATIENCE)?;
        Ok(all.iter().map(|vitals| vitals.as_deref().and_then(Vitals::from_bytes)).collect())
    }
}

fn key(file: Option<&Path>, variables: &Variables) -> anyhow::Result<Option<JobKey>> {
    Ok(match file {
        Some(path) => Some(keys::read_file(path).map_err(usage)?),
        None => keys::given(variables).map_err(usage)?,
    })
}

fn usage(error: impl std::fmt::Display) -> UsageError {
    UsageError::new(error.to_string())
}

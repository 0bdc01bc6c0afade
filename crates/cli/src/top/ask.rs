//! What nodes have published at the meeting point, for clients with the job's key. Where a job meets by a
//! directory, the key lies there, for the user alone.

use std::path::Path;
use std::time::Duration;

use belady_engine::metrics::{VITALS, Vitals};
use belady_peer::Key;
use belady_peer::meet::environment::{self, Variables};
use belady_peer::meet::{Place, file, keys, point};

use crate::usage::UsageError;

/// A meeting point that takes longer is as good as gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// What each rank told last, if it told anything.
pub type Told = Vec<Option<Vitals>>;

#[derive(Clone, Debug)]
pub struct Asker {
    place: Place,
    /// If it was given; a directory has it.
    key: Option<Key>,
    /// Which of several jobs in a directory.
    job: Option<String>,
}

impl Asker {
    pub fn new(meet: Option<&str>, key_file: Option<&Path>) -> anyhow::Result<Self> {
        let variables = environment::of_this_process();
        let meet = meet.map(str::to_owned).or_else(|| variables.get("BELADY_MEET").cloned());
        let meet = meet.filter(|meet| !meet.is_empty()).ok_or_else(|| {
            UsageError::new(
                "which job? Give --meet HOST:PORT or --meet DIR, as its processes were told",
            )
        })?;
        let place: Place = meet.parse().map_err(usage)?;
        let key = key(key_file, &variables)?;
        if key.is_none() && matches!(place, Place::Point { .. }) {
            return Err(usage(keys::missing(&place)).into());
        }
        let job = variables.get("BELADY_JOB").filter(|job| !job.is_empty()).cloned();
        Ok(Self { place, key, job })
    }

    pub fn place(&self) -> String {
        self.place.to_string()
    }

    pub fn ask(&self) -> anyhow::Result<Told> {
        let (place, key) = match (&self.place, &self.key) {
            // Asked each time: rank 0 may have been started again elsewhere.
            (Place::Directory(directory), key) => {
                let (place, noted) = file::find(directory, self.job.as_deref())?;
                (place, key.clone().unwrap_or(noted))
            }
            (place, Some(key)) => (place.clone(), key.clone()),
            (place, None) => return Err(keys::missing(place).into()),
        };
        let all = point::ask(&place, &key, VITALS, PATIENCE)?;
        Ok(all.iter().map(|told| told.as_deref().and_then(Vitals::from_bytes)).collect())
    }
}

fn key(file: Option<&Path>, variables: &Variables) -> anyhow::Result<Option<Key>> {
    Ok(match file {
        Some(path) => Some(keys::read_file(path).map_err(usage)?),
        None => keys::given(variables).map_err(usage)?,
    })
}

fn usage(error: impl std::fmt::Display) -> UsageError {
    UsageError::new(error.to_string())
}

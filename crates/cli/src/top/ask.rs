//! What nodes have left word of at the meeting point, for who has the job's key.

use std::path::Path;
use std::time::Duration;

use belady_engine::metrics::{VITALS, Vitals};
use belady_peer::Key;
use belady_peer::meet::environment::{self, Variables};
use belady_peer::meet::{Place, keys, point};

use crate::usage::UsageError;

/// A meeting point that takes longer is as good as gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// What each rank told last, if it told anything.
pub type Told = Vec<Option<Vitals>>;

#[derive(Clone, Debug)]
pub struct Asker {
    place: Place,
    key: Key,
}

impl Asker {
    pub fn new(meet: Option<&str>, key_file: Option<&Path>) -> anyhow::Result<Self> {
        let variables = environment::of_this_process();
        let meet = meet.map(str::to_owned).or_else(|| variables.get("BELADY_MEET").cloned());
        let meet = meet.filter(|meet| !meet.is_empty()).ok_or_else(|| {
            UsageError::new("which job? Give --meet HOST:PORT, as its processes were told")
        })?;
        let place: Place = meet.parse().map_err(usage)?;
        Ok(Self { key: key(&place, key_file, &variables)?, place })
    }

    pub fn place(&self) -> String {
        self.place.to_string()
    }

    pub fn ask(&self) -> anyhow::Result<Told> {
        let all = point::ask(&self.place, &self.key, VITALS, PATIENCE)?;
        Ok(all.iter().map(|told| told.as_deref().and_then(Vitals::from_bytes)).collect())
    }
}

fn key(place: &Place, file: Option<&Path>, variables: &Variables) -> anyhow::Result<Key> {
    let key = match file {
        Some(path) => Some(keys::read_file(path).map_err(usage)?),
        None => keys::given(variables).map_err(usage)?,
    };
    Ok(key.ok_or_else(|| usage(keys::missing(place)))?)
}

fn usage(error: impl std::fmt::Display) -> UsageError {
    UsageError::new(error.to_string())
}

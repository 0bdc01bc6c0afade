//! What a run is asked for.

use std::path::PathBuf;

use belady_board::Revalidate;
use belady_control::model::Bytes;

/// Where copies may lie, and how many bytes of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelConfig {
    /// In memory, for the time of the run.
    Ram { quota: Bytes },
    /// In a directory, also for later runs. The quota is for all files that Belady keeps there.
    Directory { path: PathBuf, quota: Bytes },
}

impl LevelConfig {
    pub fn quota(&self) -> Bytes {
        match self {
            Self::Ram { quota } | Self::Directory { quota, .. } => *quota,
        }
    }
}

/// All of a run but the program.
#[derive(Clone, Debug)]
pub struct JobConfig {
    /// The directory whose files get copies.
    pub dataset: PathBuf,
    /// Fastest first: a file goes to the first one with room.
    pub levels: Vec<LevelConfig>,
    pub revalidate: Revalidate,
    /// Threads that copy.
    pub threads: usize,
    /// A file with the names of files in the order in which they will be read, one a line.
    pub order: Option<PathBuf>,
    /// Learn the order of the first epoch, and use it for the next if that begins the same way.
    pub learn: bool,
}

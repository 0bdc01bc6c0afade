//! The configuration of a job.

use std::path::PathBuf;

use belady_base::units::Bytes;
use belady_board::Revalidate;

/// A level of copies and its quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelConfig {
    /// In memory, for one run.
    Ram {
        /// The most bytes of copies.
        quota: Bytes,
    },
    /// In a directory, also for later runs.
    Directory {
        /// The directory, which is created if needed.
        path: PathBuf,
        /// The most bytes of copies there, of all datasets.
        quota: Bytes,
    },
}

impl LevelConfig {
    /// Returns the level's quota.
    pub fn quota(&self) -> Bytes {
        match self {
            Self::Ram { quota } | Self::Directory { quota, .. } => *quota,
        }
    }
}

/// The configuration of a job, without the program.
#[derive(Clone, Debug)]
pub struct TransparentConfig {
    /// The directory whose files get copies.
    pub dataset: PathBuf,
    /// Fastest first: a copy goes to the first level with space.
    pub levels: Vec<LevelConfig>,
    /// When copies are compared with their sources.
    pub revalidate: Revalidate,
    /// The most copying threads.
    pub threads: usize,
    /// A file that lists files in the order in which the program will read them, one per line.
    pub order: Option<PathBuf>,
    /// Whether to learn the order of the first epoch and to use it for later epochs that begin the
    /// same way.
    pub learn: bool,
}

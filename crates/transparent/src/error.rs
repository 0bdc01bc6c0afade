//! Errors before the program starts.

use std::io;
use std::path::{Path, PathBuf};

use crate::library::LibraryError;
use crate::order::FileOrderError;

/// Why a job cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The dataset's directory cannot be used.
    #[error("the dataset {path} {problem}", path = path.display())]
    Dataset {
        /// As the user gave it.
        path: PathBuf,
        /// The end of the sentence.
        problem: String,
    },
    /// A cache cannot be used.
    #[error("the cache {path} cannot be used: {problem}", path = path.display())]
    Level {
        /// As the user gave it.
        path: PathBuf,
        /// The end of the sentence.
        problem: String,
    },
    /// The list of caches is wrong.
    #[error("{0}")]
    Levels(String),
    /// The file of `--order` cannot be used.
    #[error("--order: {0}")]
    Order(#[source] FileOrderError),
    /// The shared board or the pipe cannot be created.
    #[error("cannot allocate the memory that is shared with the program: {0}")]
    Board(#[source] io::Error),
    /// No directory can hold the library.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

impl PrepareError {
    /// Returns whether the configuration is wrong, rather than the machine.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Dataset { .. } | Self::Level { .. } | Self::Levels(_) | Self::Order(_))
    }

    pub(crate) fn level(path: &Path, problem: impl Into<String>) -> Self {
        Self::Level { path: path.to_owned(), problem: problem.into() }
    }
}

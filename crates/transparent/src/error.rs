//! Mistakes that are told before the program starts.

use std::io;
use std::path::{Path, PathBuf};

use crate::library::LibraryError;
use crate::order::OrderError;

#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("the dataset {path} {problem}", path = path.display())]
    Dataset { path: PathBuf, problem: String },
    #[error("the cache {path} cannot be used: {problem}", path = path.display())]
    Level { path: PathBuf, problem: String },
    #[error("{0}")]
    Levels(String),
    #[error("--order: {0}")]
    Order(#[source] OrderError),
    #[error("memory to share with the program cannot be had: {0}")]
    Board(#[source] io::Error),
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error("a thread cannot be started: {0}")]
    Thread(#[source] io::Error),
}

impl PrepareError {
    /// Whether it is what was asked for that is wrong, rather than the machine.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Dataset { .. } | Self::Level { .. } | Self::Levels(_) | Self::Order(_))
    }

    pub(crate) fn level(path: &Path, problem: impl Into<String>) -> Self {
        Self::Level { path: path.to_owned(), problem: problem.into() }
    }
}

//! Errors of chains and samples.

use std::fmt;

/// Why a list of steps is not a valid chain. One sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainError {
    /// The step, counted from 1; 0 for the chain as a whole.
    pub index: usize,
    /// The step's name; empty if it is unknown.
    pub name: &'static str,
    /// What is wrong.
    pub problem: String,
}

impl ChainError {
    /// An error of the chain as a whole.
    pub(crate) fn whole(problem: String) -> Self {
        Self { index: 0, name: "", problem }
    }
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, name, problem } = self;
        match (index, *name) {
            (0, _) => f.write_str(problem),
            (_, "") => write!(f, "step {index}: {problem}"),
            _ => write!(f, "step {index} ({name}): {problem}"),
        }
    }
}

impl std::error::Error for ChainError {}

/// Why a chain cannot transform a sample. One sentence without the sample's name, which the caller
/// knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TransformError(pub String);

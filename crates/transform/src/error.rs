//! What can be wrong with a chain, and with a sample.

use std::fmt;

/// A chain that cannot work; told when it is made. One sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainError {
    /// Counted from one; 0 if it is no step's fault.
    pub index: usize,
    /// Empty if the step has no name that is known.
    pub name: &'static str,
    pub problem: String,
}

impl ChainError {
    /// Something that is wrong with the chain as a whole.
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

/// A sample that a chain cannot transform. One sentence, without the sample's name: who runs the
/// chain knows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TransformError(pub String);

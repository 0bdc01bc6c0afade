//! What can be wrong with a chain, and with a sample.

/// A chain that cannot work; told when it is made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step {index} ({name}): {problem}")]
pub struct ChainError {
    /// Counted from one.
    pub index: usize,
    pub name: &'static str,
    pub problem: String,
}

/// A sample that a chain cannot transform. One sentence, without the sample's name: who runs the
/// chain knows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TransformError(pub String);

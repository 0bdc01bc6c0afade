//! What can be wrong with a scenario.

use std::path::PathBuf;

use belady_control::policy::PolicyError;

/// Why a scenario or system file cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ScenarioError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{}: {error}", path.display())]
    InFile { path: PathBuf, error: Box<ScenarioError> },
    #[error("line {line} is not valid TOML: {message}")]
    Syntax { line: usize, message: String },
    #[error("unknown key `{key}`; did you mean `{nearest}`?")]
    UnknownKey { key: String, nearest: String },
    #[error("`{key}` is missing{hint}")]
    Missing { key: String, hint: &'static str },
    /// A value that is broken, impossible or contradicts another.
    #[error("`{key}` {reason}")]
    Invalid { key: String, reason: String },
    #[error("`{key}` names the unknown policy `{name}`; did you mean `{nearest}`?")]
    UnknownPolicy { key: String, name: String, nearest: String },
    /// A policy with its options, on the command line.
    #[error(transparent)]
    Policy(PolicyError),
    /// A `--set` or `--sweep` argument that is not of the form KEY=VALUE.
    #[error("`{text}` {reason}")]
    Argument { text: String, reason: &'static str },
    #[error("`dataset.path`: cannot read {}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
}

impl ScenarioError {
    pub(super) fn invalid(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { key: key.into(), reason: reason.into() }
    }
}

//! Why there is no node engine.

use std::io;
use std::path::PathBuf;

/// Why a rank cannot use a node engine.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the error's text names its fields")]
pub enum NodeError {
    /// The directory of sockets cannot be made, or is not safe.
    #[error("{} cannot hold the socket of a node engine: {reason}", path.display())]
    Directory { path: PathBuf, reason: String },
    /// The socket cannot be made.
    #[error("cannot make the socket {} of a node engine: {error}", path.display())]
    Socket { path: PathBuf, error: io::Error },
    /// The process cannot be started.
    #[error("cannot start a node engine by `{program}`: {error}")]
    Process { program: String, error: io::Error },
    /// The socket does not answer.
    #[error("cannot reach the node engine at {}: {error}", path.display())]
    Unreachable { path: PathBuf, error: io::Error },
    /// Another user's process answers.
    #[error(
        "the node engine at {} is a process of user {found}, not of user {own}: start one of your \
         own", path.display()
    )]
    OtherUser { path: PathBuf, found: u32, own: u32 },
    /// The engine speaks another version.
    #[error(
        "the node engine at {} is of belady {theirs} and this process of {ours}: stop it \
         (belady node stop) and start it again", path.display()
    )]
    OtherVersion { path: PathBuf, theirs: String, ours: String },
    /// The engines of the job's nodes have not met.
    #[error("the engine of this node cannot meet those of the other nodes: {0}")]
    Nodes(String),
    /// A socket of a job cannot be made.
    #[error("cannot connect a job with its node engine: {0}")]
    Job(io::Error),
}

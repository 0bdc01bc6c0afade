use std::io;
use std::time::Duration;

use crate::NodeId;

/// Why a peer could not be asked. The sample is then read elsewhere.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("rank {peer} cannot be reached at {address}: {error}")]
    Unreachable { peer: NodeId, address: String, error: io::Error },
    #[error("rank {peer} has not answered within {limit:?}")]
    TimedOut { peer: NodeId, limit: Duration },
    #[error("the connection to rank {peer} has ended: {error}")]
    Closed { peer: NodeId, error: io::Error },
    /// It speaks, but not with us: another key, another version, another job.
    #[error("rank {peer} refuses: {reason}")]
    Refused { peer: NodeId, reason: String },
    #[error("rank {peer} sent what is no answer: {what}")]
    Garbled { peer: NodeId, what: String },
    /// This node cannot take part as it was told to: one sentence.
    #[error("{0}")]
    Setup(String),
    /// The transport was closed.
    #[error("this process has left the job")]
    Left,
}

impl PeerError {
    /// Whether the same call would end so again.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Left | Self::Refused { .. })
    }

    /// Whether a peer that ends its job looks like this to a call that is under way then. One that
    /// does not answer in time looks different.
    pub fn can_be_a_farewell(&self) -> bool {
        match self {
            Self::Unreachable { error, .. } | Self::Closed { error, .. } => {
                error.kind() != io::ErrorKind::TimedOut
            }
            _ => false,
        }
    }
}

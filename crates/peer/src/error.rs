use std::io;
use std::time::Duration;

use crate::NodeId;

/// Why a call to a peer failed. The sample is then read from the source.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants mean")]
pub enum PeerError {
    #[error("rank {peer} cannot be reached at {address}: {error}")]
    Unreachable { peer: NodeId, address: String, error: io::Error },
    #[error("rank {peer} has not answered within {limit:?}")]
    TimedOut { peer: NodeId, limit: Duration },
    #[error("the connection to rank {peer} has ended: {error}")]
    Closed { peer: NodeId, error: io::Error },
    /// The peer answers but does not accept this process: another key, version or job.
    #[error("rank {peer} refuses: {reason}")]
    Refused { peer: NodeId, reason: String },
    #[error("rank {peer} sent an invalid answer: {what}")]
    Garbled { peer: NodeId, what: String },
    /// The configuration of this node is wrong: one sentence.
    #[error("{0}")]
    Setup(String),
    /// The transport was closed.
    #[error("this process has left the job")]
    Left,
}

impl PeerError {
    /// Returns whether the same call would fail again in the same way.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Left | Self::Refused { .. })
    }

    /// Returns whether a peer that ends its job can cause this error in a call that is in flight. A
    /// peer that does not answer in time causes another one.
    pub fn can_be_a_farewell(&self) -> bool {
        match self {
            Self::Unreachable { error, .. } | Self::Closed { error, .. } => {
                error.kind() != io::ErrorKind::TimedOut
            }
            _ => false,
        }
    }
}

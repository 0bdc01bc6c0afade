//! The data path's peers: other nodes of the job, whose tiers are part of one cache.
//!
//! The processes of a job first find each other ([`rendezvous`]): each learns the addresses of the
//! others, gets the job's key, and checks that all run the same job. Then they exchange requests
//! through a [`transport`]: they get samples, put samples, and report progress. When a node sends
//! what, and what it does after an answer or none, is decided in [`protocol`], which knows neither
//! sockets nor clocks.
//!
//! The policy computes which node holds which sample; no node asks. So a peer that lacks a sample,
//! is slow or is gone is never an error here: the sample is read from the source.

pub mod auth;
mod bulk;
mod cluster;
pub mod conformance;
pub mod dispatcher;
mod error;
pub mod faulty;
mod join;
pub mod key;
mod listing;
pub mod memory;
pub mod message;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod protocol;
mod rate_limited_log;
pub mod rendezvous;
mod serving_limit;
pub mod tcp;
mod threads;
pub mod transport;
pub mod wire;

pub use belady_base::SampleId;
pub use belady_control::policy::{NodeId, TierId};
pub use bulk::Bulk;
pub use cluster::{Cluster, StatusReporter, TcpAccess};
pub use dispatcher::{Dispatcher, Handler, Registration};
pub use error::PeerError;
pub use join::{ADDRESSES, JoinClusterError, JoinOptions, join};
pub use key::JobKey;
pub use listing::{ListingError, open_together, share_listing};
pub use message::{
    Answer, Ask, Channel, GetReply, GetRequest, Notice, Payload, PinnedSample, Push, PushOutcome,
    Receive,
};
pub use rendezvous::agree::{agree, compare, drawn, share};
pub use rendezvous::{JobWorld, Rendezvous, RendezvousError};
pub use transport::Transport;

/// Returns the digest of a sample's bytes. It travels with them from the first read of the source
/// to their last user.
pub fn digest(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

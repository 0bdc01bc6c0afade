//! The data path's peers: other nodes of the job, whose tiers are part of one cache.
//!
//! Nodes *meet* first ([`meet`]): each learns who and where the others are, gets the job's key,
//! and makes sure that all run the same job. Then they talk through a [`transport`]: get samples,
//! put samples, tell how far one is. What is said when, and what a node makes of an answer or of
//! silence, is in [`protocol`], which knows neither sockets nor clocks.
//!
//! Who holds what is computed by the policy, not asked. So a peer that does not have a sample, is
//! slow or is gone is never an error here: it means that the sample is read elsewhere.

mod agree;
pub mod auth;
mod bulk;
mod cluster;
mod complaints;
pub mod conformance;
pub mod desk;
mod error;
pub mod faulty;
mod handout;
mod join;
pub mod key;
pub mod meet;
pub mod memory;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod protocol;
pub mod tcp;
mod threads;
pub mod transport;

pub use agree::{agree, agree_if_able, common_seed, share};
pub use belady_control::policy::{NodeId, TierId};
pub use belady_data::SampleId;
pub use bulk::Bulk;
pub use cluster::{Cluster, Speaker};
pub use desk::{Channel, Desk, Serve, Serving};
pub use error::PeerError;
pub use handout::{HandoutError, hand_out, open_together};
pub use join::{ADDRESSES, JoinError, JoinOptions, join};
pub use key::Key;
pub use meet::{Meet, MeetError, World};
pub use transport::{
    Answer, Ask, Notice, Payload, Push, Receive, Reply, Request, Taken, Transport,
};

/// What the bytes of a sample add up to: it travels with them, from the first who read them from the
/// source to whoever uses them.
pub fn digest(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

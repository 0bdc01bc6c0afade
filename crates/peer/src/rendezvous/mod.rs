//! The rendezvous: how the processes of a job find each other.
//!
//! The launcher often says which rank a process has and where rank 0 runs ([`launcher`]); otherwise
//! a host list does ([`hosts`]). Rank 0 listens there and the others connect ([`tcp`]), or rank 0
//! writes its address into a directory that all ranks see ([`directory`]). A caller may implement
//! [`Rendezvous`] by other means, such as torch's store or MPI. [`InProcessRendezvous`] is for
//! threads of one process.
//!
//! ```text
//! launcher, hosts ──▶ RendezvousAddress ──▶ tcp, directory ──▶ Rendezvous ──▶ agree, join
//! ```

mod address;
mod address_file;
pub mod agree;
pub mod directory;
mod find;
pub mod hosts;
mod in_process;
pub mod interface;
pub mod keys;
pub mod launcher;
mod slurm_nodes;
pub mod tcp;
mod wait_messages;

#[cfg(test)]
pub(crate) use address::free;
pub use address::{RendezvousAddress, port_of};
pub use find::{FindOptions, find};
pub use in_process::InProcessRendezvous;

use std::net::IpAddr;
use std::time::Duration;

use belady_base::sync::Arc;
use serde::{Deserialize, Serialize};

use crate::{JobKey, NodeId};

/// The longest value that a rank may give to an exchange: addresses and facts are far shorter. Data
/// that grows with the dataset goes over the transport.
pub const LONGEST_VALUE: usize = 1 << 20;

/// This process's rank and the number of ranks in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobWorld {
    /// This process's rank, from 0.
    pub rank: NodeId,
    /// The number of ranks.
    pub size: u32,
}

/// Called when a rank has given a new value to an exchange.
pub type Watcher = Arc<dyn Fn(NodeId, &[u8]) + Send + Sync>;

/// A rendezvous of the processes of a job, where they exchange small values.
///
/// A restarted process makes the same exchanges in the same order: it gets the values that the
/// others gave, and its own value replaces the one that it gave before.
pub trait Rendezvous: Send + Sync + std::fmt::Debug {
    /// Returns this process's rank and the number of ranks.
    fn world(&self) -> JobWorld;

    /// Gives a value and returns those of all ranks, by rank, once all have given one. Every rank
    /// makes the same exchanges, which are told apart by name.
    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError>;

    /// Returns the value that rank 0 gives; those of other ranks are ignored.
    fn broadcast(&self, name: &str, mine: &[u8]) -> Result<Vec<u8>, RendezvousError> {
        let mine = if self.world().rank == 0 { mine } else { &[] };
        self.exchange(name, mine).map(|mut all| all.swap_remove(0))
    }

    /// Stores a value under a name for processes that ask; it replaces the one before. A rendezvous
    /// that cannot be asked from outside may ignore it.
    fn post(&self, _name: &str, _word: &[u8]) {}

    /// Says that this process no longer needs an exchange. An exchange that all ranks have released
    /// may be forgotten: a process that is restarted later and makes it gets
    /// [`RendezvousError::Over`]. A rendezvous that keeps nothing after an exchange may ignore it.
    fn release(&self, _name: &str) {}

    /// Returns the job's key, if the rendezvous needed one.
    fn key(&self) -> Option<JobKey> {
        None
    }

    /// Returns this machine's address by which the other ranks are reached, if known.
    fn interface(&self) -> Option<IpAddr> {
        None
    }

    /// Calls `changed` from now on when a restarted rank gives a new value to an exchange that is
    /// complete. A rendezvous that ends when all ranks have exchanged never calls it.
    fn watch(&self, _name: &str, _changed: Watcher) {}
}

/// Why the processes of a job have not found each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants mean")]
pub enum RendezvousError {
    #[error(
        "{} of {size} did not come to {place} to exchange {what} within {limit:?}: check that they \
         run, and that the job has as many ranks", ranks(.missing)
    )]
    Missing { missing: Vec<NodeId>, size: u32, what: String, place: String, limit: Duration },
    /// At a rendezvous whose ranks are not started again ([`tcp::listen_once`]).
    #[error("{} ended before the exchange of {what}, or did not come to it in time", ranks(.ended))]
    Ended { ended: Vec<NodeId>, what: String },
    /// All ranks have released it ([`Rendezvous::release`]).
    #[error("all ranks had finished {0} before this process came to it: it was restarted too late")]
    Over(String),
    /// Any other reason, as one sentence.
    #[error("{0}")]
    Other(String),
}

/// Formats ranks as `rank 3` or `ranks 1, 2`.
fn ranks(missing: &[NodeId]) -> String {
    /// How many ranks are named; more are counted.
    const NAMED: usize = 16;
    let numbers = missing.iter().take(NAMED).map(ToString::to_string);
    let numbers = numbers.collect::<Vec<String>>().join(", ");
    let word = if missing.len() == 1 { "rank" } else { "ranks" };
    match missing.len().checked_sub(NAMED) {
        Some(more @ 1..) => format!("{word} {numbers} and {more} more"),
        _ => format!("{word} {numbers}"),
    }
}

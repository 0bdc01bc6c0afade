//! Meeting: how the processes of a job find each other.
//!
//! The starter of the job often says who one is and where rank 0 runs ([`environment`]), else a host
//! list does ([`list`]). There rank 0 listens and the others come ([`point`]); or rank 0 leaves a note
//! in a directory that all of them see ([`file`]). A caller may bring a [`Meet`] of its own, such as
//! torch's store or MPI. [`Hall`] is a meeting of threads in one process.
//!
//! ```text
//! environment, list ──▶ Place ──▶ point, file ──▶ Meet ──▶ agree, join
//! ```

pub mod environment;
pub mod file;
mod find;
mod hall;
pub mod interface;
pub mod keys;
pub mod list;
mod nodelist;
mod place;
pub mod point;
mod telling;

pub use find::{Wishes, find};
pub use hall::Hall;
#[cfg(test)]
pub(crate) use place::free;
pub use place::{Place, port_of};

use std::net::IpAddr;
use std::time::Duration;

use belady_data::sync::Arc;

use crate::{Key, NodeId};

/// What one rank gives to one exchange is no longer than this: addresses and facts are far shorter.
/// What grows with the dataset goes over the transport.
pub const LONGEST_VALUE: usize = 1 << 20;

/// This process's place among those of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    pub rank: NodeId,
    pub size: u32,
}

/// Is told of what a rank has given anew to an exchange.
pub type Watcher = Arc<dyn Fn(NodeId, &[u8]) + Send + Sync>;

/// A place where the processes of a job meet.
///
/// A process that has died and was started again calls the same exchanges in the same order: it gets
/// what the others gave then, and what it gives now replaces what it gave before.
pub trait Meet: Send + Sync + std::fmt::Debug {
    fn world(&self) -> World;

    /// Gives something and gets what all gave, by rank, when all have. Every rank makes the same
    /// exchanges, told apart by name.
    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetError>;

    /// What rank 0 gives reaches all; what others give is ignored.
    fn broadcast(&self, name: &str, mine: &[u8]) -> Result<Vec<u8>, MeetError> {
        let mine = if self.world().rank == 0 { mine } else { &[] };
        self.exchange(name, mine).map(|mut all| all.swap_remove(0))
    }

    /// Leaves word under a name, for whoever asks there: the last word counts. Meetings that cannot be
    /// asked from outside need not keep it.
    fn post(&self, _name: &str, _word: &[u8]) {}

    /// This process needs what was given to an exchange no more. What all have released may be
    /// forgotten: a process that is started again, and comes to it, gets [`MeetError::Over`]. Meetings
    /// that keep nothing beyond an exchange need not do anything.
    fn release(&self, _name: &str) {}

    /// The job's key, where one was needed to come here.
    fn key(&self) -> Option<Key> {
        None
    }

    /// The address of this machine by which the others are reached, where that shows.
    fn interface(&self) -> Option<IpAddr> {
        None
    }

    /// Tells from now on when a rank gives anew to an exchange that is over, since it was started
    /// again. Meetings that are over when all have come never tell.
    fn watch(&self, _name: &str, _changed: Watcher) {}
}

/// Why the processes of a job have not come together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeetError {
    #[error(
        "{} of {size} did not come to {what} at {place} within {limit:?}: see whether they run, or \
         whether the world is smaller", ranks(.missing)
    )]
    Missing { missing: Vec<NodeId>, size: u32, what: String, place: String, limit: Duration },
    /// All ranks have ended it ([`Meet::release`]).
    #[error(
        "{0} was over on all ranks before this process came to it: it was started again too late"
    )]
    Over(String),
    /// One sentence.
    #[error("{0}")]
    Other(String),
}

/// `rank 3`, `ranks 1, 2`.
fn ranks(missing: &[NodeId]) -> String {
    /// More are counted, not named.
    const NAMED: usize = 16;
    let numbers = missing.iter().take(NAMED).map(ToString::to_string);
    let numbers = numbers.collect::<Vec<String>>().join(", ");
    let word = if missing.len() == 1 { "rank" } else { "ranks" };
    match missing.len().checked_sub(NAMED) {
        Some(more @ 1..) => format!("{word} {numbers} and {more} more"),
        _ => format!("{word} {numbers}"),
    }
}

//! Meeting: how the processes of a job find each other.
//!
//! [`Hall`] is a meeting of threads in one process, for tests.

mod hall;

pub use hall::Hall;

use std::time::Duration;

use crate::NodeId;

/// This process's place among those of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    pub rank: NodeId,
    pub size: u32,
}

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
}

/// Why the processes of a job have not come together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeetError {
    #[error(
        "{} of {size} did not come to {what} at {place} within {limit:?}: see whether they run, or \
         whether the world is smaller", ranks(.missing)
    )]
    Missing { missing: Vec<NodeId>, size: u32, what: String, place: String, limit: Duration },
    /// One sentence.
    #[error("{0}")]
    Other(String),
}

fn ranks(missing: &[NodeId]) -> String {
    let numbers: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let word = if numbers.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", numbers.join(", "))
}

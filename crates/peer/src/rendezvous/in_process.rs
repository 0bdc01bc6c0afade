//! A rendezvous of threads in one process.

use std::collections::{BTreeSet, HashMap};
use std::sync::PoisonError;
use std::time::Duration;

use belady_base::sync::{Arc, Condvar, Mutex, lock};

use super::{JobWorld, Rendezvous, RendezvousError};
use crate::NodeId;

/// The rendezvous of threads in one process.
#[derive(Debug)]
pub struct InProcessRendezvous {
    size: u32,
    limit: Duration,
    /// The exchanges by name.
    given: Mutex<HashMap<String, InProcessExchange>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct InProcessExchange {
    /// By rank; empty once all ranks have released it.
    values: Vec<Option<Vec<u8>>>,
    released: BTreeSet<NodeId>,
}

impl InProcessRendezvous {
    /// Creates a rendezvous for `size` ranks, which wait for each other at most for `limit`.
    pub fn new(size: u32, limit: Duration) -> Arc<Self> {
        Arc::new(Self { size, limit, given: Mutex::default(), changed: Condvar::new() })
    }

    /// Returns the side of one rank.
    pub fn member(self: &Arc<Self>, rank: NodeId) -> Arc<dyn Rendezvous> {
        Arc::new(InProcessMember { rendezvous: self.clone(), rank })
    }
}

#[derive(Debug)]
struct InProcessMember {
    rendezvous: Arc<InProcessRendezvous>,
    rank: NodeId,
}

impl Rendezvous for InProcessMember {
    fn world(&self) -> JobWorld {
        JobWorld { rank: self.rank, size: self.rendezvous.size }
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let InProcessRendezvous { size, limit, given, changed } = &*self.rendezvous;
        let mut all = lock(given);
        let empty = || InProcessExchange {
            values: vec![None; *size as usize],
            ..InProcessExchange::default()
        };
        let exchange = all.entry(name.into()).or_insert_with(empty);
        let Some(place) = exchange.values.get_mut(self.rank as usize) else {
            return Err(RendezvousError::Over(name.to_owned()));
        };
        *place = Some(mine.into());
        changed.notify_all();
        let incomplete = |all: &mut HashMap<String, InProcessExchange>| {
            all.get(name).is_none_or(|given| given.values.iter().any(Option::is_none))
        };
        let waited = changed.wait_timeout_while(all, *limit, incomplete);
        let (all, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let given = all.get(name).map(|it| it.values.as_slice()).unwrap_or_default();
        let missing: Vec<NodeId> =
            (0..).zip(given).filter(|(_, given)| given.is_none()).map(|(rank, _)| rank).collect();
        if missing.is_empty() {
            return Ok(given.iter().flatten().cloned().collect());
        }
        let (what, place) = (name.to_owned(), "this process".to_owned());
        Err(RendezvousError::Missing { missing, size: *size, what, place, limit: *limit })
    }

    fn release(&self, name: &str) {
        let mut all = lock(&self.rendezvous.given);
        let Some(exchange) = all.get_mut(name) else { return };
        exchange.released.insert(self.rank);
        if exchange.released.len() == self.rendezvous.size as usize {
            *exchange = InProcessExchange::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_get_all_values_and_so_does_a_late_one() {
        let rendezvous = InProcessRendezvous::new(3, Duration::from_secs(20));
        let give = |rank: u8| rendezvous.member(rank.into()).exchange("names", &[rank]).unwrap();
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|rank| scope.spawn(move || give(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(all, vec![vec![vec![0], vec![1], vec![2]]; 3]);
        assert_eq!(rendezvous.member(1).exchange("names", &[7]).unwrap(), [[0], [7], [2]]);
        let alone =
            InProcessRendezvous::new(2, Duration::from_millis(1)).member(0).broadcast("key", b"k");
        let error = alone.unwrap_err().to_string();
        assert!(error.starts_with("rank 1 of 2 did not come to "), "{error}");
        assert!(error.contains("to exchange key"), "{error}");
    }
}

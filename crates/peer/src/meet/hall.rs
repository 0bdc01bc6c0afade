//! A meeting of threads in one process.

use std::collections::{BTreeSet, HashMap};
use std::sync::PoisonError;
use std::time::Duration;

use belady_data::sync::{Arc, Condvar, Mutex, lock};

use super::{Meet, MeetError, World};
use crate::NodeId;

/// Where all of them are.
#[derive(Debug)]
pub struct Hall {
    size: u32,
    limit: Duration,
    /// What was given, by name.
    given: Mutex<HashMap<String, Exchange>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Exchange {
    /// By rank; empty once all have released it.
    values: Vec<Option<Vec<u8>>>,
    released: BTreeSet<NodeId>,
}

impl Hall {
    /// For so many, who wait for each other at most so long.
    pub fn new(size: u32, limit: Duration) -> Arc<Self> {
        Arc::new(Self { size, limit, given: Mutex::default(), changed: Condvar::new() })
    }

    /// One who comes there.
    pub fn seat(self: &Arc<Self>, rank: NodeId) -> Arc<dyn Meet> {
        Arc::new(Seat { hall: self.clone(), rank })
    }
}

#[derive(Debug)]
struct Seat {
    hall: Arc<Hall>,
    rank: NodeId,
}

impl Meet for Seat {
    fn world(&self) -> World {
        World { rank: self.rank, size: self.hall.size }
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        let Hall { size, limit, given, changed } = &*self.hall;
        let mut all = lock(given);
        let nobody = || Exchange { values: vec![None; *size as usize], ..Exchange::default() };
        let exchange = all.entry(name.into()).or_insert_with(nobody);
        let Some(place) = exchange.values.get_mut(self.rank as usize) else {
            return Err(MeetError::Over(name.to_owned()));
        };
        *place = Some(mine.into());
        changed.notify_all();
        let incomplete = |all: &mut HashMap<String, Exchange>| {
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
        Err(MeetError::Missing { missing, size: *size, what, place, limit: *limit })
    }

    fn release(&self, name: &str) {
        let mut all = lock(&self.hall.given);
        let Some(exchange) = all.get_mut(name) else { return };
        exchange.released.insert(self.rank);
        if exchange.released.len() == self.hall.size as usize {
            *exchange = Exchange::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_what_all_gave_and_who_comes_late_gets_it_too() {
        let hall = Hall::new(3, Duration::from_secs(20));
        let give = |rank: u8| hall.seat(rank.into()).exchange("names", &[rank]).unwrap();
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|rank| scope.spawn(move || give(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(all, vec![vec![vec![0], vec![1], vec![2]]; 3]);
        assert_eq!(hall.seat(1).exchange("names", &[7]).unwrap(), [[0], [7], [2]]);
        let alone = Hall::new(2, Duration::from_millis(1)).seat(0).broadcast("key", b"k");
        assert!(alone.unwrap_err().to_string().starts_with("rank 1 of 2 did not come to key"));
    }
}

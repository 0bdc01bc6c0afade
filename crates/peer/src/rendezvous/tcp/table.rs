//! The server's state: exchanges, and the ranks that are connected.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use belady_base::sync::Arc;

use super::messages::RendezvousMessage;
use crate::NodeId;
use crate::rendezvous::Watcher;

/// An encoded message, shared by all its receivers.
pub type Frame = Arc<[u8]>;

/// A connected rank.
#[derive(Debug)]
pub struct ConnectedRank {
    pub life: u64,
    /// Tells this connection of the rank from later ones.
    pub connection: u64,
    /// The address that it connected from.
    pub from: String,
    pub out: Sender<Frame>,
    pub writer: Option<JoinHandle<()>>,
    pub watches: BTreeSet<String>,
}

/// The values of an exchange.
#[derive(Debug)]
struct Exchange {
    values: Vec<Option<Vec<u8>>>,
    /// Ranks that wait until all have given.
    waiting: BTreeSet<NodeId>,
    /// Ranks that have released it.
    released: BTreeSet<NodeId>,
}

/// Returns what is kept of an exchange that all ranks have released: enough to recognise its name.
pub fn trace_of(name: &str) -> u64 {
    crate::digest(name.as_bytes())
}

#[derive(Default)]
pub struct ExchangeTable {
    size: usize,
    exchanges: BTreeMap<String, Exchange>,
    /// Traces of exchanges that all ranks have released.
    over: HashSet<u64>,
    /// Traces of exchanges that were over before the server was restarted, by the rank that
    /// reported them.
    were_over: BTreeMap<NodeId, HashSet<u64>>,
    pub connected_ranks: BTreeMap<NodeId, ConnectedRank>,
    /// Ranks that have gone and do not come back.
    gone: BTreeSet<NodeId>,
    /// Watchers of rank 0 itself.
    pub watchers: Vec<(String, Watcher)>,
    /// The number of refused connections, and why the last one was.
    pub refused: Option<(u64, String)>,
    pub is_closed: bool,
}

impl ExchangeTable {
    pub fn new(size: u32) -> Self {
        Self { size: size as usize, ..Self::default() }
    }

    /// Stores a rank's value. Returns the watchers of rank 0 that the caller has to call, if the
    /// value is new.
    pub fn give(&mut self, rank: NodeId, name: &str, value: Vec<u8>, waits: bool) -> Vec<Watcher> {
        if self.is_over(name) {
            self.send(rank, &over(name));
            return vec![];
        }
        let empty = || Exchange {
            values: vec![None; self.size],
            waiting: BTreeSet::new(),
            released: BTreeSet::new(),
        };
        let exchange = self.exchanges.entry(name.to_owned()).or_insert_with(empty);
        let Some(place) = exchange.values.get_mut(rank as usize) else { return vec![] };
        let is_new = place.as_ref() != Some(&value);
        *place = Some(value);
        // This process replaces one that had released the exchange.
        exchange.released.remove(&rank);
        if waits {
            exchange.waiting.insert(rank);
        }
        if exchange.values.iter().all(Option::is_some) && !exchange.waiting.is_empty() {
            let waiting = std::mem::take(&mut exchange.waiting);
            let values_frame = self.values_frame(name);
            for rank in waiting {
                self.send(rank, &values_frame);
            }
        } else if !self.gone_before(name).is_empty() {
            self.give_up(name);
        }
        if is_new { self.tell_watchers(rank, name) } else { vec![] }
    }

    pub fn is_over(&self, name: &str) -> bool {
        let trace = trace_of(name);
        self.over.contains(&trace) || self.were_over.values().any(|told| told.contains(&trace))
    }

    /// Registers a connected rank. What its earlier process or connection reported counts no more:
    /// a process that outlives its job must not end the exchanges of the next one.
    pub fn register(&mut self, rank: NodeId, connected: ConnectedRank) {
        self.were_over.remove(&rank);
        self.connected_ranks.insert(rank, connected);
    }

    /// Records exchanges that were over before the server was restarted, and tells restarted ranks
    /// that wait for them.
    pub fn were_over(&mut self, rank: NodeId, traces: &[u64]) {
        self.were_over.entry(rank).or_default().extend(traces);
        let names = self.exchanges.keys().filter(|name| self.is_over(name)).cloned();
        for name in names.collect::<Vec<_>>() {
            let waiting = self.exchanges.remove(&name).map(|exchange| exchange.waiting);
            for rank in waiting.unwrap_or_default() {
                self.send(rank, &over(&name));
            }
        }
    }

    /// Records that a rank no longer needs an exchange. When none does, only its trace is kept.
    pub fn release(&mut self, rank: NodeId, name: &str) {
        let Some(exchange) = self.exchanges.get_mut(name) else { return };
        exchange.released.insert(rank);
        let is_done = |rank: NodeId| {
            let is_gone = rank != 0 && !self.connected_ranks.contains_key(&rank);
            exchange.released.contains(&rank) || is_gone && !exchange.waiting.contains(&rank)
        };
        let is_complete = exchange.values.iter().all(Option::is_some);
        if !is_complete || !(0..self.size as NodeId).all(is_done) {
            return;
        }
        self.exchanges.remove(name);
        self.over.insert(trace_of(name));
        let frame = over(name);
        for connected in self.connected_ranks.values() {
            let _ = connected.out.send(frame.clone());
        }
    }

    fn tell_watchers(&self, rank: NodeId, name: &str) -> Vec<Watcher> {
        let value = self.given(name).and_then(|values| values[rank as usize].clone());
        let Some(value) = value else { return vec![] };
        let message = RendezvousMessage::Changed { name: name.to_owned(), rank, value };
        let frame = Frame::from(message.to_frame());
        for (other, connected) in &self.connected_ranks {
            if *other != rank && connected.watches.contains(name) {
                let _ = connected.out.send(frame.clone());
            }
        }
        let mine = self.watchers.iter().filter(|(watched, _)| watched == name && rank != 0);
        mine.map(|(_, watcher)| watcher.clone()).collect()
    }

    /// Sends to a rank if it is connected. If not, it asks again when it connects.
    pub fn send(&self, rank: NodeId, frame: &Frame) {
        if let Some(connected) = self.connected_ranks.get(&rank) {
            let _ = connected.out.send(frame.clone());
        }
    }

    pub fn given(&self, name: &str) -> Option<&[Option<Vec<u8>>]> {
        self.exchanges.get(name).map(|exchange| exchange.values.as_slice())
    }

    /// Returns the values if all ranks have given theirs.
    pub fn complete(&self, name: &str) -> Option<Vec<Vec<u8>>> {
        self.given(name)?.iter().cloned().collect()
    }

    /// Returns the ranks that have not given yet.
    pub fn missing(&self, name: &str) -> Vec<NodeId> {
        let given = self.given(name).unwrap_or_default();
        let has_given = |rank: &usize| given.get(*rank).is_some_and(Option::is_some);
        (0..self.size).filter(|rank| !has_given(rank)).map(|rank| rank as NodeId).collect()
    }

    /// Tells the ranks that wait for an exchange that the server has given up; returns the missing
    /// ranks.
    pub fn give_up(&mut self, name: &str) -> Vec<NodeId> {
        let missing = self.missing(name);
        let message =
            RendezvousMessage::GivenUp { name: name.to_owned(), missing: missing.clone() };
        let frame = Frame::from(message.to_frame());
        let exchange = self.exchanges.get_mut(name);
        let waiting = exchange.map(|it| std::mem::take(&mut it.waiting)).unwrap_or_default();
        for rank in waiting {
            self.send(rank, &frame);
        }
        missing
    }

    /// Records that a rank has gone and does not come back, and gives up the exchanges that it has
    /// not come to.
    pub fn rank_ended(&mut self, rank: NodeId) {
        self.gone.insert(rank);
        for name in self.exchanges.keys().cloned().collect::<Vec<_>>() {
            if !self.gone_before(&name).is_empty() {
                self.give_up(&name);
            }
        }
    }

    /// Returns the ranks that have gone for good before an exchange.
    pub fn gone_before(&self, name: &str) -> Vec<NodeId> {
        if self.gone.is_empty() {
            return vec![];
        }
        self.missing(name).into_iter().filter(|rank| self.gone.contains(rank)).collect()
    }

    pub fn values_frame(&self, name: &str) -> Frame {
        let empty = || vec![None; self.size];
        let values = self.given(name).map_or_else(empty, <[_]>::to_vec);
        Frame::from(RendezvousMessage::Values { name: name.to_owned(), values }.to_frame())
    }
}

fn over(name: &str) -> Frame {
    Frame::from(RendezvousMessage::Over { name: name.to_owned() }.to_frame())
}

impl std::fmt::Debug for ExchangeTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let here: Vec<_> = self.connected_ranks.keys().collect();
        f.debug_struct("ExchangeTable").field("here", &here).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn take_seat(table: &mut ExchangeTable, rank: NodeId, life: u64) -> Receiver<Frame> {
        let (out, frames) = channel();
        let (from, watches) = (String::new(), BTreeSet::new());
        table.register(
            rank,
            ConnectedRank { life, connection: life, from, out, writer: None, watches },
        );
        frames
    }

    #[test]
    fn a_rank_that_waits_for_a_finished_exchange_is_told_when_another_rank_reports_it() {
        let mut table = ExchangeTable::new(3);
        let restarted = take_seat(&mut table, 1, 2);
        table.give(1, "loader 0", vec![7], true);
        table.give(1, "loader 1", vec![7], true);
        take_seat(&mut table, 2, 1);
        table.were_over(2, &[trace_of("loader 0")]);
        assert_eq!(restarted.try_iter().collect::<Vec<_>>(), [over("loader 0")]);
        assert!(table.is_over("loader 0") && table.given("loader 0").is_none());
        assert!(!table.is_over("loader 1") && table.given("loader 1").is_some());
    }

    #[test]
    fn a_rank_that_has_ended_ends_the_exchanges_that_it_has_not_come_to() {
        let mut table = ExchangeTable::new(3);
        let waits = take_seat(&mut table, 1, 1);
        take_seat(&mut table, 2, 1);
        table.give(2, "all gave", vec![2], true);
        table.give(1, "pending", vec![1], true);
        table.rank_ended(2);
        let given_up = |name: &str, missing: &[NodeId]| {
            let (name, missing) = (name.to_owned(), missing.to_vec());
            Frame::from(RendezvousMessage::GivenUp { name, missing }.to_frame())
        };
        assert_eq!(waits.try_iter().collect::<Vec<_>>(), [given_up("pending", &[0, 2])]);
        // It had come to this one.
        table.give(1, "all gave", vec![1], true);
        assert_eq!(table.gone_before("all gave"), []);
        table.give(0, "all gave", vec![0], false);
        assert_eq!(waits.try_iter().collect::<Vec<_>>(), [table.values_frame("all gave")]);
        table.give(1, "later", vec![1], true);
        assert_eq!(waits.try_iter().collect::<Vec<_>>(), [given_up("later", &[0, 2])]);
    }

    #[test]
    fn reports_of_an_earlier_process_are_discarded() {
        let mut table = ExchangeTable::new(2);
        take_seat(&mut table, 1, 1);
        table.were_over(1, &[trace_of("loader 0")]);
        assert!(table.is_over("loader 0"));
        take_seat(&mut table, 1, 2);
        assert!(!table.is_over("loader 0"));
    }
}

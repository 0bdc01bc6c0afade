//! What has been given at a meeting point, and who is there. Kept by rank 0.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use belady_data::sync::Arc;

use super::wire::Message;
use crate::NodeId;
use crate::meet::Watcher;

/// A message on its way, shared by all who get it.
pub type Frame = Arc<[u8]>;

/// A rank that is there, on a connection.
#[derive(Debug)]
pub struct Seat {
    pub life: u64,
    /// Tells this connection of the rank from later ones.
    pub connection: u64,
    /// From where it came.
    pub from: String,
    pub out: Sender<Frame>,
    pub writer: Option<JoinHandle<()>>,
    pub watches: BTreeSet<String>,
}

/// An exchange.
#[derive(Debug)]
struct Exchange {
    values: Vec<Option<Vec<u8>>>,
    /// Ranks that wait until all have given.
    waiting: BTreeSet<NodeId>,
    /// Ranks that need it no more.
    released: BTreeSet<NodeId>,
}

/// What is left of an exchange that all ranks have released: enough to know its name again.
pub fn trace_of(name: &str) -> u64 {
    crate::digest(name.as_bytes())
}

#[derive(Default)]
pub struct Table {
    size: usize,
    exchanges: BTreeMap<String, Exchange>,
    /// Traces of exchanges that all ranks have released.
    over: HashSet<u64>,
    /// Traces of those that were over before rank 0 was started again, by the rank that has told them.
    were_over: BTreeMap<NodeId, HashSet<u64>>,
    pub seats: BTreeMap<NodeId, Seat>,
    /// Those of rank 0 itself.
    pub watchers: Vec<(String, Watcher)>,
    /// Connections that were refused, and why the last was.
    pub refused: Option<(u64, String)>,
    pub is_closed: bool,
}

impl Table {
    pub fn new(size: u32) -> Self {
        Self { size: size as usize, ..Self::default() }
    }

    /// Takes what a rank gives. Watchers of rank 0 itself, if it is new to them, are for the caller.
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
        // A process in the place of one that had released it.
        exchange.released.remove(&rank);
        if waits {
            exchange.waiting.insert(rank);
        }
        if exchange.values.iter().all(Option::is_some) && !exchange.waiting.is_empty() {
            let waiting = std::mem::take(&mut exchange.waiting);
            let book = self.book(name);
            for rank in waiting {
                self.send(rank, &book);
            }
        }
        if is_new { self.tell_watchers(rank, name) } else { vec![] }
    }

    pub fn is_over(&self, name: &str) -> bool {
        let trace = trace_of(name);
        self.over.contains(&trace) || self.were_over.values().any(|told| told.contains(&trace))
    }

    /// A rank takes its seat. What it has told in an earlier life or on an earlier connection counts no
    /// more: a process that outlives its job for a while must not end the exchanges of the next one.
    pub fn seat(&mut self, rank: NodeId, seat: Seat) {
        self.were_over.remove(&rank);
        self.seats.insert(rank, seat);
    }

    /// A rank tells of exchanges that were over before rank 0 was started again. Other ranks that were
    /// started again may be waiting for them.
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

    /// A rank needs an exchange no more. When no rank does it goes: a trace of it is kept.
    pub fn release(&mut self, rank: NodeId, name: &str) {
        let Some(exchange) = self.exchanges.get_mut(name) else { return };
        exchange.released.insert(rank);
        let is_done = |rank: NodeId| {
            exchange.released.contains(&rank)
                // One that is gone, and has got what all gave.
                || rank != 0 && !self.seats.contains_key(&rank) && !exchange.waiting.contains(&rank)
        };
        let is_complete = exchange.values.iter().all(Option::is_some);
        if !is_complete || !(0..self.size as NodeId).all(is_done) {
            return;
        }
        self.exchanges.remove(name);
        self.over.insert(trace_of(name));
        let frame = over(name);
        for seat in self.seats.values() {
            let _ = seat.out.send(frame.clone());
        }
    }

    fn tell_watchers(&self, rank: NodeId, name: &str) -> Vec<Watcher> {
        let value = self.given(name).and_then(|values| values[rank as usize].clone());
        let Some(value) = value else { return vec![] };
        let message = Message::Changed { name: name.to_owned(), rank, value };
        let frame = Frame::from(message.to_frame());
        for (other, seat) in &self.seats {
            if *other != rank && seat.watches.contains(name) {
                let _ = seat.out.send(frame.clone());
            }
        }
        let mine = self.watchers.iter().filter(|(watched, _)| watched == name && rank != 0);
        mine.map(|(_, watcher)| watcher.clone()).collect()
    }

    /// Sends to a rank if it is there. If it is not, it will ask again when it is.
    pub fn send(&self, rank: NodeId, frame: &Frame) {
        if let Some(seat) = self.seats.get(&rank) {
            let _ = seat.out.send(frame.clone());
        }
    }

    pub fn given(&self, name: &str) -> Option<&[Option<Vec<u8>>]> {
        self.exchanges.get(name).map(|exchange| exchange.values.as_slice())
    }

    /// What all gave, if all have.
    pub fn complete(&self, name: &str) -> Option<Vec<Vec<u8>>> {
        self.given(name)?.iter().cloned().collect()
    }

    /// Ranks that have not given yet.
    pub fn missing(&self, name: &str) -> Vec<NodeId> {
        let given = self.given(name).unwrap_or_default();
        let has_given = |rank: &usize| given.get(*rank).is_some_and(Option::is_some);
        (0..self.size).filter(|rank| !has_given(rank)).map(|rank| rank as NodeId).collect()
    }

    /// Tells those who wait for an exchange that rank 0 does not wait any longer, and for whom.
    pub fn give_up(&mut self, name: &str) -> Vec<NodeId> {
        let missing = self.missing(name);
        let message = Message::GivenUp { name: name.to_owned(), missing: missing.clone() };
        let frame = Frame::from(message.to_frame());
        let exchange = self.exchanges.get_mut(name);
        let waiting = exchange.map(|it| std::mem::take(&mut it.waiting)).unwrap_or_default();
        for rank in waiting {
            self.send(rank, &frame);
        }
        missing
    }

    pub fn book(&self, name: &str) -> Frame {
        let nobody = || vec![None; self.size];
        let values = self.given(name).map_or_else(nobody, <[_]>::to_vec);
        Frame::from(Message::Book { name: name.to_owned(), values }.to_frame())
    }
}

fn over(name: &str) -> Frame {
    Frame::from(Message::Over { name: name.to_owned() }.to_frame())
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let here: Vec<_> = self.seats.keys().collect();
        f.debug_struct("Table").field("here", &here).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn take_seat(table: &mut Table, rank: NodeId, life: u64) -> Receiver<Frame> {
        let (out, frames) = channel();
        let (from, watches) = (String::new(), BTreeSet::new());
        table.seat(rank, Seat { life, connection: life, from, out, writer: None, watches });
        frames
    }

    #[test]
    fn a_rank_that_waits_for_what_was_over_is_told_when_another_one_says_so() {
        let mut table = Table::new(3);
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
    fn what_a_process_of_an_earlier_job_has_told_goes_with_it() {
        let mut table = Table::new(2);
        take_seat(&mut table, 1, 1);
        table.were_over(1, &[trace_of("loader 0")]);
        assert!(table.is_over("loader 0"));
        take_seat(&mut table, 1, 2);
        assert!(!table.is_over("loader 0"));
    }
}

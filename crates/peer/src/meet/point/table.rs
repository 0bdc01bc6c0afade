//! What has been given at a meeting point, and who is there. Kept by rank 0.

use std::collections::{BTreeMap, BTreeSet};
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
}

#[derive(Default)]
pub struct Table {
    size: usize,
    exchanges: BTreeMap<String, Exchange>,
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
        let empty = || Exchange { values: vec![None; self.size], waiting: BTreeSet::new() };
        let exchange = self.exchanges.entry(name.to_owned()).or_insert_with(empty);
        let Some(place) = exchange.values.get_mut(rank as usize) else { return vec![] };
        let is_new = place.as_ref() != Some(&value);
        *place = Some(value);
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

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let here: Vec<_> = self.seats.keys().collect();
        f.debug_struct("Table").field("here", &here).finish_non_exhaustive()
    }
}

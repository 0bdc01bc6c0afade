//! Follows the program through an order: where it reads, and what it opens next.
//!
//! Positions increase over epochs: position `p` of an order of `n` files is file `p % n` in epoch
//! `p / n`.
//!
//! ```text
//!            position              furthest opened            cursor
//!  past ────────┤■ ■■ ■■■■ ■■  ■■■■┤ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┤ not considered yet
//!               opened here and there     being fetched
//! ```
//!
//! An opened file counts at its next position within reach. A file opened elsewhere is a stray;
//! several strays near each other show that the program continues there.
//!
//! A file that arrives after it was opened was fetched in vain and slowed the program down, which
//! read it from the source. So the cursor keeps a *distance* from the reader, which grows with each
//! late file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::index::OrderIndex;
use super::names::NameId;
use super::{evidence, tolerance};

/// The number of files in time that compensate one late file.
const IN_TIME: u64 = 16;

/// How far ahead of the reader files are fetched. Files that need not be fetched do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookahead {
    pub files: usize,
    /// One file is always fetched, whatever its size.
    pub bytes: u64,
}

/// The reader's position in an order.
#[derive(Debug)]
pub struct OrderFollower {
    order: Arc<[NameId]>,
    index: OrderIndex,
    ahead: Lookahead,
    /// All positions before were opened or skipped.
    position: u64,
    /// From `position` on.
    opened: VecDeque<bool>,
    /// All positions before were considered for a fetch.
    cursor: u64,
    /// Fetched and not opened yet: position and bytes.
    fetched: BTreeMap<u64, u64>,
    fetched_bytes: u64,
    /// Positions of the last files that were opened out of reach.
    strays: Vec<u64>,
    /// Files closer to the position are left to the program; in units of 1 / [`IN_TIME`].
    distance: u64,
}

impl Default for Lookahead {
    /// A second of reading or more, for most programs.
    fn default() -> Self {
        Self { files: 512, bytes: 1 << 30 }
    }
}

impl OrderFollower {
    /// Creates a follower; None for an empty order.
    pub fn new(order: Arc<[NameId]>, ahead: Lookahead) -> Option<Self> {
        (!order.is_empty()).then(|| Self {
            index: OrderIndex::of(&order),
            order,
            ahead,
            position: 0,
            opened: VecDeque::new(),
            cursor: 0,
            fetched: BTreeMap::new(),
            fetched_bytes: 0,
            strays: vec![],
            distance: 0,
        })
    }

    fn epoch(&self) -> u64 {
        self.order.len() as u64
    }

    fn tolerance(&self) -> u64 {
        tolerance(self.order.len()) as u64
    }

    fn is_opened(&self, place: u64) -> bool {
        let at = place.checked_sub(self.position);
        at.is_none_or(|at| self.opened.get(at as usize) == Some(&true))
    }

    /// Returns the next position of each occurrence of a file.
    fn coming(&self, name: NameId) -> impl Iterator<Item = u64> {
        let (position, epoch) = (self.position, self.epoch());
        let now = position % epoch;
        let from_now = move |place: u64| position + (place + epoch - now) % epoch;
        self.index.places(name).iter().map(move |&place| from_now(place.into()))
    }

    /// Sorts files that were opened at about the same time by their next positions.
    pub fn sort(&self, names: &mut [NameId]) {
        names.sort_by_cached_key(|&name| self.coming(name).min());
    }

    /// Handles an opened file.
    pub fn opened(&mut self, name: NameId) {
        let reach = self.position + 2 * self.tolerance();
        let place =
            self.coming(name).filter(|&place| place <= reach && !self.is_opened(place)).min();
        if let Some(place) = place {
            self.strays.pop();
            self.mark(place);
        } else {
            self.opened_elsewhere(name);
        }
    }

    fn mark(&mut self, place: u64) {
        let at = (place - self.position) as usize;
        if self.opened.len() <= at {
            self.opened.resize(at + 1, false);
        }
        self.opened[at] = true;
        if let Some(bytes) = self.fetched.remove(&place) {
            self.fetched_bytes -= bytes;
        }
        // A position far behind the furthest one will not be opened any more.
        while self.opened.len() as u64 > self.tolerance() || self.opened.front() == Some(&true) {
            self.opened.pop_front();
            self.position += 1;
        }
        while let Some(first) = self.fetched.first_entry()
            && *first.key() < self.position
        {
            self.fetched_bytes -= first.remove();
        }
        self.cursor = self.cursor.max(self.position);
    }

    fn opened_elsewhere(&mut self, name: NameId) {
        let (tolerance, epoch) = (self.tolerance(), self.epoch());
        // Opened again shortly after the first time.
        let behind = |place: &u64| *place + tolerance >= self.position + epoch;
        if self.coming(name).any(|place| self.is_opened(place) || behind(&place)) {
            return;
        }
        let near = |a: u64, b: u64| {
            let apart = a.abs_diff(b) % epoch;
            apart.min(epoch - apart) <= tolerance
        };
        let others = self.strays.first().copied();
        let place = self.coming(name).find(|&place| others.is_some_and(|other| near(place, other)));
        match place {
            Some(place) => self.strays.push(place),
            None => self.strays = self.coming(name).take(1).collect(),
        }
        if self.strays.len() >= evidence(self.order.len()) {
            self.go_to_strays();
        }
    }

    fn go_to_strays(&mut self) {
        let strays = std::mem::take(&mut self.strays);
        let (epoch, tolerance) = (self.epoch(), self.tolerance());
        // All strays are within the tolerance of the first one.
        let start = strays[0] + epoch - tolerance;
        let from_start = |place: u64| (place + 2 * epoch - start % epoch) % epoch;
        let first = strays.iter().map(|&place| from_start(place)).min().unwrap_or(0);
        self.position = start + first;
        self.cursor = self.position;
        self.opened.clear();
        self.fetched.clear();
        self.fetched_bytes = 0;
        for place in strays {
            let at = self.position + from_start(place) - first;
            if !self.is_opened(at) {
                self.mark(at);
            }
        }
    }

    /// Returns the next file to fetch and its position. `wanted` returns the bytes of a file to
    /// fetch, 0 if unknown, or None if it need not be fetched.
    pub fn next(&mut self, wanted: impl Fn(NameId) -> Option<u64>) -> Option<(u64, NameId)> {
        self.cursor = self.cursor.max(self.position + self.distance / IN_TIME);
        while self.fetched.len() < self.ahead.files && self.cursor < self.position + self.epoch() {
            let place = self.cursor;
            let name = self.order[(place % self.epoch()) as usize];
            if !self.is_opened(place)
                && let Some(bytes) = wanted(name)
            {
                let enough = self.fetched_bytes.saturating_add(bytes) > self.ahead.bytes;
                if enough && !self.fetched.is_empty() {
                    return None;
                }
                self.fetched.insert(place, bytes);
                self.fetched_bytes += bytes;
                self.cursor += 1;
                return Some((place, name));
            }
            self.cursor += 1;
        }
        None
    }

    /// Sets the bytes of a file in flight; None if the fetch failed.
    pub fn sized(&mut self, place: u64, bytes: Option<u64>) {
        if let Some(before) = self.fetched.remove(&place) {
            self.fetched_bytes -= before;
            if let Some(bytes) = bytes {
                self.fetched.insert(place, bytes);
                self.fetched_bytes += bytes;
            }
        }
    }

    /// Adapts the distance after a file has arrived.
    pub fn arrived(&mut self, place: u64) {
        self.distance = if self.is_opened(place) {
            (self.distance + IN_TIME).min(self.tolerance() * IN_TIME)
        } else {
            self.distance.saturating_sub(1)
        };
    }

    /// Returns whether the program will open this file before the cursor.
    pub fn expects(&self, name: NameId) -> bool {
        self.coming(name).any(|place| place < self.cursor && !self.is_opened(place))
    }
}

#[cfg(test)]
mod tests;

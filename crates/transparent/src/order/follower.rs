//! Where in an order the program reads, and what it opens next.
//!
//! Places count on and on: place `p` of an order of `n` files is file `p % n`, in epoch `p / n`.
//!
//! ```text
//!            position              furthest opened            cursor
//!  past ────────┤■ ■■ ■■■■ ■■  ■■■■┤ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ┤ not looked at yet
//!               opened here and there     being fetched
//! ```
//!
//! A file is taken as opened at its next place that is near. One that is opened elsewhere is a stray;
//! several strays near each other tell that the program has gone there.
//!
//! A file that comes after it was opened was fetched in vain, and slowed the program down that was
//! reading it from the source. So the cursor keeps a *distance* from the reader, which grows with each
//! file that comes too late.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::index::Index;
use super::names::Name;
use super::{evidence, tolerance};

/// So many files that come in time weigh as much as one that comes too late.
const IN_TIME: u64 = 16;

/// How far in front of the reader files are fetched. Those that need not be fetched do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub files: usize,
    /// One file may always be fetched, whatever its size.
    pub bytes: u64,
}

#[derive(Debug)]
pub struct Follower {
    order: Arc<[Name]>,
    index: Index,
    ahead: Ahead,
    /// All places before are opened, or given up.
    position: u64,
    /// From the position on.
    opened: VecDeque<bool>,
    /// All places before have been looked at.
    cursor: u64,
    /// In front of the reader, not opened yet: the place and its bytes.
    fetched: BTreeMap<u64, u64>,
    fetched_bytes: u64,
    /// Where files were opened last that nobody expected there.
    strays: Vec<u64>,
    /// What is nearer to the position is left to the program; in parts of [`IN_TIME`].
    distance: u64,
}

impl Default for Ahead {
    /// A second or more of reading, for most programs.
    fn default() -> Self {
        Self { files: 512, bytes: 1 << 30 }
    }
}

impl Follower {
    /// Of an order that is not empty.
    pub fn new(order: Arc<[Name]>, ahead: Ahead) -> Option<Self> {
        (!order.is_empty()).then(|| Self {
            index: Index::of(&order),
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

    /// Where this file stands from the position on, each place once.
    fn coming(&self, name: Name) -> impl Iterator<Item = u64> {
        let (position, epoch) = (self.position, self.epoch());
        let now = position % epoch;
        let from_now = move |place: u64| position + (place + epoch - now) % epoch;
        self.index.places(name).iter().map(move |&place| from_now(place.into()))
    }

    /// Files that were opened at about the same time, as they stand in the order from the position on.
    pub fn sort(&self, names: &mut [Name]) {
        names.sort_by_cached_key(|&name| self.coming(name).min());
    }

    /// The program opened this file.
    pub fn opened(&mut self, name: Name) {
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
        // A place that is far behind the furthest one will not be opened any more.
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

    fn opened_elsewhere(&mut self, name: Name) {
        let (tolerance, epoch) = (self.tolerance(), self.epoch());
        // Opened already, and a little behind: it is only looked at once more.
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
        // They are not further apart than this from the first of them, before or behind it.
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

    /// The next file to fetch, and its place. `wanted` tells the bytes of a file that has to be fetched, 0 if
    /// nobody knows, or None if it need not be.
    pub fn next(&mut self, wanted: impl Fn(Name) -> Option<u64>) -> Option<(u64, Name)> {
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

    /// The file that is fetched for this place has so many bytes; None if it will not come.
    pub fn sized(&mut self, place: u64, bytes: Option<u64>) {
        if let Some(before) = self.fetched.remove(&place) {
            self.fetched_bytes -= before;
            if let Some(bytes) = bytes {
                self.fetched.insert(place, bytes);
                self.fetched_bytes += bytes;
            }
        }
    }

    /// The file that was fetched for this place has come.
    pub fn came(&mut self, place: u64) {
        self.distance = if self.is_opened(place) {
            (self.distance + IN_TIME).min(self.tolerance() * IN_TIME)
        } else {
            self.distance.saturating_sub(1)
        };
    }

    /// Whether the program opens this file again in what has been looked at.
    pub fn expects(&self, name: Name) -> bool {
        self.coming(name).any(|place| place < self.cursor && !self.is_opened(place))
    }
}

#[cfg(test)]
#[path = "follower_tests.rs"]
mod tests;

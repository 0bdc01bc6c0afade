//! Decides which files are fetched and evicted, and when.
//!
//! A file ahead of the reader that has no copy is fetched to keep it. If no level has space, it
//! waits for space in the window and gets a transient copy. A transient copy is evicted when the
//! program has read it and its space is needed.

use std::collections::{BTreeMap, HashMap};

use super::follower::{Lookahead, OrderFollower};
use super::launcher::{CopyState, FetchKind, FetchOutcome, PrefetchTally};
use super::learner::{Beginning, Learner};
use super::names::NameId;
use super::window::{Admission, PassWindow};

/// What the launcher has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Fetch(NameId, FetchKind),
    /// Evict a copy. [`FetchPlanner::released`] follows when no process has it open.
    Evict(NameId),
}

/// The state of a file, if it differs from what the board says.
#[derive(Clone, Copy, Debug)]
enum FileState {
    /// In flight for this position of this round.
    Fetching {
        kind: FetchKind,
        place: u64,
        round: u32,
    },
    /// Waits for space in the window.
    Waiting {
        bytes: u64,
    },
    /// In the window.
    Transient,
    /// Evicted, perhaps still open.
    Evicted,
    /// Had a transient copy before.
    WasTransient {
        bytes: u64,
    },
    Absent,
}

/// Decides which files are fetched and evicted.
#[derive(Debug)]
pub struct FetchPlanner {
    ahead: Lookahead,
    most_fetches: usize,
    learner: Option<Learner>,
    follower: Option<OrderFollower>,
    /// The number of orders that were followed.
    round: u32,
    window: PassWindow,
    files: HashMap<NameId, FileState>,
    fetches: usize,
    /// Files that wait for space in the window, by position.
    waiting: BTreeMap<u64, NameId>,
    pub tally: PrefetchTally,
}

impl FetchPlanner {
    fn new(ahead: Lookahead, most_fetches: usize, window: u64) -> Self {
        Self {
            ahead,
            most_fetches: most_fetches.max(1),
            learner: None,
            follower: None,
            round: 0,
            window: PassWindow::new(window),
            files: HashMap::new(),
            fetches: 0,
            waiting: BTreeMap::new(),
            tally: PrefetchTally::default(),
        }
    }

    /// Creates a planner that follows an order from the start.
    pub fn following(order: &[NameId], ahead: Lookahead, most_fetches: usize, window: u64) -> Self {
        let mut planner = Self::new(ahead, most_fetches, window);
        planner.follower = OrderFollower::new(order.into(), ahead);
        planner
    }

    /// Creates a planner that learns an order. `earlier` is the order that an earlier run has
    /// learnt.
    pub fn learning(
        earlier: &[NameId],
        ahead: Lookahead,
        most_fetches: usize,
        window: u64,
    ) -> Self {
        let mut planner = Self::new(ahead, most_fetches, window);
        planner.learner = Some(Learner::new(earlier));
        planner
    }

    /// Returns the order to save for the next run, if this one learns.
    pub fn learnt(&self) -> Option<&[NameId]> {
        self.learner.as_ref().map(Learner::to_keep)
    }

    pub fn is_following(&self) -> bool {
        self.follower.is_some()
    }

    /// Handles files that the program has opened, in any order.
    pub fn opened(&mut self, mut names: Vec<NameId>) {
        if let Some(follower) = &mut self.follower {
            follower.sort(&mut names);
            for &name in &names {
                follower.opened(name);
            }
        }
        let Some(learner) = &mut self.learner else { return };
        if self.follower.is_none() {
            learner.sort(&mut names);
        }
        for name in names {
            learner.opened(name);
        }
        match learner.judge() {
            Some(Beginning::Same) => self.follow_known_order(),
            Some(Beginning::Changed) => self.follow(None),
            None => {}
        }
    }

    fn follow_known_order(&mut self) {
        let Some(learner) = &self.learner else { return };
        let mut so_far = learner.so_far().to_vec();
        let mut follower = OrderFollower::new(learner.known().into(), self.ahead);
        if let Some(follower) = &mut follower {
            follower.sort(&mut so_far);
            for name in so_far {
                follower.opened(name);
            }
        }
        self.follow(follower);
    }

    fn follow(&mut self, follower: Option<OrderFollower>) {
        self.follower = follower;
        self.round += 1;
        for name in std::mem::take(&mut self.waiting).into_values() {
            self.stop_waiting(name);
        }
    }

    fn stop_waiting(&mut self, name: NameId) {
        if let Some(FileState::Waiting { bytes }) = self.files.get(&name).copied() {
            self.files.insert(name, FileState::WasTransient { bytes });
        }
    }

    /// Handles the end of a fetch.
    pub fn fetched(&mut self, name: NameId, outcome: FetchOutcome) {
        let Some(FileState::Fetching { kind, place, round }) = self.files.get(&name).copied()
        else {
            return;
        };
        self.files.remove(&name);
        self.fetches -= 1;
        let is_current = round == self.round;
        let arrived = match (kind, outcome) {
            (FetchKind::Keep, FetchOutcome::Kept { bytes }) => {
                self.tally.kept += 1;
                Some(bytes)
            }
            (FetchKind::Keep, FetchOutcome::NoSpace { bytes }) => {
                let waits = is_current && self.window.fits(bytes);
                self.files.insert(name, FileState::WasTransient { bytes });
                if waits {
                    self.wait(name, place, bytes);
                }
                waits.then_some(bytes)
            }
            (FetchKind::Transient { bytes }, FetchOutcome::Kept { .. }) => {
                self.window.arrived(name);
                self.files.insert(name, FileState::Transient);
                self.tally.passed += 1;
                Some(bytes)
            }
            (FetchKind::Transient { .. } | FetchKind::Keep, FetchOutcome::Absent) => {
                self.window.remove(name);
                self.files.insert(name, FileState::Absent);
                self.tally.absent += 1;
                None
            }
            // Retried in the next epoch from the start, because the size may have changed.
            (FetchKind::Transient { .. } | FetchKind::Keep, _) => {
                self.window.remove(name);
                None
            }
        };
        if let Some(follower) = self.follower.as_mut().filter(|_| is_current) {
            follower.sized(place, arrived);
            if matches!(outcome, FetchOutcome::Kept { .. }) {
                follower.arrived(place);
            }
        }
    }

    fn wait(&mut self, name: NameId, place: u64, bytes: u64) {
        self.files.insert(name, FileState::Waiting { bytes });
        self.waiting.insert(place, name);
    }

    /// Handles an evicted copy that no process has open any more. Returns its bytes.
    pub fn released(&mut self, name: NameId) -> u64 {
        let bytes = self.window.remove(name).unwrap_or(0);
        if matches!(self.files.get(&name), Some(FileState::Evicted)) {
            self.files.insert(name, FileState::WasTransient { bytes });
        }
        bytes
    }

    /// Returns the actions to take now. `copy_state` returns what the board says about a file.
    /// After an eviction call this again: the space may be free at once.
    pub fn plan(&mut self, copy_state: impl Fn(NameId) -> CopyState) -> Vec<Action> {
        let mut actions = vec![];
        while !self.admit_waiting(&mut actions) && self.fetches < self.most_fetches {
            let Some(follower) = &mut self.follower else { break };
            let (files, window) = (&self.files, &self.window);
            let wanted = |name| need(files.get(&name), || copy_state(name)).bytes(window);
            let Some((place, name)) = follower.next(wanted) else { break };
            match need(self.files.get(&name), || copy_state(name)) {
                Need::Window { bytes } => self.wait(name, place, bytes),
                _ => actions.push(self.fetch(name, place, FetchKind::Keep)),
            }
        }
        actions
    }

    fn fetch(&mut self, name: NameId, place: u64, kind: FetchKind) -> Action {
        self.fetches += 1;
        self.files.insert(name, FileState::Fetching { kind, place, round: self.round });
        Action::Fetch(name, kind)
    }

    /// Admits waiting files to the window in reading order. Returns whether copies are evicted for
    /// one. Until their space is released no other file is fetched, because it may be one of them.
    fn admit_waiting(&mut self, actions: &mut Vec<Action>) -> bool {
        while self.fetches < self.most_fetches
            && let Some(follower) = &self.follower
            && let Some((&place, &name)) = self.waiting.first_key_value()
            && let Some(&FileState::Waiting { bytes }) = self.files.get(&name)
        {
            if !follower.expects(name) {
                self.waiting.remove(&place);
                self.stop_waiting(name);
                continue;
            }
            match self.window.admit(name, bytes, |entry| !follower.expects(entry)) {
                Admission::Granted => {
                    self.waiting.remove(&place);
                    actions.push(self.fetch(name, place, FetchKind::Transient { bytes }));
                }
                Admission::Later(entries) => {
                    for &entry in &entries {
                        self.files.insert(entry, FileState::Evicted);
                        actions.push(Action::Evict(entry));
                    }
                    return !entries.is_empty();
                }
                // Only files that fit into the window wait.
                Admission::TooLarge => return false,
            }
        }
        false
    }
}

/// What a file needs to be available when the program opens it.
enum Need {
    Nothing,
    Fetch,
    Window { bytes: u64 },
}

impl Need {
    /// Returns the bytes to fetch, 0 if unknown; None if nothing can be done.
    fn bytes(&self, window: &PassWindow) -> Option<u64> {
        match *self {
            Self::Nothing => None,
            Self::Fetch => Some(0),
            Self::Window { bytes } => window.fits(bytes).then_some(bytes),
        }
    }
}

fn need(file: Option<&FileState>, copy_state: impl FnOnce() -> CopyState) -> Need {
    let bytes = match file {
        None => None,
        Some(&FileState::WasTransient { bytes }) => Some(bytes),
        Some(_) => return Need::Nothing,
    };
    match (copy_state(), bytes) {
        (CopyState::HasCopy, _) => Need::Nothing,
        (CopyState::Refused { bytes }, _) | (CopyState::Unknown, Some(bytes)) => {
            Need::Window { bytes }
        }
        (CopyState::Unknown, None) => Need::Fetch,
    }
}

#[cfg(test)]
mod tests;

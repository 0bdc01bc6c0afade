//! What is fetched and let go, and when.
//!
//! A file in front of the reader that has no copy is fetched to stay. If no level has room for it,
//! it waits for room in the window and passes through that. Files go when room is needed for others
//! and the program has read them.

use std::collections::{BTreeMap, HashMap};

use super::follower::{Ahead, Follower};
use super::learner::{Beginning, Learner};
use super::names::Name;
use super::window::{Claim, Window};
use super::world::{Outcome, Standing, Tally, Wish};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Fetch(Name, Wish),
    /// The copy is not to be found any more; [`Planner::gone`] tells when nobody has it open.
    LetGo(Name),
}

/// Files that are not as the board says.
#[derive(Clone, Copy, Debug)]
enum File {
    /// For this place, unless another order is followed now.
    Fetching {
        wish: Wish,
        place: u64,
        round: u32,
    },
    Waiting {
        bytes: u64,
    },
    Passing,
    Leaving,
    /// It passed through before.
    Passed {
        bytes: u64,
    },
    Absent,
}

#[derive(Debug)]
pub struct Planner {
    ahead: Ahead,
    most_fetches: usize,
    learner: Option<Learner>,
    follower: Option<Follower>,
    /// Counts the orders that were followed.
    round: u32,
    window: Window,
    files: HashMap<Name, File>,
    fetches: usize,
    /// Files that wait for room in the window, by their place.
    waiting: BTreeMap<u64, Name>,
    pub tally: Tally,
}

impl Planner {
    fn new(ahead: Ahead, most_fetches: usize, room: u64) -> Self {
        Self {
            ahead,
            most_fetches: most_fetches.max(1),
            learner: None,
            follower: None,
            round: 0,
            window: Window::new(room),
            files: HashMap::new(),
            fetches: 0,
            waiting: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    /// This order is in force from the start.
    pub fn following(order: &[Name], ahead: Ahead, most_fetches: usize, room: u64) -> Self {
        let mut planner = Self::new(ahead, most_fetches, room);
        planner.follower = Follower::new(order.into(), ahead);
        planner
    }

    /// `earlier` is what an earlier run has learnt.
    pub fn learning(earlier: &[Name], ahead: Ahead, most_fetches: usize, room: u64) -> Self {
        let mut planner = Self::new(ahead, most_fetches, room);
        planner.learner = Some(Learner::new(earlier));
        planner
    }

    /// What the next run is to know, if this one learns.
    pub fn learnt(&self) -> Option<&[Name]> {
        self.learner.as_ref().map(Learner::to_keep)
    }

    pub fn is_following(&self) -> bool {
        self.follower.is_some()
    }

    /// The program opened these files, in any order.
    pub fn opened(&mut self, mut names: Vec<Name>) {
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
            Some(Beginning::Same) => self.follow_what_was_learnt(),
            Some(Beginning::Changed) => self.follow(None),
            None => {}
        }
    }

    fn follow_what_was_learnt(&mut self) {
        let Some(learner) = &self.learner else { return };
        let mut so_far = learner.so_far().to_vec();
        let mut follower = Follower::new(learner.known().into(), self.ahead);
        if let Some(follower) = &mut follower {
            follower.sort(&mut so_far);
            for name in so_far {
                follower.opened(name);
            }
        }
        self.follow(follower);
    }

    fn follow(&mut self, follower: Option<Follower>) {
        self.follower = follower;
        self.round += 1;
        for name in std::mem::take(&mut self.waiting).into_values() {
            self.wait_no_more(name);
        }
    }

    fn wait_no_more(&mut self, name: Name) {
        if let Some(File::Waiting { bytes }) = self.files.get(&name).copied() {
            self.files.insert(name, File::Passed { bytes });
        }
    }

    /// A fetch has ended.
    pub fn fetched(&mut self, name: Name, outcome: Outcome) {
        let Some(File::Fetching { wish, place, round }) = self.files.get(&name).copied() else {
            return;
        };
        self.files.remove(&name);
        self.fetches -= 1;
        let is_current = round == self.round;
        let came = match (wish, outcome) {
            (Wish::Keep, Outcome::Kept { bytes }) => {
                self.tally.kept += 1;
                Some(bytes)
            }
            (Wish::Keep, Outcome::NoRoom { bytes }) => {
                let waits = is_current && self.window.fits(bytes);
                self.files.insert(name, File::Passed { bytes });
                if waits {
                    self.wait(name, place, bytes);
                }
                waits.then_some(bytes)
            }
            (Wish::Pass { bytes }, Outcome::Kept { .. }) => {
                self.window.arrived(name);
                self.files.insert(name, File::Passing);
                self.tally.passed += 1;
                Some(bytes)
            }
            (Wish::Pass { .. } | Wish::Keep, Outcome::Absent) => {
                self.window.gone(name);
                self.files.insert(name, File::Absent);
                self.tally.absent += 1;
                None
            }
            // Next epoch it is tried again; from the start, since its size may have changed.
            (Wish::Pass { .. } | Wish::Keep, _) => {
                self.window.gone(name);
                None
            }
        };
        if let Some(follower) = self.follower.as_mut().filter(|_| is_current) {
            follower.sized(place, came);
            if matches!(outcome, Outcome::Kept { .. }) {
                follower.came(place);
            }
        }
    }

    fn wait(&mut self, name: Name, place: u64, bytes: u64) {
        self.files.insert(name, File::Waiting { bytes });
        self.waiting.insert(place, name);
    }

    /// Nobody has this file open any more that was let go: its bytes.
    pub fn gone(&mut self, name: Name) -> u64 {
        let bytes = self.window.gone(name).unwrap_or(0);
        if matches!(self.files.get(&name), Some(File::Leaving)) {
            self.files.insert(name, File::Passed { bytes });
        }
        bytes
    }

    /// What is to be done now. `standing` is what the board says of a file. When files are let go it has to be
    /// asked again: their room may be free at once.
    pub fn plan(&mut self, standing: impl Fn(Name) -> Standing) -> Vec<Action> {
        let mut actions = vec![];
        while !self.let_pass(&mut actions) && self.fetches < self.most_fetches {
            let Some(follower) = &mut self.follower else { break };
            let (files, window) = (&self.files, &self.window);
            let wanted = |name| need(files.get(&name), || standing(name)).bytes(window);
            let Some((place, name)) = follower.next(wanted) else { break };
            match need(self.files.get(&name), || standing(name)) {
                Need::Window { bytes } => self.wait(name, place, bytes),
                _ => actions.push(self.fetch(name, place, Wish::Keep)),
            }
        }
        actions
    }

    fn fetch(&mut self, name: Name, place: u64, wish: Wish) -> Action {
        self.fetches += 1;
        self.files.insert(name, File::Fetching { wish, place, round: self.round });
        Action::Fetch(name, wish)
    }

    /// Files that wait for the window, in the order in which they are read. Whether others are let go for one:
    /// until it is known if they are gone, nobody looks further, since they may be needed again there.
    fn let_pass(&mut self, actions: &mut Vec<Action>) -> bool {
        while self.fetches < self.most_fetches
            && let Some(follower) = &self.follower
            && let Some((&place, &name)) = self.waiting.first_key_value()
            && let Some(&File::Waiting { bytes }) = self.files.get(&name)
        {
            if !follower.expects(name) {
                self.waiting.remove(&place);
                self.wait_no_more(name);
                continue;
            }
            match self.window.claim(name, bytes, |guest| !follower.expects(guest)) {
                Claim::Granted => {
                    self.waiting.remove(&place);
                    actions.push(self.fetch(name, place, Wish::Pass { bytes }));
                }
                Claim::Later(guests) => {
                    for &guest in &guests {
                        self.files.insert(guest, File::Leaving);
                        actions.push(Action::LetGo(guest));
                    }
                    return !guests.is_empty();
                }
                // Only files that fit wait.
                Claim::TooLarge => return false,
            }
        }
        false
    }
}

/// What has to be done so that a file is there when it is opened.
enum Need {
    Nothing,
    Fetch,
    Window { bytes: u64 },
}

impl Need {
    /// None if nothing can be done; 0 if nobody knows.
    fn bytes(&self, window: &Window) -> Option<u64> {
        match *self {
            Self::Nothing => None,
            Self::Fetch => Some(0),
            Self::Window { bytes } => window.fits(bytes).then_some(bytes),
        }
    }
}

fn need(file: Option<&File>, standing: impl FnOnce() -> Standing) -> Need {
    let passed = match file {
        None => None,
        Some(&File::Passed { bytes }) => Some(bytes),
        Some(_) => return Need::Nothing,
    };
    match (standing(), passed) {
        (Standing::HasCopy, _) => Need::Nothing,
        (Standing::Refused { bytes }, _) | (Standing::Unknown, Some(bytes)) => {
            Need::Window { bytes }
        }
        (Standing::Unknown, None) => Need::Fetch,
    }
}

#[cfg(test)]
#[path = "planner_tests.rs"]
mod tests;

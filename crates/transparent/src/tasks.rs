//! What the threads of a run are to do, in the order in which it came. Files that will be read soon go before
//! those that were read already, and these before copies that are only to be checked.

use std::collections::VecDeque;
use std::time::Duration;

use belady_data::sync::{Condvar, Mutex, lock};

use crate::catalogue::Unchecked;
use crate::order::Wish;

#[derive(Debug)]
pub enum Task {
    /// The program has opened this file at the source.
    Fetch(Box<[u8]>),
    /// The program will open this file soon.
    Ahead(Box<[u8]>, Wish),
    Check(Unchecked),
}

#[derive(Debug, Default)]
pub struct Tasks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ahead: VecDeque<(Box<[u8]>, Wish)>,
    wanted: VecDeque<Box<[u8]>>,
    unchecked: VecDeque<Unchecked>,
    closed: bool,
    /// Threads that are at something.
    busy: usize,
}

impl Tasks {
    pub fn fetch(&self, name: Box<[u8]>) {
        lock(&self.state).wanted.push_back(name);
        self.changed.notify_one();
    }

    pub fn fetch_ahead(&self, name: Box<[u8]>, wish: Wish) {
        lock(&self.state).ahead.push_back((name, wish));
        self.changed.notify_one();
    }

    pub fn check(&self, unchecked: Unchecked) {
        lock(&self.state).unchecked.push_back(unchecked);
        self.changed.notify_one();
    }

    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.ahead.clear();
        state.wanted.clear();
        state.unchecked.clear();
        self.changed.notify_all();
    }

    /// Does one task after the other until there will be none.
    pub fn work(&self, mut work: impl FnMut(Task)) {
        let mut state = lock(&self.state);
        while !state.closed {
            let next = state.ahead.pop_front().map(|(name, wish)| Task::Ahead(name, wish));
            let next = next.or_else(|| state.wanted.pop_front().map(Task::Fetch));
            let next = next.or_else(|| state.unchecked.pop_front().map(Task::Check));
            let Some(task) = next else {
                state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            };
            state.busy += 1;
            drop(state);
            work(task);
            state = lock(&self.state);
            state.busy -= 1;
            self.changed.notify_all();
        }
    }

    /// Waits until nobody is at anything, but not for long; whether that came about.
    pub fn rest(&self, patience: Duration) -> bool {
        let state = lock(&self.state);
        let waited = self.changed.wait_timeout_while(state, patience, |state| state.busy > 0);
        let (state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        state.busy == 0
    }
}

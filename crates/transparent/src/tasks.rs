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

/// Starts a thread that works, of this number.
type Hire = Box<dyn Fn(usize) + Send + Sync>;

#[derive(Default)]
pub struct Tasks {
    state: Mutex<State>,
    /// There is a task, or there will be none.
    came: Condvar,
    /// A task is done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    ahead: VecDeque<(Box<[u8]>, Wish)>,
    wanted: VecDeque<Box<[u8]>>,
    unchecked: VecDeque<Unchecked>,
    closed: bool,
    /// Threads that are at something, of those that were started.
    busy: usize,
    hired: usize,
    most: usize,
    hire: Option<Hire>,
}

impl State {
    fn take(&mut self) -> Option<Task> {
        let ahead = self.ahead.pop_front().map(|(name, wish)| Task::Ahead(name, wish));
        let wanted = ahead.or_else(|| self.wanted.pop_front().map(Task::Fetch));
        wanted.or_else(|| self.unchecked.pop_front().map(Task::Check))
    }

    fn waiting(&self) -> usize {
        self.ahead.len() + self.wanted.len() + self.unchecked.len()
    }

    /// Threads are started when there is something for them to do: a program that opens no file of the
    /// dataset need not wait for them.
    fn hire(&mut self) {
        let Some(hire) = &self.hire else { return };
        while self.hired < self.most && self.waiting() > self.hired - self.busy {
            hire(self.hired);
            self.hired += 1;
        }
    }
}

impl Tasks {
    /// From here on tasks are done, by so many threads at most.
    pub fn open(&self, most: usize, hire: impl Fn(usize) + Send + Sync + 'static) {
        let mut state = lock(&self.state);
        state.most = most;
        state.hire = Some(Box::new(hire));
        state.hire();
    }

    pub fn fetch(&self, name: Box<[u8]>) {
        self.add(|state| state.wanted.push_back(name));
    }

    pub fn fetch_ahead(&self, name: Box<[u8]>, wish: Wish) {
        self.add(|state| state.ahead.push_back((name, wish)));
    }

    pub fn check(&self, unchecked: Unchecked) {
        self.add(|state| state.unchecked.push_back(unchecked));
    }

    fn add(&self, add: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        add(&mut state);
        state.hire();
        drop(state);
        self.came.notify_one();
    }

    pub fn close(&self) {
        let mut state = lock(&self.state);
        *state = State { closed: true, busy: state.busy, ..State::default() };
        drop(state);
        self.came.notify_all();
    }

    /// Does one task after the other until there will be none.
    pub fn work(&self, mut work: impl FnMut(Task)) {
        let mut state = lock(&self.state);
        while !state.closed {
            let Some(task) = state.take() else {
                state = self.came.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            };
            state.busy += 1;
            drop(state);
            work(task);
            state = lock(&self.state);
            state.busy -= 1;
            self.done.notify_all();
        }
    }

    /// Waits until nobody is at anything, but not for long; whether that came about.
    pub fn rest(&self, patience: Duration) -> bool {
        let state = lock(&self.state);
        let waited = self.done.wait_timeout_while(state, patience, |state| state.busy > 0);
        let (state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        state.busy == 0
    }
}

impl std::fmt::Debug for Tasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Tasks")
            .field("waiting", &state.waiting())
            .field("busy", &state.busy)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn threads_come_with_tasks_and_not_more_than_asked_for() {
        let tasks = Arc::new(Tasks::default());
        let hired = Arc::new(AtomicUsize::new(0));
        let (done, wait) = mpsc::channel();
        tasks.fetch(Box::from(*b"before"));
        let (crew, count) = (Arc::downgrade(&tasks), Arc::clone(&hired));
        tasks.open(3, move |_| {
            count.fetch_add(1, SeqCst);
            let (tasks, done) = (crew.upgrade().unwrap(), done.clone());
            std::thread::spawn(move || {
                tasks.work(|task| {
                    let Task::Fetch(name) = task else { panic!("{task:?}") };
                    done.send(name).unwrap();
                });
            });
        });
        assert_eq!(&*wait.recv().unwrap(), b"before");
        assert_eq!(hired.load(SeqCst), 1);
        for number in 0..100 {
            tasks.fetch(Box::from([number]));
        }
        let mut seen: Vec<u8> = (0..100).map(|_| wait.recv().unwrap()[0]).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<u8>>());
        assert!(hired.load(SeqCst) <= 3);
        tasks.close();
        assert!(tasks.rest(Duration::from_mins(1)));
    }
}

//! The queue of the copying threads: prefetches first, then requests of the program, then copies to
//! verify.

use std::collections::VecDeque;
use std::time::Duration;

use belady_base::sync::{Condvar, Mutex, lock};

use crate::order::FetchKind;
use crate::scan::Unchecked;

/// A task of a copying thread.
#[derive(Debug)]
pub enum CopyTask {
    /// Copy a file that the program has opened at the source.
    Fetch(Box<[u8]>),
    /// Copy a file that the program will open soon.
    Ahead(Box<[u8]>, FetchKind),
    /// Verify a copy from an earlier boot.
    Verify(Unchecked),
}

/// Starts the thread of this number.
type StartThread = Box<dyn Fn(usize) + Send + Sync>;

/// The queue, and the threads that it starts.
#[derive(Default)]
pub struct TaskQueue {
    state: Mutex<QueueState>,
    /// A task was added, or the queue was closed.
    added: Condvar,
    /// A task has ended.
    done: Condvar,
}

#[derive(Default)]
struct QueueState {
    ahead: VecDeque<(Box<[u8]>, FetchKind)>,
    wanted: VecDeque<Box<[u8]>>,
    unchecked: VecDeque<Unchecked>,
    closed: bool,
    /// Threads with a task, of `started` threads, of at most `most`.
    busy: usize,
    started: usize,
    most: usize,
    start: Option<StartThread>,
}

impl QueueState {
    fn take(&mut self) -> Option<CopyTask> {
        let ahead = self.ahead.pop_front().map(|(name, kind)| CopyTask::Ahead(name, kind));
        let wanted = ahead.or_else(|| self.wanted.pop_front().map(CopyTask::Fetch));
        wanted.or_else(|| self.unchecked.pop_front().map(CopyTask::Verify))
    }

    fn waiting(&self) -> usize {
        self.ahead.len() + self.wanted.len() + self.unchecked.len()
    }

    /// Starts threads for waiting tasks. A program that opens no file of the dataset does not pay
    /// for them.
    fn start_threads(&mut self) {
        let Some(start) = &self.start else { return };
        while self.started < self.most && self.waiting() > self.started - self.busy {
            start(self.started);
            self.started += 1;
        }
    }
}

impl TaskQueue {
    /// Opens the queue for up to `most` threads.
    pub fn open(&self, most: usize, start: impl Fn(usize) + Send + Sync + 'static) {
        let mut state = lock(&self.state);
        state.most = most;
        state.start = Some(Box::new(start));
        state.start_threads();
    }

    pub fn fetch(&self, name: Box<[u8]>) {
        self.add(|state| state.wanted.push_back(name));
    }

    pub fn fetch_ahead(&self, name: Box<[u8]>, kind: FetchKind) {
        self.add(|state| state.ahead.push_back((name, kind)));
    }

    pub fn verify(&self, unchecked: Unchecked) {
        self.add(|state| state.unchecked.push_back(unchecked));
    }

    fn add(&self, add: impl FnOnce(&mut QueueState)) {
        let mut state = lock(&self.state);
        if state.closed {
            return;
        }
        add(&mut state);
        state.start_threads();
        drop(state);
        self.added.notify_one();
    }

    pub fn close(&self) {
        let mut state = lock(&self.state);
        *state = QueueState { closed: true, busy: state.busy, ..QueueState::default() };
        drop(state);
        self.added.notify_all();
    }

    /// Runs tasks until the queue is closed.
    pub fn work(&self, mut work: impl FnMut(CopyTask)) {
        let mut state = lock(&self.state);
        while !state.closed {
            let Some(task) = state.take() else {
                state = self.added.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
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

    /// Waits until no thread has a task. Returns false after `patience`.
    pub fn wait_idle(&self, patience: Duration) -> bool {
        let state = lock(&self.state);
        let waited = self.done.wait_timeout_while(state, patience, |state| state.busy > 0);
        let (state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        state.busy == 0
    }
}

impl std::fmt::Debug for TaskQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("TaskQueue")
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
    fn threads_start_with_tasks_up_to_the_limit() {
        let tasks = Arc::new(TaskQueue::default());
        let started = Arc::new(AtomicUsize::new(0));
        let (done, wait) = mpsc::channel();
        tasks.fetch(Box::from(*b"before"));
        let (queue, count) = (Arc::downgrade(&tasks), Arc::clone(&started));
        tasks.open(3, move |_| {
            count.fetch_add(1, SeqCst);
            let (tasks, done) = (queue.upgrade().unwrap(), done.clone());
            std::thread::spawn(move || {
                tasks.work(|task| {
                    let CopyTask::Fetch(name) = task else { panic!("{task:?}") };
                    done.send(name).unwrap();
                });
            });
        });
        assert_eq!(&*wait.recv().unwrap(), b"before");
        assert_eq!(started.load(SeqCst), 1);
        for number in 0..100 {
            tasks.fetch(Box::from([number]));
        }
        let mut seen: Vec<u8> = (0..100).map(|_| wait.recv().unwrap()[0]).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<u8>>());
        assert!(started.load(SeqCst) <= 3);
        tasks.close();
        assert!(tasks.wait_idle(Duration::from_mins(1)));
    }
}

//! Batches in the order in which the consumer gets them.
//!
//! The puller adds at the end while there is room; threads claim work from the first batch that
//! has any; the consumer takes the first batch when it is done. One lock guards the line. It is
//! taken a few times a batch, never for a sample.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use belady_data::sync::atomic::{AtomicBool, Ordering};
use belady_data::sync::{Arc, Condvar, Mutex, MutexGuard, lock};

use super::made::Made;
use super::work::Work;
use crate::EngineError;
use crate::loader::Next;
use crate::metrics::Metrics;

#[derive(Debug)]
pub struct Line {
    state: Mutex<State>,
    depth: usize,
    closing: AtomicBool,
    /// There is something to claim, or no more to come.
    work: Condvar,
    /// There is room, or the line is closed.
    room: Condvar,
    /// The first batch may be done.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    entries: VecDeque<Entry>,
    /// Those that have, or had a moment ago, samples to claim.
    claimable: VecDeque<Arc<Work>>,
    end: Option<End>,
}

#[derive(Debug)]
enum Entry {
    Work(Arc<Work>),
    Failed(EngineError),
}

/// Why nothing is added any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Complete,
    /// An error was told.
    Broken,
    /// One of our threads is gone, which nobody was told.
    Defect,
    /// The same, and it was told. What the thread has left will never be done.
    Told,
}

impl Line {
    pub fn new(depth: usize) -> Self {
        Self {
            state: Mutex::default(),
            depth,
            closing: AtomicBool::new(false),
            work: Condvar::new(),
            room: Condvar::new(),
            done: Condvar::new(),
        }
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Nobody waits here any more.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let _state = lock(&self.state);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.work.notify_all();
        self.room.notify_all();
        self.done.notify_all();
    }

    /// Lets go of what nobody will take.
    pub fn clear(&self) {
        let mut state = lock(&self.state);
        let (entries, claimable) =
            (std::mem::take(&mut state.entries), std::mem::take(&mut state.claimable));
        drop(state);
        drop((entries, claimable));
    }

    // The puller's side.

    /// Waits until a batch may be added; false when the line is closed.
    pub fn wait_for_room(&self) -> bool {
        let mut state = lock(&self.state);
        while state.entries.len() >= self.depth && !self.is_closing() {
            state = wait(&self.room, state);
        }
        !self.is_closing()
    }

    pub fn wait_until_closed(&self) {
        let mut state = lock(&self.state);
        while !self.is_closing() {
            state = wait(&self.room, state);
        }
    }

    pub fn add(&self, work: Work) {
        let work = Arc::new(work);
        let mut state = lock(&self.state);
        if work.is_claimable() {
            state.claimable.push_back(work.clone());
            self.work.notify_all();
        } else {
            self.done.notify_all();
        }
        state.entries.push_back(Entry::Work(work));
    }

    /// An error in the place of a batch.
    pub fn add_failure(&self, error: EngineError) {
        lock(&self.state).entries.push_back(Entry::Failed(error));
        self.done.notify_all();
    }

    /// Nothing is added any more.
    pub fn end(&self, why: End) {
        let mut state = lock(&self.state);
        state.end.get_or_insert(why);
        if why == End::Defect {
            state.end = Some(why);
        }
        drop(state);
        self.wake_all();
    }

    // The threads' side.

    /// The oldest batch with samples to claim, when there is one; `None` when there is no more.
    pub fn next_work(&self, metrics: &Metrics) -> Option<Arc<Work>> {
        let mut state = lock(&self.state);
        loop {
            if self.is_closing() {
                return None;
            }
            while state.claimable.front().is_some_and(|work| !work.is_claimable()) {
                state.claimable.pop_front();
            }
            if let Some(work) = state.claimable.front() {
                return Some(work.clone());
            }
            if state.end.is_some() {
                return None;
            }
            let began = Instant::now();
            state = wait(&self.work, state);
            metrics.transform_idle(began.elapsed());
        }
    }

    /// A batch is done: perhaps the first.
    pub fn tell_done(&self) {
        let _state = lock(&self.state);
        self.done.notify_all();
    }

    // The consumer's side.

    /// The next batch, when it is done; for ever without `until`.
    pub fn take(&self, until: Option<Instant>) -> Result<Next<Made>, EngineError> {
        let mut state = lock(&self.state);
        loop {
            if self.is_closing() {
                return Err(EngineError::Stopped);
            }
            if let Some(taken) = self.take_first(&mut state) {
                drop(state);
                return taken.map(Next::Batch);
            }
            match state.end {
                Some(End::Defect) => {
                    state.end = Some(End::Told);
                    return Err(EngineError::Defect);
                }
                Some(End::Told) => return Err(EngineError::Stopped),
                _ => {}
            }
            if state.entries.is_empty() {
                match state.end {
                    Some(End::Complete) => return Ok(Next::Ended),
                    Some(_) => return Err(EngineError::Stopped),
                    None => {}
                }
            }
            let left =
                until.map_or(Duration::MAX, |it| it.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(Next::TimedOut);
            }
            let waited = self.done.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn take_first(&self, state: &mut State) -> Option<Result<Made, EngineError>> {
        let taken = match state.entries.front()? {
            Entry::Work(work) => work.take()?,
            Entry::Failed(_) => Err(EngineError::Stopped),
        };
        let first = state.entries.pop_front();
        self.room.notify_one();
        match first {
            Some(Entry::Failed(error)) => Some(Err(error)),
            _ => Some(taken),
        }
    }

    /// What holds the first batch up, in words; `None` if there is none.
    pub fn waiting_for(&self) -> Option<String> {
        let state = lock(&self.state);
        Some(match state.entries.front()? {
            Entry::Work(work) if !work.is_done() => {
                let step = work.step();
                format!(
                    "the transform of {} of {} samples of batch {} of epoch {}",
                    work.left(),
                    work.len(),
                    step.iteration,
                    step.epoch
                )
            }
            Entry::Work(_) | Entry::Failed(_) => "the caller: the next batch is there".to_owned(),
        })
    }
}

fn wait<'a>(condition: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    condition.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Tells the consumer if the thread that has it panics.
#[derive(Debug)]
pub struct Guard<'a>(pub &'a Line);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(End::Defect);
        }
    }
}

//! The batches of a transform stage, in the order of delivery.
//!
//! The puller adds batches at the end while there is space. Threads claim samples of the first
//! batch that has any. The consumer takes the first batch when it is done. One lock guards the
//! queue; it is taken a few times a batch and thread, never for a sample.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use belady_base::sync::atomic::{AtomicBool, Ordering};
use belady_base::sync::{Arc, Condvar, Mutex, MutexGuard, lock};

use super::batch::BatchTransform;
use super::output::OutputBatch;
use crate::EngineError;
use crate::deliver::Delivery;
use crate::pool::Lateness;

/// The batches of a transform stage.
#[derive(Debug)]
pub struct TransformQueue {
    state: Mutex<TransformState>,
    depth: usize,
    closing: AtomicBool,
    /// Signals that there is space, or that the queue is closed.
    space: Condvar,
    /// Signals that the first batch may be done.
    done: Condvar,
}

#[derive(Debug, Default)]
struct TransformState {
    entries: VecDeque<QueuedBatch>,
    /// Batches that have, or had a moment ago, samples to claim.
    claimable: VecDeque<Arc<BatchTransform>>,
    end: Option<QueueEnd>,
}

#[derive(Debug)]
enum QueuedBatch {
    Work(Arc<BatchTransform>),
    Failed(EngineError),
}

/// Why no more batches are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueEnd {
    Complete,
    /// An error was reported.
    Broken,
    /// A thread has panicked; not reported yet.
    Defect,
    /// A thread has panicked; reported. The batch that it worked on will never be done.
    Reported,
}

impl TransformQueue {
    pub fn new(depth: usize) -> Self {
        Self {
            state: Mutex::default(),
            depth,
            closing: AtomicBool::new(false),
            space: Condvar::new(),
            done: Condvar::new(),
        }
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Wakes all threads that wait, for good.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let _state = lock(&self.state);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.space.notify_all();
        self.done.notify_all();
    }

    /// Drops all batches.
    pub fn clear(&self) {
        let mut state = lock(&self.state);
        let (entries, claimable) =
            (std::mem::take(&mut state.entries), std::mem::take(&mut state.claimable));
        drop(state);
        drop((entries, claimable));
    }

    /// Waits until a batch may be added; returns false when the queue is closed.
    pub fn wait_for_space(&self) -> bool {
        let mut state = lock(&self.state);
        while state.entries.len() >= self.depth && !self.is_closing() {
            state = wait(&self.space, state);
        }
        !self.is_closing()
    }

    pub fn wait_until_closed(&self) {
        let mut state = lock(&self.state);
        while !self.is_closing() {
            state = wait(&self.space, state);
        }
    }

    pub fn add(&self, work: BatchTransform) {
        let work = Arc::new(work);
        let mut state = lock(&self.state);
        if work.is_claimable() {
            state.claimable.push_back(work.clone());
        } else {
            self.done.notify_all();
        }
        state.entries.push_back(QueuedBatch::Work(work));
    }

    /// Adds an error in the place of a batch.
    pub fn add_failure(&self, error: EngineError) {
        lock(&self.state).entries.push_back(QueuedBatch::Failed(error));
        self.done.notify_all();
    }

    /// Ends the queue: no more batches are added.
    pub fn end(&self, why: QueueEnd) {
        let mut state = lock(&self.state);
        let is_reported = state.end == Some(QueueEnd::Reported);
        state.end.get_or_insert(why);
        if why == QueueEnd::Defect && !is_reported {
            state.end = Some(why);
        }
        drop(state);
        self.wake_all();
    }

    /// Returns the oldest batch with samples to claim, if there is one.
    pub fn next_work(&self) -> Option<Arc<BatchTransform>> {
        Self::first_claimable(&mut lock(&self.state)).filter(|_| !self.is_closing()).cloned()
    }

    /// Returns the oldest batch with samples to claim; none after a panic, since the consumer gets
    /// no more.
    fn first_claimable(state: &mut TransformState) -> Option<&Arc<BatchTransform>> {
        if matches!(state.end, Some(QueueEnd::Defect | QueueEnd::Reported)) {
            return None;
        }
        while state.claimable.front().is_some_and(|work| !work.is_claimable()) {
            state.claimable.pop_front();
        }
        state.claimable.front()
    }

    /// Returns how late the oldest batch is that is not done; `None` without samples to claim.
    pub fn lateness(&self) -> Option<Lateness> {
        let mut state = lock(&self.state);
        let claimable = Self::first_claimable(&mut state)?.clone();
        if self.is_closing() {
            return None;
        }
        let oldest = state.entries.iter().find_map(|entry| match entry {
            QueuedBatch::Work(work) if work.left() > 0 => Some(work),
            QueuedBatch::Work(_) | QueuedBatch::Failed(_) => None,
        });
        let oldest = oldest.unwrap_or(&claimable);
        Some(Lateness { step: Reverse(oldest.step()), left: oldest.left() })
    }

    /// Wakes the consumer: a batch is done, perhaps the first.
    pub fn signal_done(&self) {
        let _state = lock(&self.state);
        self.done.notify_all();
    }

    /// Waits for the next batch; without `until`, for ever.
    pub fn take(&self, until: Option<Instant>) -> Result<Delivery<OutputBatch>, EngineError> {
        let mut state = lock(&self.state);
        loop {
            if self.is_closing() {
                return Err(EngineError::Stopped);
            }
            if let Some(taken) = self.take_first(&mut state) {
                drop(state);
                return taken.map(Delivery::Batch);
            }
            match state.end {
                Some(QueueEnd::Defect) => {
                    state.end = Some(QueueEnd::Reported);
                    return Err(EngineError::Defect);
                }
                Some(QueueEnd::Reported) => return Err(EngineError::Stopped),
                _ => {}
            }
            if state.entries.is_empty() {
                match state.end {
                    Some(QueueEnd::Complete) => return Ok(Delivery::Ended),
                    Some(_) => return Err(EngineError::Stopped),
                    None => {}
                }
            }
            let left =
                until.map_or(Duration::MAX, |it| it.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(Delivery::TimedOut);
            }
            let waited = self.done.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn take_first(&self, state: &mut TransformState) -> Option<Result<OutputBatch, EngineError>> {
        let taken = match state.entries.front()? {
            QueuedBatch::Work(work) => work.take()?,
            QueuedBatch::Failed(_) => Err(EngineError::Stopped),
        };
        let first = state.entries.pop_front();
        self.space.notify_one();
        match first {
            Some(QueuedBatch::Failed(error)) => Some(Err(error)),
            _ => Some(taken),
        }
    }

    /// Returns what the first batch waits for, in words; `None` if there is none.
    pub fn waiting_for(&self) -> Option<String> {
        let state = lock(&self.state);
        Some(match state.entries.front()? {
            QueuedBatch::Work(work) if !work.is_done() => {
                let step = work.step();
                format!(
                    "the transform of {} of {} samples of batch {} of epoch {}",
                    work.left(),
                    work.len(),
                    step.iteration,
                    step.epoch
                )
            }
            QueuedBatch::Work(_) | QueuedBatch::Failed(_) => {
                "the caller: the next batch is ready".to_owned()
            }
        })
    }
}

fn wait<'a>(
    condition: &Condvar,
    state: MutexGuard<'a, TransformState>,
) -> MutexGuard<'a, TransformState> {
    condition.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Reports a panic of its thread to the consumer.
#[derive(Debug)]
pub struct DefectGuard<'a>(pub &'a TransformQueue);

impl Drop for DefectGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(QueueEnd::Defect);
        }
    }
}

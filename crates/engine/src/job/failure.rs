//! Why a job cannot go on, and whether it is stopping.

use std::sync::atomic::{AtomicBool, Ordering};

use belady_base::sync::{Mutex, lock};

use crate::EngineError;

/// The failure of a job, reported to the consumer once.
#[derive(Debug, Default)]
pub struct Failures {
    state: Mutex<FailureState>,
    stopping: AtomicBool,
}

#[derive(Debug, Default)]
enum FailureState {
    #[default]
    None,
    Fatal(EngineError),
    /// The batches that were planned are delivered first.
    AfterPlanned(EngineError),
    Reported,
}

impl Failures {
    /// Records an error that no later batch can get around.
    pub fn fatal(&self, error: EngineError) {
        let mut state = lock(&self.state);
        if matches!(*state, FailureState::None | FailureState::AfterPlanned(_)) {
            *state = FailureState::Fatal(error);
        }
    }

    /// Records an error that follows the batches that were planned.
    pub fn after_planned(&self, error: EngineError) {
        let mut state = lock(&self.state);
        if matches!(*state, FailureState::None) {
            *state = FailureState::AfterPlanned(error);
        }
    }

    /// Returns the failure that is due: in full the first time, then [`EngineError::Stopped`].
    /// `all_delivered` says that the consumer has all batches that were planned.
    pub fn due(&self, all_delivered: bool) -> Option<EngineError> {
        let mut state = lock(&self.state);
        match std::mem::replace(&mut *state, FailureState::Reported) {
            FailureState::Fatal(error) => Some(error),
            FailureState::AfterPlanned(error) if all_delivered => Some(error),
            FailureState::Reported => Some(EngineError::Stopped),
            not_due @ (FailureState::None | FailureState::AfterPlanned(_)) => {
                *state = not_due;
                None
            }
        }
    }

    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

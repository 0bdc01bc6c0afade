//! A thread's heartbeat, which distinguishes a call that makes progress from a call that hangs.
//!
//! A thread that reads a large file from end to end beats after every piece. The engine's watchdog,
//! which abandons calls that take too long, counts from the last beat.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static BEATS: Arc<AtomicU64> = Arc::default();
}

/// The beats of one thread, as other threads see them.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Returns the calling thread's heartbeat.
    pub fn of_this_thread() -> Self {
        Self(BEATS.with(Arc::clone))
    }

    /// Returns the number of beats so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Beats once, for the calling thread.
pub fn beat() {
    BEATS.with(|beats| beats.fetch_add(1, Ordering::Relaxed));
}

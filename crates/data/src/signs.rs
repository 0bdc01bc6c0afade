//! Signs of life of a thread: a call that takes long because it reads much is no call that hangs.
//!
//! A thread that reads a large file from end to end gives a sign after every piece. The engine, which
//! gives up calls that take too long, counts from the last sign.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static SIGNS: Arc<AtomicU64> = Arc::default();
}

/// The signs of one thread, as other threads see them.
#[derive(Clone, Debug)]
pub struct Signs(Arc<AtomicU64>);

impl Signs {
    pub fn of_this_thread() -> Self {
        Self(SIGNS.with(Arc::clone))
    }

    /// How many there were so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Gives a sign.
pub fn give() {
    SIGNS.with(|signs| signs.fetch_add(1, Ordering::Relaxed));
}

//! An event count: one side sleeps on it until the other side has changed a condition.
//!
//! The sleeper registers, checks its condition again and sleeps. The other side changes the
//! condition and then looks for sleepers. Sequentially consistent fences order these steps, so at
//! least one side sees the other and no wake-up is lost. Without a sleeper a notification costs one
//! fence.

use std::time::Instant;

use belady_base::sync::atomic::{AtomicU32, Ordering::SeqCst, fence};
use belady_base::sync::{Futex, SPINS};

#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct EventCount {
    futex: Futex,
    sleepers: AtomicU32,
}

impl EventCount {
    /// Waits until `ready` holds or the deadline has passed, and returns whether it holds.
    pub fn wait(&self, deadline: Instant, ready: impl Fn() -> bool) -> bool {
        for _ in 0..SPINS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        loop {
            let seen = self.futex.load();
            self.sleepers.fetch_add(1, SeqCst);
            fence(SeqCst);
            let woken = ready() || {
                let left = deadline.saturating_duration_since(Instant::now());
                self.futex.wait(seen, left)
            };
            self.sleepers.fetch_sub(1, SeqCst);
            if ready() {
                return true;
            }
            if !woken {
                return false;
            }
        }
    }

    /// Wakes all sleepers. The caller has changed the condition before.
    pub fn notify(&self) {
        fence(SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            self.futex.wake();
        }
    }
}

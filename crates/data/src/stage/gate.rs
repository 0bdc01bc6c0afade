//! A gate: where one side sleeps until the other has changed something.
//!
//! The sleeper announces itself, looks at its condition once more, then sleeps; the other
//! side changes the condition, then looks whether someone sleeps. Whichever order these
//! come in, one of the two sees the other. Nobody asleep costs a notifier one fence.

use std::time::Instant;

use crate::sync::atomic::{AtomicU32, Ordering::SeqCst, fence};
use crate::sync::{Futex, SPINS};

#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Gate {
    futex: Futex,
    sleepers: AtomicU32,
}

impl Gate {
    /// Waits until `open` holds or the time has come; whether it holds.
    pub fn wait(&self, until: Instant, open: impl Fn() -> bool) -> bool {
        for _ in 0..SPINS {
            if open() {
                return true;
            }
            std::hint::spin_loop();
        }
        loop {
            let seen = self.futex.load();
            self.sleepers.fetch_add(1, SeqCst);
            fence(SeqCst);
            let woken = open() || {
                let left = until.saturating_duration_since(Instant::now());
                self.futex.wait(seen, left)
            };
            self.sleepers.fetch_sub(1, SeqCst);
            if open() {
                return true;
            }
            if !woken {
                return false;
            }
        }
    }

    /// To be called after the change that may open the gate.
    pub fn notify(&self) {
        fence(SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            self.futex.wake();
        }
    }
}

//! Polls whether the process on the other side of a ring still lives.
//!
//! A side that ends in order says so in the header. A killed process cannot, so the waiting side
//! checks the other one's [`ProcessIdentity`] once in an interval.

use std::time::{Duration, Instant};

use super::process::ProcessIdentity;

/// A killed process is noticed within this time.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Checks the other side at most once in [`CHECK_INTERVAL`], however short the waits are.
#[derive(Debug)]
pub struct LivenessCheck {
    next: Instant,
    dead: bool,
}

impl LivenessCheck {
    pub fn new() -> Self {
        Self { next: Instant::now() + CHECK_INTERVAL, dead: false }
    }

    pub fn is_dead(&mut self, other: &ProcessIdentity) -> bool {
        let now = Instant::now();
        if !self.dead && now >= self.next {
            self.next = now + CHECK_INTERVAL;
            self.dead = other.is_dead();
        }
        self.dead
    }
}

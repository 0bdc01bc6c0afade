//! The schedule of log messages about a wait: after a few seconds, then less and less often.

use std::time::{Duration, Instant};

/// The processes of a healthy job usually start within this time of each other.
const FIRST: Duration = Duration::from_secs(5);
/// The longest time between two messages.
const LONGEST: Duration = Duration::from_mins(5);

/// A wait, and when the next message is due.
#[derive(Clone, Copy, Debug)]
pub struct WaitMessages {
    began: Instant,
    due: Instant,
}

impl WaitMessages {
    pub fn new(now: Instant) -> Self {
        Self { began: now, due: now + FIRST }
    }

    /// Returns how long to wait before the next check, in a wait that ends at `until`.
    pub fn pause(&self, now: Instant, until: Instant) -> Duration {
        self.due.min(until).saturating_duration_since(now)
    }

    /// Returns how long the wait has lasted, if a message is due. The time to the next one doubles.
    pub fn is_due(&mut self, now: Instant) -> Option<Duration> {
        if now < self.due {
            return None;
        }
        let waited = now - self.began;
        self.due = now + waited.min(LONGEST);
        Some(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_logged_within_seconds_and_then_less_and_less_often() {
        let start = Instant::now();
        let mut wait_messages = WaitMessages::new(start);
        let at = |seconds| start + Duration::from_secs(seconds);
        let told = (0..3600).filter(|&second| wait_messages.is_due(at(second)).is_some());
        let told: Vec<u64> = told.collect();
        assert_eq!(told[..7], [5, 10, 20, 40, 80, 160, 320]);
        assert!(told[7..].windows(2).all(|pair| pair[1] - pair[0] == 300), "{told:?}");
        assert_eq!(wait_messages.pause(at(3600), at(3601)), Duration::from_secs(1));
    }
}

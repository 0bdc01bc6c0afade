//! A rate-limited log of refused connections: a port scan would fill a log otherwise.

use std::time::{Duration, Instant};

use belady_base::sync::{Mutex, lock};

/// The shortest interval between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// Logs refused connections, at most one line in ten seconds.
#[derive(Debug, Default)]
pub struct RateLimitedLog(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    told: Option<Instant>,
    held_back: u64,
}

impl LogState {
    /// Returns how many events before this one were not logged, if a line is due.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now.duration_since(told) < EVERY) {
            self.held_back += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

impl RateLimitedLog {
    /// Logs a refused connection.
    pub fn refused(&self, from: &str, why: &dyn std::fmt::Display) {
        match lock(&self.0).due(Instant::now()) {
            Some(0) => tracing::warn!("connection from {from} was refused: {why}"),
            Some(more) => {
                tracing::warn!("connection from {from} was refused, and {more} before: {why}");
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_connections_are_logged_at_most_every_ten_seconds_with_a_count() {
        let (mut state, start) = (LogState::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(state.due(at(0)), Some(0));
        let told = (0..1000).filter(|_| state.due(at(9)).is_some());
        assert_eq!(told.count(), 0);
        assert_eq!(state.due(at(10)), Some(1000));
        assert_eq!(state.due(at(20)), Some(0));
    }
}

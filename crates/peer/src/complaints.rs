//! Few lines about those who knock without a key: a scan of ports would fill a log.

use std::time::{Duration, Instant};

use belady_data::sync::{Mutex, lock};

/// One line in so long.
const EVERY: Duration = Duration::from_secs(10);

/// Refused connections, of which some are told.
#[derive(Debug, Default)]
pub struct Complaints(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    told: Option<Instant>,
    held_back: u64,
}

impl State {
    /// Whether a line is due, and of how many before it nothing was told.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now.duration_since(told) < EVERY) {
            self.held_back += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.held_back))
    }
}

impl Complaints {
    /// A connection was refused.
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
    fn a_scan_of_ports_is_a_line_now_and_then_with_a_count() {
        let (mut state, start) = (State::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(state.due(at(0)), Some(0));
        let told = (0..1000).filter(|_| state.due(at(9)).is_some());
        assert_eq!(told.count(), 0);
        assert_eq!(state.due(at(10)), Some(1000));
        assert_eq!(state.due(at(20)), Some(0));
    }
}

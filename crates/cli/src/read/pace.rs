//! A model of training: each batch is computed on for bytes / rate seconds.
//!
//! The consumer is free again at a deadline, and the next batch's computing starts there, or
//! later by the time that it was waited for. Sleeping past a deadline is thus not added up:
//! over a run, time is the sum of computing and waiting, whatever the clock's ticks are.

use std::time::{Duration, Instant};

use belady_control::model::Rate;

/// Time that may be made up for: some late wake-ups, but not a stop of the whole machine,
/// after which the consumer would rush through batches faster than it could compute.
const MOST_LATE: Duration = Duration::from_millis(10);

/// Says until when each batch is computed on. Time is passed in.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rate: Rate,
    /// When the consumer was free again.
    free: Option<Instant>,
}

impl Pace {
    pub fn new(rate: Rate) -> Self {
        Self { rate, free: None }
    }

    /// A batch of so many bytes was asked for and had at these times: when its computing
    /// ends.
    pub fn until(&mut self, bytes: u64, asked: Instant, had: Instant) -> Instant {
        let computing = Duration::from_secs_f64(bytes as f64 / self.rate.0);
        let waited = had - asked;
        let oldest = asked.checked_sub(MOST_LATE).unwrap_or(asked);
        let free = self.free.unwrap_or(asked).max(oldest);
        let end = free + waited + computing;
        self.free = Some(end);
        end
    }

    /// Others have held the consumer up until now: that is not made up for.
    pub fn held_until(&mut self, now: Instant) {
        self.free = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pace() -> Pace {
        // A kilobyte a millisecond.
        Pace::new(Rate(1e6))
    }

    #[test]
    fn late_wake_ups_do_not_add_up() {
        let (mut pace, start) = (pace(), Instant::now());
        let mut now = start;
        for _ in 0..1000 {
            let end = pace.until(2000, now, now);
            // Each sleep ends 60 microseconds late.
            now = end.max(now) + Duration::from_micros(60);
        }
        assert_eq!(now - start, 2 * MS * 1000 + Duration::from_micros(60));
    }

    #[test]
    fn waiting_delays_all_that_follows() {
        let (mut pace, start) = (pace(), Instant::now());
        let first = pace.until(3000, start, start + 5 * MS);
        assert_eq!(first - start, 8 * MS);
        let second = pace.until(1000, first, first + 2 * MS);
        assert_eq!(second - start, 11 * MS);
    }

    #[test]
    fn a_step_that_others_end_later_begins_the_next_one_then() {
        let (mut pace, start) = (pace(), Instant::now());
        let end = pace.until(3000, start, start);
        let all = end + 4 * MS;
        pace.held_until(all);
        assert_eq!(pace.until(1000, all + MS / 2, all + MS / 2) - all, MS);
    }

    #[test]
    fn a_long_stop_is_not_made_up_for() {
        let (mut pace, start) = (pace(), Instant::now());
        let first = pace.until(1000, start, start);
        let later = first + 1000 * MS;
        assert_eq!(pace.until(1000, later, later) + MOST_LATE, later + MS);
    }
}

//! A model of training: computing on a batch takes bytes / rate seconds.
//!
//! Computing on a batch starts at the deadline of the one before, plus the time spent waiting for
//! the batch. Late wake-ups therefore do not accumulate: a run takes the sum of computing and
//! waiting, whatever the resolution of the clock.

use std::time::{Duration, Instant};

use belady_control::model::Rate;

/// The delay that the consumer can make up for. It covers late wake-ups, but not a stop of the
/// whole machine, after which batches would be consumed faster than they could be computed on.
const MOST_LATE: Duration = Duration::from_millis(10);

/// Computes when each batch's computing ends. The caller passes the time.
#[derive(Clone, Copy, Debug)]
pub struct ComputeModel {
    rate: Rate,
    /// When the last batch's computing ended.
    free: Option<Instant>,
}

impl ComputeModel {
    /// Makes a model that computes at this rate.
    pub fn new(rate: Rate) -> Self {
        Self { rate, free: None }
    }

    /// Returns how long computing takes.
    fn time(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.rate.0)
    }

    /// Returns when computing ends on a batch that was requested at `asked` and received at `had`.
    pub fn until(&mut self, bytes: u64, asked: Instant, had: Instant) -> Instant {
        let computing = self.time(bytes);
        let waited = had - asked;
        let oldest = asked.checked_sub(MOST_LATE).unwrap_or(asked);
        let free = self.free.unwrap_or(asked).max(oldest);
        let end = free + waited + computing;
        self.free = Some(end);
        end
    }

    /// Notes that other ranks delayed the consumer until now. This delay is not made up for.
    pub fn held_until(&mut self, now: Instant) {
        self.free = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn compute() -> ComputeModel {
        // One kilobyte per millisecond.
        ComputeModel::new(Rate(1e6))
    }

    #[test]
    fn late_wake_ups_do_not_accumulate() {
        let (mut compute, start) = (compute(), Instant::now());
        let mut now = start;
        for _ in 0..1000 {
            let end = compute.until(2000, now, now);
            // Each sleep ends 60 microseconds late.
            now = end.max(now) + Duration::from_micros(60);
        }
        assert_eq!(now - start, 2 * MS * 1000 + Duration::from_micros(60));
    }

    #[test]
    fn waiting_for_a_batch_delays_all_that_follow() {
        let (mut compute, start) = (compute(), Instant::now());
        let first = compute.until(3000, start, start + 5 * MS);
        assert_eq!(first - start, 8 * MS);
        let second = compute.until(1000, first, first + 2 * MS);
        assert_eq!(second - start, 11 * MS);
    }

    #[test]
    fn the_next_step_begins_when_all_ranks_have_ended_the_last() {
        let (mut compute, start) = (compute(), Instant::now());
        let end = compute.until(3000, start, start);
        let all = end + 4 * MS;
        compute.held_until(all);
        assert_eq!(compute.until(1000, all + MS / 2, all + MS / 2) - all, MS);
    }

    #[test]
    fn a_long_stop_is_not_made_up_for() {
        let (mut compute, start) = (compute(), Instant::now());
        let first = compute.until(1000, start, start);
        let later = first + 1000 * MS;
        assert_eq!(compute.until(1000, later, later) + MOST_LATE, later + MS);
    }
}

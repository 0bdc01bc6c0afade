//! Joins threads that may be stuck.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval of checks on a thread that has not ended.
const LOOK: Duration = Duration::from_millis(1);

/// Waits for threads to end, at most `limit` in total; returns how many have not.
pub fn join_within(threads: impl IntoIterator<Item = JoinHandle<()>>, limit: Duration) -> usize {
    let until = Instant::now() + limit;
    let mut left = 0;
    for thread in threads {
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        if thread.is_finished() {
            // A thread that panicked has reported it.
            let _ = thread.join();
        } else {
            left += 1;
        }
    }
    left
}

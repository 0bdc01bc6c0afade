//! Warns while the storage does not answer a listing: a dead file server returns not even an error.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::counters::OperationCounters;

/// Even a busy file server answers within this time. Indexing a large file may take longer.
const SILENCE: Duration = Duration::from_secs(30);

/// Runs work that calls on the storage at `path`, and warns repeatedly in the log while no call
/// ends.
pub(super) fn while_listing<R>(
    path: &Path,
    counters: &OperationCounters,
    work: impl FnOnce() -> R,
) -> R {
    let warn = |silent: Duration| {
        let seconds = silent.as_secs();
        let path = path.display();
        tracing::warn!(
            "still listing {path}: no answer for {seconds} s; indexing a large file takes long, \
             and storage that is gone never answers: check it"
        );
    };
    watched(counters, SILENCE, warn, work)
}

/// Calls `warn` with the time since a call was last counted, once per `silence` without one.
fn watched<R>(
    counters: &OperationCounters,
    silence: Duration,
    warn: impl Fn(Duration) + Send,
    work: impl FnOnce() -> R,
) -> R {
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = move || {
            let (mut seen, mut since) = (counters.totals(), Instant::now());
            while is_done.recv_timeout(silence) == Err(RecvTimeoutError::Timeout) {
                let now = counters.totals();
                if now == seen {
                    warn(since.elapsed());
                } else {
                    (seen, since) = (now, Instant::now());
                }
            }
        };
        // Without a thread for warnings the work is done all the same.
        let _ = std::thread::Builder::new().name("belady-wait".into()).spawn_scoped(scope, watch);
        let outcome = work();
        drop(done);
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(5);

    #[test]
    fn a_stall_is_warned_of_repeatedly() {
        let counters = OperationCounters::default();
        let (warn, warned) = mpsc::channel();
        let warn = move |silent| warn.send(silent).unwrap();
        let first_two = watched(&counters, SHORT, warn, || {
            counters.listed();
            [warned.recv().unwrap(), warned.recv().unwrap()]
        });
        assert!(first_two[0] < first_two[1]);
    }

    #[test]
    fn work_that_ends_in_time_is_not_warned_of() {
        let counters = OperationCounters::default();
        let warn = |_| panic!("the work ended in time");
        assert_eq!(watched(&counters, Duration::from_mins(10), warn, || 7), 7);
    }
}

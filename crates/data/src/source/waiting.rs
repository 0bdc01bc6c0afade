//! Saying that one waits: a dead file server answers nothing, not even with an error, and a
//! program that lists it must not look as if it had nothing to say.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::counters::Counters;

/// Even a busy file server answers within this. A large file may take longer to be indexed.
const SILENCE: Duration = Duration::from_secs(30);

/// Does work that calls on the storage at `path`, and tells in the log when none of these calls
/// has ended for a while, again and again.
pub(super) fn while_listing<R>(path: &Path, counters: &Counters, work: impl FnOnce() -> R) -> R {
    let tell = |silent: Duration| {
        let seconds = silent.as_secs();
        let path = path.display();
        tracing::warn!(
            "still listing {path}: no answer for {seconds} s; a large file takes its time, and \
             storage that is gone never answers"
        );
    };
    watched(counters, SILENCE, tell, work)
}

/// Tells how long nothing was counted, whenever that is another `silence`.
fn watched<R>(
    counters: &Counters,
    silence: Duration,
    tell: impl Fn(Duration) + Send,
    work: impl FnOnce() -> R,
) -> R {
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watch = move || {
            let (mut seen, mut since) = (counters.so_far(), Instant::now());
            while is_done.recv_timeout(silence) == Err(RecvTimeoutError::Timeout) {
                let now = counters.so_far();
                if now == seen {
                    tell(since.elapsed());
                } else {
                    (seen, since) = (now, Instant::now());
                }
            }
        };
        // Where no thread can be had, the work is done all the same.
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
    fn storage_that_does_not_answer_is_told_of_again_and_again() {
        let counters = Counters::default();
        let (told, heard) = mpsc::channel();
        let tell = move |silent| told.send(silent).unwrap();
        let first_two = watched(&counters, SHORT, tell, || {
            counters.listed();
            [heard.recv().unwrap(), heard.recv().unwrap()]
        });
        assert!(first_two[0] < first_two[1]);
    }

    #[test]
    fn nothing_is_said_when_the_work_is_done_in_time() {
        let counters = Counters::default();
        let tell = |_| panic!("there was nothing to say");
        assert_eq!(watched(&counters, Duration::from_mins(10), tell, || 7), 7);
    }
}

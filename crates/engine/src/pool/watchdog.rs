//! Watched calls: each either ends or is given up, and both sides agree which.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use belady_base::heartbeat::Heartbeat;
use belady_base::sync::{Arc, Mutex, lock};

use super::task_share::TaskShare;

const RUNNING: u8 = 0;
const DONE: u8 = 1;
const GIVEN_UP: u8 = 2;

/// A thread's watched call.
pub type WatchPost = Mutex<Option<Arc<WatchedCall>>>;

/// The hung threads when a call is given up.
#[derive(Clone, Copy, Debug)]
pub struct Hung {
    pub threads: u32,
    /// No fresh thread was started, since too many hang.
    pub too_many: bool,
}

/// The end of a watched call.
#[derive(Debug)]
pub enum Watched<T> {
    InTime(T),
    /// It was given up, and its result is dropped.
    TooLate,
}

type OnTimeout = Box<dyn FnOnce(Hung) + Send>;

/// A call that may hang.
pub struct WatchedCall {
    pub share: TaskShare,
    state: AtomicU8,
    heartbeat: Heartbeat,
    /// The time of the last heartbeat, and the number of heartbeats by then.
    silent: Mutex<(Instant, u64)>,
    on_timeout: Mutex<Option<OnTimeout>>,
}

impl WatchedCall {
    /// Watches a call that this thread is about to make.
    pub fn new(share: TaskShare, on_timeout: OnTimeout) -> Self {
        let heartbeat = Heartbeat::of_this_thread();
        let silent = Mutex::new((Instant::now(), heartbeat.count()));
        Self {
            share,
            state: AtomicU8::new(RUNNING),
            heartbeat,
            silent,
            on_timeout: Mutex::new(Some(on_timeout)),
        }
    }

    fn decide(&self, outcome: u8) -> bool {
        let decided =
            self.state.compare_exchange(RUNNING, outcome, Ordering::AcqRel, Ordering::Acquire);
        decided.map_or_else(|already| already == outcome, |_| true)
    }

    /// Ends the call; returns whether it was in time.
    pub fn end(&self) -> bool {
        self.decide(DONE)
    }

    /// Gives up the call; returns whether it has not ended.
    pub fn give_up(&self) -> bool {
        self.state.compare_exchange(RUNNING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns the time since the last heartbeat.
    fn silence(&self, now: Instant) -> Duration {
        let mut silent = lock(&self.silent);
        let count = self.heartbeat.count();
        if count != silent.1 {
            *silent = (now, count);
        }
        now.saturating_duration_since(silent.0)
    }

    pub fn take_callback(&self) -> Option<OnTimeout> {
        lock(&self.on_timeout).take()
    }
}

/// Returns a thread's watched call, if there was no heartbeat for `limit`.
pub fn late_call(post: &WatchPost, now: Instant, limit: Duration) -> Option<Arc<WatchedCall>> {
    let watch = lock(post);
    let watch = watch.as_ref()?;
    let late = watch.silence(now) > limit;
    (late && watch.state.load(Ordering::Acquire) == RUNNING).then(|| watch.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_with_heartbeats_is_not_given_up_however_long_it_takes() {
        let limit = Duration::from_secs(30);
        let post: WatchPost =
            Mutex::new(Some(Arc::new(WatchedCall::new(TaskShare::default(), Box::new(|_| ())))));
        let mut now = Instant::now();
        for _ in 0..10 {
            now += 2 * limit;
            belady_base::heartbeat::beat();
            assert!(late_call(&post, now, limit).is_none());
        }
        assert!(late_call(&post, now + limit, limit).is_none());
        assert!(late_call(&post, now + limit + Duration::from_millis(1), limit).is_some());
    }
}

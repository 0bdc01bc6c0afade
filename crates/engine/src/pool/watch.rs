//! Something under watch: either it ends, or it is given up, and both sides agree which.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use belady_data::signs::Signs;
use belady_data::sync::{Arc, Mutex, lock};

const RUNNING: u8 = 0;
const DONE: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Where a thread leaves word of what it has under watch.
pub type Post = Mutex<Option<Arc<Watch>>>;

/// How many threads hang when a read is given up.
#[derive(Clone, Copy, Debug)]
pub struct Hung {
    pub threads: u32,
    /// There are too many: no fresh thread was started.
    pub too_many: bool,
}

/// How something under watch ended.
#[derive(Debug)]
pub enum Watched<T> {
    InTime(T),
    /// It was given up: its result is nobody's business any more.
    TooLate,
}

type OnTimeout = Box<dyn FnOnce(Hung) + Send>;

pub struct Watch {
    pub lane: u64,
    pub background: bool,
    state: AtomicU8,
    signs: Signs,
    /// Since when there was no sign, and how many there were by then.
    silent: Mutex<(Instant, u64)>,
    on_timeout: Mutex<Option<OnTimeout>>,
}

impl Watch {
    /// Of something that this thread is about to do.
    pub fn new(lane: u64, background: bool, on_timeout: OnTimeout) -> Self {
        let signs = Signs::of_this_thread();
        let silent = Mutex::new((Instant::now(), signs.count()));
        Self {
            lane,
            background,
            state: AtomicU8::new(RUNNING),
            signs,
            silent,
            on_timeout: Mutex::new(Some(on_timeout)),
        }
    }

    fn decide(&self, outcome: u8) -> bool {
        let decided =
            self.state.compare_exchange(RUNNING, outcome, Ordering::AcqRel, Ordering::Acquire);
        decided.map_or_else(|already| already == outcome, |_| true)
    }

    /// Whether it ended in time.
    pub fn end(&self) -> bool {
        self.decide(DONE)
    }

    /// Whether it did not.
    pub fn give_up(&self) -> bool {
        self.state.compare_exchange(RUNNING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// How long there was no sign of life.
    fn silence(&self, now: Instant) -> Duration {
        let mut silent = lock(&self.silent);
        let count = self.signs.count();
        if count != silent.1 {
            *silent = (now, count);
        }
        now.saturating_duration_since(silent.0)
    }

    pub fn take_callback(&self) -> Option<OnTimeout> {
        lock(&self.on_timeout).take()
    }
}

/// What a thread has under watch, if it has given no sign of life for `limit`.
pub fn late(post: &Post, now: Instant, limit: Duration) -> Option<Arc<Watch>> {
    let watch = lock(post);
    let watch = watch.as_ref()?;
    let late = watch.silence(now) > limit;
    (late && watch.state.load(Ordering::Acquire) == RUNNING).then(|| watch.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gives_signs_of_life_is_not_given_up_however_long_it_takes() {
        let limit = Duration::from_secs(30);
        let post: Post = Mutex::new(Some(Arc::new(Watch::new(0, false, Box::new(|_| ())))));
        let mut now = Instant::now();
        for _ in 0..10 {
            now += 2 * limit;
            belady_data::signs::give();
            assert!(late(&post, now, limit).is_none());
        }
        assert!(late(&post, now + limit, limit).is_none());
        assert!(late(&post, now + limit + Duration::from_millis(1), limit).is_some());
    }
}

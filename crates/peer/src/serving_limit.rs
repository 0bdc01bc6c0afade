//! Limits how many requests for samples a node handles at once.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};

use belady_base::sync::{Condvar, Mutex, MutexGuard, lock};

/// Lets so many requests be handled at once, and makes others wait. Without a limit it takes no
/// lock.
#[derive(Debug, Default)]
pub struct ServingLimit {
    /// 0 for none.
    limit: AtomicU32,
    requests: Mutex<Requests>,
    /// A request was handled, or the limit was changed.
    freed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Requests {
    handled: u32,
    waiting: u32,
}

/// A request that is being handled.
#[derive(Debug)]
#[must_use = "the request counts as handled while this exists"]
pub struct ServingTurn<'a>(Option<&'a ServingLimit>);

impl ServingLimit {
    /// Sets the limit; `None` for none.
    pub fn set(&self, limit: Option<u32>) {
        self.limit.store(limit.unwrap_or(0), Ordering::Release);
        let _requests = lock(&self.requests);
        self.freed.notify_all();
    }

    /// Returns the limit.
    pub fn get(&self) -> Option<u32> {
        Some(self.limit.load(Ordering::Acquire)).filter(|&limit| limit > 0)
    }

    /// Waits until the request may be handled.
    pub fn begin(&self) -> ServingTurn<'_> {
        if self.get().is_none() {
            return ServingTurn(None);
        }
        let mut requests = lock(&self.requests);
        requests.waiting += 1;
        while self.get().is_some_and(|limit| requests.handled >= limit) {
            requests = self.wait(requests);
        }
        requests.waiting -= 1;
        requests.handled += 1;
        ServingTurn(Some(self))
    }

    fn wait<'a>(&self, requests: MutexGuard<'a, Requests>) -> MutexGuard<'a, Requests> {
        self.freed.wait(requests).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ServingTurn<'_> {
    fn drop(&mut self) {
        if let Some(limit) = self.0 {
            lock(&limit.requests).handled -= 1;
            limit.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Waits until so many requests are handled and wait: one that waits takes its turn some time
    /// after another has ended. There are never more than `most` handled.
    fn wait_for(limit: &ServingLimit, most: u32, wanted: Requests) {
        loop {
            let now = *lock(&limit.requests);
            if now == wanted {
                return;
            }
            assert!(now.handled <= most, "{now:?} on the way to {wanted:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn no_more_requests_than_the_limit_are_handled_at_once() {
        for most in [1, 2, 5] {
            let limit = Arc::new(ServingLimit::default());
            limit.set(Some(most));
            let (go_on, may_end) = channel::<()>();
            let may_end = Arc::new(Mutex::new(may_end));
            let requests: Vec<_> = (0..8)
                .map(|_| {
                    let (limit, may_end) = (limit.clone(), may_end.clone());
                    thread::spawn(move || {
                        let _turn = limit.begin();
                        lock(&may_end).recv().unwrap();
                    })
                })
                .collect();
            for left in (1..=8).rev() {
                let handled = most.min(left);
                wait_for(&limit, most, Requests { handled, waiting: left - handled });
                go_on.send(()).unwrap();
            }
            for request in requests {
                request.join().unwrap();
            }
            assert_eq!(*lock(&limit.requests), Requests::default());
        }
    }

    #[test]
    fn a_limit_that_is_lifted_lets_all_go_on() {
        let limit = Arc::new(ServingLimit::default());
        limit.set(Some(1));
        let first = limit.begin();
        let other = limit.clone();
        let second = thread::spawn(move || drop(other.begin()));
        wait_for(&limit, 1, Requests { handled: 1, waiting: 1 });
        limit.set(None);
        second.join().unwrap();
        drop(first);
        assert_eq!(*lock(&limit.requests), Requests::default());
    }
}

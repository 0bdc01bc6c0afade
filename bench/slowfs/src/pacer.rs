//! Runs the link in real time: an answer is sent when the link has served the read.
//!
//! A worker admits a read, reads its bytes from the backing file while the link serves it, and
//! hands the answer over. One thread sleeps until the next event and sends answers; a worker whose
//! read has been served by then sends the answer itself.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::link::{Link, LinkConfig, Ticket};

/// Sends the reply.
pub type Answer = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub struct Pacer {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    start: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    link: Link,
    reads: HashMap<Ticket, Progress>,
    /// When the thread wakes by itself; a read that ends sooner has to wake it.
    alarm: f64,
    closed: bool,
}

enum Progress {
    /// Neither are the bytes here nor is the service over.
    Open,
    /// The bytes are here.
    Fetched(Answer),
    /// The service is over.
    Served,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("link", &self.link).finish_non_exhaustive()
    }
}

impl Pacer {
    pub fn start(config: LinkConfig) -> std::io::Result<Self> {
        let state = State {
            link: Link::new(config),
            reads: HashMap::new(),
            alarm: f64::INFINITY,
            closed: false,
        };
        let shared = Arc::new(Shared {
            start: Instant::now(),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new().name("pacer".into()).spawn(move || worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns what changes the link's speed.
    pub fn dial(&self) -> SpeedDial {
        SpeedDial(Arc::clone(&self.shared))
    }

    /// Admits a read of `bytes` that has just arrived.
    pub fn admit(&self, bytes: u64) -> Ticket {
        let mut state = self.shared.lock();
        // The time is taken under the lock: the link's time only moves forward.
        let ticket = state.link.arrive(self.shared.now(), bytes);
        state.reads.insert(ticket, Progress::Open);
        if state.link.next_event().is_some_and(|at| at < state.alarm) {
            self.shared.changed.notify_one();
        }
        ticket
    }

    /// Calls `answer` as soon as the read has been served.
    pub fn answer(&self, ticket: Ticket, answer: Answer) {
        let mut state = self.shared.lock();
        if let Some(Progress::Served) = state.reads.remove(&ticket) {
            drop(state);
            answer();
        } else {
            state.reads.insert(ticket, Progress::Fetched(answer));
        }
    }
}

/// Changes the link's speed from another thread.
#[derive(Clone, Debug)]
pub struct SpeedDial(Arc<Shared>);

impl SpeedDial {
    /// Divides t(γ) by this from now on.
    pub fn slow_down(&self, slowness: f64) {
        let mut state = self.0.lock();
        state.link.slow_down(self.0.now(), slowness);
        // What was to happen next happens at another time.
        self.0.changed.notify_one();
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // If it panicked, the answers are lost in any case.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn run(&self) {
        wake_exactly();
        let mut state = self.lock();
        while !state.closed {
            let answers = state.due(self.now());
            if !answers.is_empty() {
                drop(state);
                for answer in answers {
                    answer();
                }
                state = self.lock();
                continue;
            }
            state.alarm = state.link.next_event().unwrap_or(f64::INFINITY);
            state = self.sleep(state);
            state.alarm = 0.0;
        }
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.alarm == f64::INFINITY {
            return self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let left = Duration::from_secs_f64((state.alarm - self.now()).max(0.0));
        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl State {
    fn due(&mut self, now: f64) -> Vec<Answer> {
        let mut answers = Vec::new();
        for ticket in self.link.advance(now) {
            match self.reads.remove(&ticket) {
                Some(Progress::Fetched(answer)) => answers.push(answer),
                _ => {
                    self.reads.insert(ticket, Progress::Served);
                }
            }
        }
        answers
    }
}

/// Linux lets a sleeping thread wake up to 50 µs late unless it asks otherwise, which is a
/// few per cent of a read.
fn wake_exactly() {
    // SAFETY: the call takes integers only and changes nothing but this thread's timers.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use belady_control::model::{Curve, Rate};

    use super::*;

    fn pacer(rate: f64) -> Pacer {
        Pacer::start(LinkConfig {
            throughput: Curve::flat(Rate(rate)),
            latency: 0.0,
            turnaround: 0.0,
        })
        .unwrap()
    }

    #[test]
    fn an_answer_is_due_only_when_its_service_is_over() {
        let pacer = pacer(1e6);
        let mut state = pacer.shared.lock();
        let start = pacer.shared.now();
        let ticket = state.link.arrive(start, 10_000);
        state.reads.insert(ticket, Progress::Fetched(Box::new(|| ())));
        assert!(state.due(start + 0.0099).is_empty());
        assert_eq!(state.due(start + 0.0101).len(), 1);
    }

    #[test]
    fn every_answer_is_sent_once() {
        let pacer = pacer(1e6);
        let (sent, received) = mpsc::channel();
        for read in 0..4 {
            let sent = sent.clone();
            let ticket = pacer.admit(10_000);
            pacer.answer(ticket, Box::new(move || sent.send(read).unwrap()));
        }
        let mut seen: Vec<i32> = (0..4).map(|_| received.recv().unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
        assert!(received.try_recv().is_err());
    }

    #[test]
    fn bytes_that_come_after_the_service_is_over_are_sent_at_once() {
        let pacer = pacer(1e12);
        let ticket = pacer.admit(1);
        let (sent, received) = mpsc::channel();
        while !matches!(pacer.shared.lock().reads[&ticket], Progress::Served) {
            thread::sleep(Duration::from_millis(1));
        }
        pacer.answer(ticket, Box::new(move || sent.send(()).unwrap()));
        received.try_recv().unwrap();
        assert!(pacer.shared.lock().reads.is_empty());
    }
}

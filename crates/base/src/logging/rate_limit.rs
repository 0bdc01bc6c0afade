//! Rate-limits warnings: the first lines of a callsite are printed, the others are counted, and the
//! count is printed at intervals. Python's logger has a [`Limiter`] of its own.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::Hash;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::fork;
use crate::format::grouped;

/// Lines of a callsite that are printed as they come.
const PRINTED: u64 = 5;
/// The interval at which counts are printed.
const INTERVAL: Duration = Duration::from_secs(30);
/// The target of the lines with counts, which are not limited themselves.
const COUNTS: &str = "belady::rate_limit";

/// The callsites that have warned lately, by what identifies them.
#[derive(Debug)]
pub struct Limiter<K>(HashMap<K, Callsite>);

#[derive(Debug)]
struct Callsite {
    since: Instant,
    printed: u64,
    suppressed: u64,
    /// The last line that was suppressed.
    last: String,
}

impl<K> Default for Limiter<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Limiter<K> {
    /// Returns whether a line is printed. A line that is not is counted.
    pub fn admits(&mut self, callsite: K, now: Instant, line: impl FnOnce() -> String) -> bool {
        let fresh = || Callsite { since: now, printed: 0, suppressed: 0, last: String::new() };
        let callsite = self.0.entry(callsite).or_insert_with(fresh);
        if callsite.suppressed == 0 && now.duration_since(callsite.since) >= INTERVAL {
            *callsite = fresh();
        }
        if callsite.printed < PRINTED {
            callsite.printed += 1;
            return true;
        }
        callsite.suppressed += 1;
        callsite.last = line();
        false
    }

    /// Returns a line for each callsite with suppressed lines whose interval has passed. With
    /// `all`, returns those of all callsites and forgets them.
    pub fn counts(&mut self, now: Instant, all: bool) -> Vec<String> {
        let mut counts = vec![];
        self.0.retain(|_, callsite| {
            let time = now.duration_since(callsite.since);
            if time < INTERVAL && !all {
                return true;
            }
            if callsite.suppressed == 0 {
                return false;
            }
            let (count, seconds) = (grouped(callsite.suppressed as f64, 0), time.as_secs());
            counts.push(format!(
                "and {count} more of the same in the last {seconds} s, the last of them: {}",
                callsite.last
            ));
            (callsite.since, callsite.suppressed) = (now, 0);
            !all
        });
        counts
    }
}

static LIMITER: LazyLock<Mutex<Limiter<Identifier>>> = LazyLock::new(Mutex::default);
/// The process whose thread prints counts; a forked child needs its own thread.
static PRINTER: Mutex<Option<u32>> = Mutex::new(None);

fn locked<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    locked_in(fork::generation(), mutex)
}

/// Locks, but never waits in a forked child: a thread that only the parent has may hold the lock.
fn locked_in<T>(generation: u32, mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    if generation == 0 {
        return Some(mutex.lock().unwrap_or_else(PoisonError::into_inner));
    }
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The layer that limits warnings and errors. Lines of other levels all pass.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit;

impl<S: Subscriber> Layer<S> for RateLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN || metadata.target() == COUNTS {
            return true;
        }
        let line = || {
            let mut line = EventText::default();
            event.record(&mut line);
            line.0
        };
        let Some(mut limiter) = locked(&LIMITER) else { return true };
        let admitted = limiter.admits(metadata.callsite(), Instant::now(), line);
        drop(limiter);
        if !admitted {
            start_printer();
        }
        admitted
    }
}

/// Starts the thread that prints counts, which ends when no callsite has suppressed lines.
fn start_printer() {
    let this = std::process::id();
    let Some(mut printer) = locked(&PRINTER) else { return };
    if *printer == Some(this) {
        return;
    }
    let thread = std::thread::Builder::new().name("belady-log".into()).spawn(|| {
        loop {
            std::thread::sleep(INTERVAL);
            print_counts(false);
            let Some(mut printer) = locked(&PRINTER) else { continue };
            if locked(&LIMITER).is_some_and(|limiter| limiter.0.is_empty()) {
                *printer = None;
                return;
            }
        }
    });
    if thread.is_ok() {
        *printer = Some(this);
    }
}

fn print_counts(all: bool) {
    let counts = locked(&LIMITER).map(|mut limiter| limiter.counts(Instant::now(), all));
    for line in counts.unwrap_or_default() {
        tracing::warn!(target: COUNTS, "{line}");
    }
}

/// Prints the counts of all suppressed lines, and begins anew. Called when the program ends.
pub fn finish() {
    print_counts(true);
}

/// An event as text: its message, then its values.
#[derive(Default)]
struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_warnings_of_one_callsite_are_a_few_lines_and_a_count() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let printed = |limiter: &mut Limiter<u8>, callsite: u8, from: u64, lines: u64| {
            let lines = from..from + lines;
            lines.filter(|&ms| limiter.admits(callsite, at(ms), || format!("line {ms}"))).count()
        };
        assert_eq!(printed(&mut limiter, 0, 0, 5316), 5);
        assert_eq!(printed(&mut limiter, 1, 10_000, 3), 3, "another callsite has lines of its own");
        assert!(limiter.counts(at(29_999), false).is_empty());
        let counts = limiter.counts(at(30_000), false);
        assert_eq!(
            counts,
            ["and 5,311 more of the same in the last 30 s, the last of them: line 5315"]
        );
        // Further lines are counted, not printed.
        assert_eq!(printed(&mut limiter, 0, 31_000, 100), 0);
        assert!(limiter.counts(at(60_000), false)[0].starts_with("and 100 more"));
        assert!(limiter.counts(at(90_000), false).is_empty(), "nothing since");
        assert!(limiter.0.is_empty(), "and nothing is remembered");
        assert_eq!(printed(&mut limiter, 0, 91_000, 7), 5);
        assert!(limiter.counts(at(91_100), true)[0].starts_with("and 2 more"), "at the end, all");
        assert_eq!(printed(&mut limiter, 0, 91_200, 7), 5, "and the limit begins anew");
    }

    #[test]
    fn a_forked_child_waits_for_no_lock_that_a_thread_of_its_parent_held() {
        let mutex = Mutex::new(());
        let held = locked_in(0, &mutex);
        assert!(locked_in(1, &mutex).is_none());
        drop(held);
        assert!(locked_in(1, &mutex).is_some());
    }
}

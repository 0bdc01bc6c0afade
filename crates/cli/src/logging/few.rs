//! Few lines of one kind: the first ones of a warning are shown, the others are counted, and the count is
//! told at intervals. What is one kind is decided by the place in the code that warns.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::hash::Hash;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use belady_data::fork;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::text::grouped;

/// Lines of a kind that are shown as they come.
const SHOWN: u64 = 5;
/// Then they are counted for so long.
const EVERY: Duration = Duration::from_secs(30);
/// The lines that tell of others are not held back themselves.
const OWN: &str = "belady::held_back";

/// What was warned of, by kind.
#[derive(Debug)]
struct Few<K>(HashMap<K, Kind>);

#[derive(Debug)]
struct Kind {
    since: Instant,
    shown: u64,
    held_back: u64,
    /// The last that was held back.
    last: String,
}

impl<K: Eq + Hash> Few<K> {
    /// Whether a line is shown. If it is not, it counts.
    fn shows(&mut self, kind: K, now: Instant, line: impl FnOnce() -> String) -> bool {
        let fresh = || Kind { since: now, shown: 0, held_back: 0, last: String::new() };
        let kind = self.0.entry(kind).or_insert_with(fresh);
        if kind.held_back == 0 && now.duration_since(kind.since) >= EVERY {
            *kind = fresh();
        }
        if kind.shown < SHOWN {
            kind.shown += 1;
            return true;
        }
        kind.held_back += 1;
        kind.last = line();
        false
    }

    /// What is to be told of lines that were held back; of all, or of those that were for long enough.
    fn told(&mut self, now: Instant, all: bool) -> Vec<String> {
        let mut told = vec![];
        self.0.retain(|_, kind| {
            let time = now.duration_since(kind.since);
            if time < EVERY && !all {
                return true;
            }
            if kind.held_back == 0 {
                return false;
            }
            let (count, seconds) = (grouped(kind.held_back as f64, 0), time.as_secs());
            told.push(format!(
                "and {count} more of the same in the last {seconds} s, the last of them: {}",
                kind.last
            ));
            (kind.since, kind.held_back) = (now, 0);
            true
        });
        told
    }
}

static FEW: LazyLock<Mutex<Few<Identifier>>> = LazyLock::new(|| Mutex::new(Few(HashMap::new())));
/// The process whose thread tells what was held back; a forked child needs one of its own.
static TELLER: Mutex<Option<u32>> = Mutex::new(None);

fn locked<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    locked_in(fork::generation(), mutex)
}

/// `None` in a forked child where it is taken: perhaps by a thread that only the parent has, for ever.
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

/// Holds warnings and errors back that are too many. With a filter that lets more than these through, all lines are printed.
#[derive(Clone, Copy, Debug)]
pub struct FewOfAKind;

impl<S: Subscriber> Layer<S> for FewOfAKind {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN || metadata.target() == OWN {
            return true;
        }
        let line = || {
            let mut line = Line::default();
            event.record(&mut line);
            line.0
        };
        let Some(mut few) = locked(&FEW) else { return true };
        let shows = few.shows(metadata.callsite(), Instant::now(), line);
        drop(few);
        if !shows {
            start_teller();
        }
        shows
    }
}

/// A thread that is there as long as lines are held back.
fn start_teller() {
    let this = std::process::id();
    let Some(mut teller) = locked(&TELLER) else { return };
    if *teller == Some(this) {
        return;
    }
    let thread = std::thread::Builder::new().name("belady-log".into()).spawn(|| {
        loop {
            std::thread::sleep(EVERY);
            tell(false);
            let Some(mut teller) = locked(&TELLER) else { continue };
            if locked(&FEW).is_some_and(|few| few.0.is_empty()) {
                *teller = None;
                return;
            }
        }
    });
    if thread.is_ok() {
        *teller = Some(this);
    }
}

fn tell(all: bool) {
    let told = locked(&FEW).map(|mut few| few.told(Instant::now(), all));
    for line in told.unwrap_or_default() {
        tracing::warn!(target: OWN, "{line}");
    }
}

/// Tells what is held back now: the program ends.
pub fn finish() {
    tell(true);
}

/// A line as it would be shown: what it says, then its values.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
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
    fn thousands_of_warnings_of_one_kind_are_a_few_lines_and_a_count() {
        let (mut few, start) = (Few(HashMap::new()), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let shown = |few: &mut Few<u8>, kind: u8, from: u64, lines: u64| {
            let lines = from..from + lines;
            lines.filter(|&ms| few.shows(kind, at(ms), || format!("line {ms}"))).count()
        };
        assert_eq!(shown(&mut few, 0, 0, 5316), 5);
        assert_eq!(shown(&mut few, 1, 10_000, 3), 3, "another kind has lines of its own");
        assert!(few.told(at(29_999), false).is_empty());
        let told = few.told(at(30_000), false);
        assert_eq!(
            told,
            ["and 5,311 more of the same in the last 30 s, the last of them: line 5315"]
        );
        // It goes on: no more lines, but a count.
        assert_eq!(shown(&mut few, 0, 31_000, 100), 0);
        assert!(few.told(at(60_000), false)[0].starts_with("and 100 more"));
        assert!(few.told(at(90_000), false).is_empty(), "nothing since");
        assert!(few.0.is_empty(), "and nothing is remembered");
        assert_eq!(shown(&mut few, 0, 91_000, 7), 5);
        assert!(few.told(at(91_100), true)[0].starts_with("and 2 more"), "at the end, all");
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

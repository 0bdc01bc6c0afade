//! Whether the process on the other side still lives.
//!
//! A side that leaves in order says so in the header. A side that is killed cannot, so each
//! signs the header with its process id and the time it was started (ids are used again),
//! and the other looks once a second while it waits.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

use crate::sync::plain::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// How long a killed process may go unnoticed.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// The signature of a process, in shared memory.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Identity {
    process: AtomicU32,
    started: AtomicU64,
    /// Process ids mean something only within one namespace (container).
    namespace: AtomicU64,
}

impl Identity {
    /// Signs for this process.
    pub fn sign(&self) {
        let own = getpid();
        let started = status(own).map_or(0, |status| status.started);
        self.process.store(own.as_raw_pid() as u32, Relaxed);
        self.started.store(started, Relaxed);
        self.namespace.store(namespace(), Relaxed);
    }

    /// Whether the process that signed is surely gone. In doubt (another container, no
    /// `/proc`) it is not.
    fn is_gone(&self) -> bool {
        let Some(theirs) = i32::try_from(self.process.load(Relaxed)).ok().and_then(Pid::from_raw)
        else {
            return false;
        };
        let place = self.namespace.load(Relaxed);
        if place == 0 || place != namespace() {
            return false;
        }
        if test_kill_process(theirs) == Err(Errno::SRCH) {
            return true;
        }
        let started = self.started.load(Relaxed);
        status(theirs).is_some_and(|now| now.is_dead || (started != 0 && now.started != started))
    }
}

/// Looks after the other side at most once in an interval, however short the waits are.
#[derive(Debug)]
pub struct Watch {
    next: Instant,
    gone: bool,
}

impl Watch {
    pub fn new() -> Self {
        Self { next: Instant::now() + INTERVAL, gone: false }
    }

    pub fn is_gone(&mut self, other: &Identity) -> bool {
        let now = Instant::now();
        if !self.gone && now >= self.next {
            self.next = now + INTERVAL;
            self.gone = other.is_gone();
        }
        self.gone
    }
}

struct Status {
    /// Killed, and its parent has not asked for it yet.
    is_dead: bool,
    /// Clock ticks since boot.
    started: u64,
}

/// What `/proc` says of a process.
fn status(process: Pid) -> Option<Status> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may itself hold spaces and parentheses. The state is the
    // third field, the number of threads the 20th, the start time the 22nd.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A first thread that has ended while others run looks like a zombie too.
    Some(Status { is_dead: matches!(state, "Z" | "X") && threads <= 1, started })
}

/// Inode of our process namespace; 0 if unknown.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_there_until_it_is_killed_even_if_nobody_waits_for_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let identity = Identity::default();
        identity.sign();
        assert!(!identity.is_gone(), "our own");
        let pid = Pid::from_child(&child);
        let started = status(pid).unwrap().started;
        identity.process.store(child.id(), Relaxed);
        identity.started.store(started + 1, Relaxed);
        assert!(identity.is_gone(), "the same id, started at another time");
        identity.started.store(started, Relaxed);
        assert!(!identity.is_gone(), "alive");
        child.kill().unwrap();
        while !identity.is_gone() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(identity.is_gone(), "waited for");
        identity.namespace.store(1, Relaxed);
        assert!(!identity.is_gone(), "another container: nobody knows");
    }
}

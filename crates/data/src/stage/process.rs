//! The identity of a process in shared memory, and whether that process has ended.
//!
//! Process ids are reused, so an identity is the id together with the time the process started.

use std::os::unix::fs::MetadataExt;

use belady_base::sync::plain::{AtomicU32, AtomicU64, Ordering::Relaxed};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

/// A process, as written into a ring's header.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ProcessIdentity {
    process: AtomicU32,
    started: AtomicU64,
    /// Process ids are valid only within one namespace (container).
    namespace: AtomicU64,
}

impl ProcessIdentity {
    /// Stores the identity of the calling process.
    pub fn store_own(&self) {
        let own = getpid();
        let started = status(own).map_or(0, |status| status.started);
        self.process.store(own.as_raw_pid() as u32, Relaxed);
        self.started.store(started, Relaxed);
        self.namespace.store(namespace(), Relaxed);
    }

    /// Whether the process has certainly ended. If that cannot be told (another container, no
    /// `/proc`), it counts as alive.
    pub fn is_dead(&self) -> bool {
        let Some(theirs) = i32::try_from(self.process.load(Relaxed)).ok().and_then(Pid::from_raw)
        else {
            return false;
        };
        let their_namespace = self.namespace.load(Relaxed);
        if their_namespace == 0 || their_namespace != namespace() {
            return false;
        }
        if test_kill_process(theirs) == Err(Errno::SRCH) {
            return true;
        }
        let started = self.started.load(Relaxed);
        status(theirs).is_some_and(|now| now.is_zombie || (started != 0 && now.started != started))
    }
}

struct ProcessStatus {
    /// Ended, and its parent has not waited for it yet.
    is_zombie: bool,
    /// Clock ticks since boot.
    started: u64,
}

/// Reads the status of a process from `/proc`.
fn status(process: Pid) -> Option<ProcessStatus> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may itself hold spaces and parentheses. The state is the
    // third field, the number of threads the 20th, the start time the 22nd.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    // A first thread that has ended while others run has the state of a zombie too.
    Some(ProcessStatus { is_zombie: matches!(state, "Z" | "X") && threads <= 1, started })
}

/// Returns the inode of this process's namespace; 0 if unknown.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_process_is_dead_before_and_after_its_parent_waits_for_it() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let identity = ProcessIdentity::default();
        identity.store_own();
        assert!(!identity.is_dead(), "our own");
        let pid = Pid::from_child(&child);
        let started = status(pid).unwrap().started;
        identity.process.store(child.id(), Relaxed);
        identity.started.store(started + 1, Relaxed);
        assert!(identity.is_dead(), "the same id, started at another time");
        identity.started.store(started, Relaxed);
        assert!(!identity.is_dead(), "alive");
        child.kill().unwrap();
        while !identity.is_dead() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(identity.is_dead(), "waited for");
        identity.namespace.store(1, Relaxed);
        assert!(!identity.is_dead(), "another container: cannot be told");
    }
}

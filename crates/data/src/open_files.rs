//! The open files of the process: how many it may have, and what gives some back when none is left.
//!
//! Files and sockets count against one limit. Reads come first, since a sample that cannot be opened stops
//! the job and a connection that cannot be made does not:
//!
//! - the soft limit is raised to the hard one ([`raise_limit`]),
//! - sockets leave the last quarter alone ([`moved_down`]),
//! - a read that finds no descriptor makes connections that are idle go ([`let_go`]), and is tried again.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
// Not those of `sync.rs`: a schedule explorer's cannot be static.
use std::sync::{Mutex, PoisonError, Weak};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than any job has use for. Some programs close every number up to the limit when they start another
/// one, and hard limits of a billion exist.
const ENOUGH: u64 = 1 << 20;

/// Raises the soft limit of the process to its hard limit. It is never lowered.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(ENOUGH).min(ENOUGH);
    if current.is_some_and(|current| current < wanted) {
        // Where the system refuses, the process goes on with what it has.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// How many the process may have open now.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether a descriptor is one of the last quarter, which no socket may take. The system hands out the
/// lowest number that is free, so all below it are taken.
pub fn is_for_reads(descriptor: &OwnedFd) -> bool {
    let limit = limit();
    u64::try_from(descriptor.as_raw_fd()).is_ok_and(|number| number >= limit - limit / 4)
}

/// The same file at a descriptor below the last quarter, if one is free.
pub fn moved_down(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    if !is_for_reads(&descriptor) {
        return Ok(descriptor);
    }
    let lowest = rustix::io::fcntl_dupfd_cloexec(&descriptor, 0)?;
    if is_for_reads(&lowest) { Err(shortage()) } else { Ok(lowest) }
}

/// As [`moved_down`], for a connection without which nothing goes on: where no descriptor below the last
/// quarter is free, it stays at its own.
pub fn moved_down_or_kept(descriptor: OwnedFd) -> OwnedFd {
    if !is_for_reads(&descriptor) {
        return descriptor;
    }
    let lower = descriptor.try_clone().ok().filter(|lower| !is_for_reads(lower));
    lower.unwrap_or(descriptor)
}

/// Whether something failed since the process, or the machine, has no descriptor left.
pub fn is_shortage(error: &io::Error) -> bool {
    let none = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|number| none.contains(&number))
}

/// What `is_shortage` recognises.
fn shortage() -> io::Error {
    Errno::MFILE.into()
}

/// Holds descriptors that it can do without.
pub trait Spare: Send + Sync {
    /// Closes them.
    fn let_go(&self);
}

static SPARES: Mutex<Vec<Weak<dyn Spare>>> = Mutex::new(Vec::new());

/// From now on it is asked when descriptors run out, as long as it is there.
pub fn register(spare: Weak<dyn Spare>) {
    let mut spares = SPARES.lock().unwrap_or_else(PoisonError::into_inner);
    spares.retain(|spare| spare.strong_count() > 0);
    spares.push(spare);
}

/// Descriptors have run out: everything that is kept for convenience is closed.
pub fn let_go() {
    let spares = SPARES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for spare in spares.iter().filter_map(Weak::upgrade) {
        spare.let_go();
    }
}

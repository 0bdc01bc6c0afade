//! Shares the process's limit of open files between reads and sockets.
//!
//! Reads have priority: a file that cannot be opened stops the job, a connection that cannot be
//! opened does not.
//!
//! - The soft limit is raised to the hard limit ([`raise_limit`]).
//! - Sockets do not use the last quarter ([`moved_down`]).
//! - A read without a descriptor closes idle connections ([`close_idle`]) and is retried.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
// Not those of `sync.rs`: a schedule explorer's cannot be static.
use std::sync::{Mutex, PoisonError, Weak};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than any job needs. Hard limits of a billion exist, and some programs close every number up
/// to the limit when they start a child.
const ENOUGH: u64 = 1 << 20;

/// Raises the soft limit of the process to its hard limit. It is never lowered.
pub fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.unwrap_or(ENOUGH).min(ENOUGH);
    if current.is_some_and(|current| current < wanted) {
        // If the system refuses, the limit stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Returns how many files the process may have open.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns whether a descriptor is in the last quarter, which is reserved for reads. The system
/// assigns the lowest free number, so all below it are in use.
pub fn is_for_reads(descriptor: &OwnedFd) -> bool {
    let limit = limit();
    u64::try_from(descriptor.as_raw_fd()).is_ok_and(|number| number >= limit - limit / 4)
}

/// Moves a file to a descriptor below the last quarter.
///
/// # Errors
/// If none is free there.
pub fn moved_down(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    if !is_for_reads(&descriptor) {
        return Ok(descriptor);
    }
    let lowest = rustix::io::fcntl_dupfd_cloexec(&descriptor, 0)?;
    if is_for_reads(&lowest) { Err(shortage()) } else { Ok(lowest) }
}

/// Moves a file as [`moved_down`] does, or leaves it if no descriptor is free there: for
/// connections that the job cannot run without.
pub fn moved_down_or_kept(descriptor: OwnedFd) -> OwnedFd {
    if !is_for_reads(&descriptor) {
        return descriptor;
    }
    let lower = descriptor.try_clone().ok().filter(|lower| !is_for_reads(lower));
    lower.unwrap_or(descriptor)
}

/// Returns whether an error says that the process, or the machine, has no descriptor left.
pub fn is_shortage(error: &io::Error) -> bool {
    let none = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|number| none.contains(&number))
}

/// Returns an error that `is_shortage` recognises.
fn shortage() -> io::Error {
    Errno::MFILE.into()
}

/// A holder of idle descriptors.
pub trait IdleDescriptors: Send + Sync {
    /// Closes the idle descriptors.
    fn close_idle(&self);
}

static HOLDERS: Mutex<Vec<Weak<dyn IdleDescriptors>>> = Mutex::new(Vec::new());

/// Registers a holder, which is asked to close descriptors when they run out.
pub fn register(holder: Weak<dyn IdleDescriptors>) {
    let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
    holders.retain(|holder| holder.strong_count() > 0);
    holders.push(holder);
}

/// Closes all idle descriptors, because none is left.
pub fn close_idle() {
    let holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for holder in holders.iter().filter_map(Weak::upgrade) {
        holder.close_idle();
    }
}

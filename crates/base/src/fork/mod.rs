//! Limits what a forked child inherits.
//!
//! A forked child (a worker of torch's `DataLoader`, say) inherits all memory, copy-on-write, and
//! every descriptor. Both harm caches. The parent's writes would double a cache's memory, and bytes
//! that the kernel reads from a disk straight into memory could land in the child's copy. A lock or
//! a port would outlive the parent as long as any child runs. Therefore:
//!
//! - a [`Mapping`] is not inherited, except for the bytes of a [`Loan`]: the program holds them
//!   when it forks, and the child gets its own copy, as it does of other objects;
//! - an [`OwnDescriptor`] is not inherited, and a [`FileLock`] ends with the process that took it;
//! - [`generation`] differs between a child and its parent.
//!
//! Three handlers that libc calls around a fork do this, under one lock, so that nothing is
//! registered or removed meanwhile. `vfork` and a bare `clone` call no handlers: mappings are then
//! not inherited at all, and descriptors are closed by `exec`.

mod descriptor;
mod mapping;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

pub use descriptor::{FileLock, OwnDescriptor};
pub use mapping::{Loan, Mapping, whole_pages};

use crate::sync::plain::{AtomicU32, Ordering::Relaxed};

/// Returns the number of forks between the process of the first call and this one. An object of
/// another generation belongs to another process.
pub fn generation() -> u32 {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the handlers only do what is allowed around a fork, as each says. The call can
        // fail without memory; forks then go unnoticed.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
    GENERATION.load(Relaxed)
}

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The state of the handlers. Not a lock of `sync`: a schedule explorer cannot fork.
static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    mappings: BTreeMap::new(),
    loans: BTreeMap::new(),
    loans_so_far: 0,
    descriptors: BTreeSet::new(),
    nothing: None,
    forks: 0,
});

struct Registry {
    /// Lengths of mappings, by address.
    mappings: BTreeMap<usize, usize>,
    loans: BTreeMap<u64, Box<[Range<usize>]>>,
    loans_so_far: u64,
    descriptors: BTreeSet<RawFd>,
    /// Replaces these descriptors in a child.
    nothing: Option<OwnedFd>,
    /// The number of forks that this process has begun.
    forks: u64,
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Holds the registry's lock while this thread forks. `ManuallyDrop` keeps it usable until the
    /// end of the thread, since destructors of other thread-locals may fork.
    static FORKING: Cell<Option<ManuallyDrop<MutexGuard<'static, Registry>>>> =
        const { Cell::new(None) };
}

/// Runs in the parent, where locking and allocating are allowed. It waits for threads that hold the
/// registry's lock; those allocate, change maps and at times open a file or a socket, and wait for
/// no other lock of this workspace.
extern "C" fn before_fork() {
    let mut registry = registry();
    registry.forks += 1;
    registry.hand_on_loans();
    FORKING.set(Some(ManuallyDrop::new(registry)));
}

extern "C" fn in_parent() {
    if let Some(registry) = forking() {
        registry.withdraw_loans();
    }
}

/// Runs in the child before other code. It only makes system calls and frees memory, which libc
/// allows by then.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
    if let Some(mut registry) = forking() {
        registry.close_descriptors();
        registry.mappings.clear();
        registry.loans.clear();
    }
}

fn forking() -> Option<MutexGuard<'static, Registry>> {
    FORKING.take().map(ManuallyDrop::into_inner)
}

//! What a forked child gets of this process.
//!
//! A child that `fork` makes (a worker of torch's `DataLoader`, say) inherits all memory, which is
//! copied when either side writes to it, and every descriptor. For caches both do harm. Their
//! memory would be there twice as soon as the parent goes on, and where the kernel reads from a disk
//! straight into it, the bytes could end up in the child's copy. A lock or a port would outlive the
//! parent for as long as any child runs. So
//!
//! - a [`Mapping`] is not inherited, but for what a [`Loan`] says: the bytes that the program has
//!   been lent when it forks, which are the child's own copy from then on, as other objects are;
//! - an [`Own`] descriptor is not inherited, and a [`FileLock`] ends with the process that took it;
//! - [`generation`] tells a child that it is one.
//!
//! All of it happens in three functions that libc calls around a fork, under one lock, so that
//! nothing is registered or removed meanwhile. What libc does not know of (`vfork`, a bare `clone`)
//! calls none of them: mappings are then not inherited at all, and descriptors go with `exec`.

mod descriptor;
mod mapping;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

pub use descriptor::{FileLock, Own};
pub use mapping::{Loan, Mapping};

use crate::sync::plain::{AtomicU32, Ordering::Relaxed};

/// How often this process is the child of a fork since the first call. What was made in another
/// generation belongs to another process.
pub fn generation() -> u32 {
    static WATCHING: Once = Once::new();
    WATCHING.call_once(|| {
        // SAFETY: what the handlers do is allowed around a fork, as each says. It can fail for
        // want of memory; forks are then not noticed.
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    });
    GENERATION.load(Relaxed)
}

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// What a fork has to know. Not a lock of `sync`: a schedule explorer cannot fork.
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
    /// What these stand for in a child.
    nothing: Option<OwnedFd>,
    /// Forks of this process that have begun.
    forks: u64,
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The lock on the registry, while this thread forks. Nothing is dropped with the thread, so that
    /// it is there until the very end of it: destructors of other variables may fork as well.
    static FORKING: Cell<Option<ManuallyDrop<MutexGuard<'static, Registry>>>> =
        const { Cell::new(None) };
}

/// Runs in the parent, where locks and memory may be taken as usual. It waits for threads that hold
/// the registry's lock; these take memory, change maps and at times open a file or a socket, and wait for
/// no other lock of ours.
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

/// Runs in the child, before anything else of it, and only makes calls of the kernel and gives
/// memory back, which libc has made possible again by now.
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

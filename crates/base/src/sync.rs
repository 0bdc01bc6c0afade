//! Locks, atomics and the futex of all crates, replaced together for a schedule explorer.

use std::sync::TryLockError;
use std::time::{Duration, Instant};

#[cfg(not(feature = "shuttle"))]
pub use std::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};

#[cfg(feature = "shuttle")]
pub use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, atomic};

/// Atomics that carry data or counts and never order anything. They have the layout of their
/// integers in every build, and an explorer ignores them.
pub use std::sync::atomic as plain;

pub use futex::{Futex, SPINS};

/// Locks even if a thread has panicked while it held the lock: guarded data is consistent between
/// any two statements.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Locks before a deadline, by polling; `None` after it. For locks that are mostly free.
pub fn lock_within<T: ?Sized>(mutex: &Mutex<T>, until: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}

/// A word, possibly in memory shared by processes, that threads sleep on.
#[cfg(not(feature = "shuttle"))]
mod futex {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::thread::futex;

    /// Checks of a condition before sleeping: one to two microseconds, about the cost of sleeping
    /// and waking. More would occupy a core that the other side may need.
    pub const SPINS: u32 = 40;

    /// A word that threads sleep on.
    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub struct Futex(AtomicU32);

    impl Futex {
        /// Returns the word.
        pub fn load(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }

        /// Sleeps while the word is `seen`. Returns false after the timeout; true if woken, and at
        /// times spuriously.
        pub fn wait(&self, seen: u32, timeout: Duration) -> bool {
            let Ok(timeout) = timeout.try_into() else { return true };
            // Not PRIVATE: the other side may be another process.
            let slept = futex::wait(&self.0, futex::Flags::empty(), seen, Some(&timeout));
            !matches!(slept, Err(Errno::TIMEDOUT))
        }

        /// Changes the word and wakes all threads that sleep on it.
        pub fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            // Fails only for addresses that are not mapped.
            let _ = futex::wake(&self.0, futex::Flags::empty(), i32::MAX as u32);
        }
    }
}

/// The same as a model for shuttle. No time passes in it: a lost wake-up is a deadlock, which the
/// explorer reports.
#[cfg(feature = "shuttle")]
mod futex {
    use std::time::Duration;

    use super::atomic::{AtomicU32, Ordering};
    use super::{Condvar, Mutex, lock};

    pub const SPINS: u32 = 1;

    #[derive(Debug, Default)]
    pub struct Futex {
        word: AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        pub fn load(&self) -> u32 {
            self.word.load(Ordering::SeqCst)
        }

        pub fn wait(&self, seen: u32, timeout: Duration) -> bool {
            if timeout.is_zero() {
                return false;
            }
            let queue = lock(&self.queue);
            if self.load() == seen {
                drop(self.woken.wait(queue));
            }
            true
        }

        pub fn wake(&self) {
            self.word.fetch_add(1, Ordering::SeqCst);
            let _queue = lock(&self.queue);
            self.woken.notify_all();
        }
    }
}

//! Descriptors and locks that forked children do not inherit.
//!
//! An `flock` lock belongs to the open file description, which all copies of a descriptor share,
//! including those in forked children: the lock ends when the last copy is closed. A child
//! therefore replaces each such descriptor first. Its number stays taken, since the child's copy of
//! the owner may still close it.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use super::{Registry, generation, registry};

/// Attempts to open something between two forks, before forks wait for it.
const TRIES: u32 = 16;

/// A lock that is taken only as a probe is released within far less, on a busy machine too.
const MOMENT: Duration = Duration::from_millis(50);
/// The time between two attempts.
const RETRY: Duration = Duration::from_millis(1);

/// A value with a descriptor that forked children do not inherit.
#[derive(Debug)]
pub struct OwnDescriptor<T: AsFd> {
    value: T,
    descriptor: RawFd,
    made_in: u32,
}

impl<T: AsFd> OwnDescriptor<T> {
    /// Opens a value, and again if a fork came between opening and registering it. In a process
    /// that forks all the time, forks wait for the last attempt.
    ///
    /// # Errors
    /// Those of `open`, or that no descriptor is left.
    pub fn open(mut open: impl FnMut() -> io::Result<T>) -> io::Result<Self> {
        // Forks are counted from the first call of `generation` on.
        let made_in = generation();
        for _ in 0..TRIES {
            let forks = registry().forks;
            let own = Self::of(open()?)?;
            if registry().forks == forks {
                return Ok(own);
            }
        }
        let mut registry = registry();
        let value = open()?;
        let descriptor = value.as_fd().as_raw_fd();
        registry.note(descriptor)?;
        Ok(Self { value, descriptor, made_in })
    }

    /// Registers a value that this process has just opened and can open only once.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn of(value: T) -> io::Result<Self> {
        let made_in = generation();
        let descriptor = value.as_fd().as_raw_fd();
        registry().note(descriptor)?;
        Ok(Self { value, descriptor, made_in })
    }

    /// Returns whether this process opened the value, and is not a fork of that process.
    pub fn is_ours(&self) -> bool {
        self.made_in == generation()
    }
}

impl<T: AsFd> Deref for OwnDescriptor<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: AsFd> AsFd for OwnDescriptor<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.value.as_fd()
    }
}

impl<T: AsFd> Drop for OwnDescriptor<T> {
    fn drop(&mut self) {
        // Before closing: another file may get the number afterwards.
        if self.is_ours() {
            registry().descriptors.remove(&self.descriptor);
        }
    }
}

/// A file locked by `flock` until this is dropped or its process ends, whatever children it has
/// forked.
#[derive(Debug)]
pub struct FileLock(OwnDescriptor<File>);

impl FileLock {
    /// Locks the file exclusively; `None` if another process holds any lock on it.
    pub fn try_exclusive(open: impl FnMut() -> io::Result<File>) -> io::Result<Option<Self>> {
        Self::try_with(open, File::try_lock)
    }

    /// Locks as [`FileLock::try_exclusive`], but waits a moment for a lock that is only a probe.
    pub fn exclusive(mut open: impl FnMut() -> io::Result<File>) -> io::Result<Option<Self>> {
        Self::in_a_moment(|| Self::try_exclusive(&mut open))
    }

    /// Locks the file together with other shared locks; `None` if another process holds an
    /// exclusive one.
    pub fn shared(mut open: impl FnMut() -> io::Result<File>) -> io::Result<Option<Self>> {
        Self::in_a_moment(|| Self::try_with(&mut open, File::try_lock_shared))
    }

    fn in_a_moment(mut take: impl FnMut() -> io::Result<Option<Self>>) -> io::Result<Option<Self>> {
        let until = Instant::now() + MOMENT;
        loop {
            match take()? {
                None if Instant::now() < until => std::thread::sleep(RETRY),
                taken => return Ok(taken),
            }
        }
    }

    fn try_with(
        open: impl FnMut() -> io::Result<File>,
        lock: fn(&File) -> Result<(), TryLockError>,
    ) -> io::Result<Option<Self>> {
        let file = OwnDescriptor::open(open)?;
        match lock(&file) {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Deref for FileLock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Explicitly, not by closing the file: a child that was just forked, or that libc does not
        // know, may hold a copy.
        if self.0.is_ours() {
            let _ = self.0.unlock();
        }
    }
}

impl Registry {
    fn note(&mut self, descriptor: RawFd) -> io::Result<()> {
        if self.nothing.is_none() {
            self.nothing = Some(memfd_create(c"belady-nothing", MemfdFlags::CLOEXEC)?);
        }
        self.descriptors.insert(descriptor);
        Ok(())
    }

    /// Replaces all registered descriptors, in a child.
    pub(super) fn close_descriptors(&mut self) {
        let Some(nothing) = &self.nothing else { return };
        for &descriptor in &self.descriptors {
            // SAFETY: the number belongs to the child's copy of an `OwnDescriptor`, which does not
            // use it.
            unsafe { libc::dup3(nothing.as_raw_fd(), descriptor, libc::O_CLOEXEC) };
        }
        self.descriptors.clear();
    }
}

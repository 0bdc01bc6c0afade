//! Descriptors and locks that forked children do not inherit.
//!
//! A lock by `flock` belongs to what `open` has made, which all copies of a descriptor share, those in
//! forked children included: it ends when the last of them is closed. So a child, as the first
//! thing it does, lets each such descriptor stand for something else. Its number stays taken, since
//! the child's copy of the owner may close it yet.

use std::fs::{File, TryLockError};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use super::{Registry, generation, registry};

/// How often something is opened anew because this process has forked meanwhile, before forks wait for it.
const TRIES: u32 = 16;

/// A lock that is taken only to see whether there is one is gone within far less, on a busy machine too.
const MOMENT: Duration = Duration::from_millis(50);
/// Between two looks meanwhile.
const LOOK: Duration = Duration::from_millis(1);

/// Something with a descriptor that only this process has.
#[derive(Debug)]
pub struct Own<T: AsFd> {
    value: T,
    descriptor: RawFd,
    made_in: u32,
}

impl<T: AsFd> Own<T> {
    /// What `open` gives; again if a child may have got a copy before this process took note of it.
    /// In a process that does nothing but fork, forks wait for the last of these calls.
    ///
    /// # Errors
    /// Those of `open`, or that there is no descriptor left.
    pub fn open(mut open: impl FnMut() -> io::Result<T>) -> io::Result<Self> {
        // Forks are counted from the first call of this on.
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

    /// What this process has opened just now, and can open only once.
    pub fn of(value: T) -> io::Result<Self> {
        let made_in = generation();
        let descriptor = value.as_fd().as_raw_fd();
        registry().note(descriptor)?;
        Ok(Self { value, descriptor, made_in })
    }

    /// Whether this is the process that opened it, and not a fork of it.
    pub fn is_ours(&self) -> bool {
        self.made_in == generation()
    }
}

impl<T: AsFd> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: AsFd> AsFd for Own<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.value.as_fd()
    }
}

impl<T: AsFd> Drop for Own<T> {
    fn drop(&mut self) {
        // Before it is closed, since the number may be another's from then on.
        if self.is_ours() {
            registry().descriptors.remove(&self.descriptor);
        }
    }
}

/// A file that is locked (by `flock`) until this is dropped or its process ends, whatever children
/// the process has forked.
#[derive(Debug)]
pub struct FileLock(Own<File>);

impl FileLock {
    /// `None` if the file is locked elsewhere, in whatever way.
    pub fn try_exclusive(open: impl FnMut() -> io::Result<File>) -> io::Result<Option<Self>> {
        Self::try_with(open, File::try_lock)
    }

    /// As [`FileLock::try_exclusive`], to keep it: a lock that is gone in a moment is waited for. Others
    /// take one only to see whether there is one.
    pub fn exclusive(mut open: impl FnMut() -> io::Result<File>) -> io::Result<Option<Self>> {
        Self::in_a_moment(|| Self::try_exclusive(&mut open))
    }

    /// As [`FileLock::exclusive`], beside others that do the same; `None` if the file is locked exclusively
    /// elsewhere.
    pub fn shared(mut open: impl FnMut() -> io::Result<File>) -> io::Result<Option<Self>> {
        Self::in_a_moment(|| Self::try_with(&mut open, File::try_lock_shared))
    }

    fn in_a_moment(mut take: impl FnMut() -> io::Result<Option<Self>>) -> io::Result<Option<Self>> {
        let until = Instant::now() + MOMENT;
        loop {
            match take()? {
                None if Instant::now() < until => std::thread::sleep(LOOK),
                taken => return Ok(taken),
            }
        }
    }

    fn try_with(
        open: impl FnMut() -> io::Result<File>,
        lock: fn(&File) -> Result<(), TryLockError>,
    ) -> io::Result<Option<Self>> {
        let file = Own::open(open)?;
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
        // By word, and not by closing the file: a child that was forked just now, or that libc knows
        // nothing of, may have a copy.
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

    /// In a child.
    pub(super) fn close_descriptors(&mut self) {
        let Some(nothing) = &self.nothing else { return };
        for &descriptor in &self.descriptors {
            // SAFETY: the number belongs to the child's copy of an `Own`, which does not use it.
            unsafe { libc::dup3(nothing.as_raw_fd(), descriptor, libc::O_CLOEXEC) };
        }
        self.descriptors.clear();
    }
}

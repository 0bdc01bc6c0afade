//! Looking for the samples of a packed file again, because it was touched: once, however many threads
//! come upon it.
//!
//! The first of them reads the file; the others wait for it, and give a sign of life whenever it does
//! ([`signs`]). So a large file takes its time, and storage that hangs is found out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::signs::{self, Signs};
use crate::sync::{Mutex, MutexGuard, lock, lock_within};

/// Files that share a lock wait for each other; touched files are few, or all of them are read anyway.
const STRIPES: usize = 16;
/// How often one who waits looks whether the other goes on.
const LOOK: Duration = Duration::from_millis(50);

/// What became of files that were touched.
#[derive(Debug, Default)]
pub(super) struct Reindexed([Stripe; STRIPES]);

#[derive(Debug, Default)]
struct Stripe {
    /// By file: the time of change at which it was read again, and whether its samples lie in it as they
    /// did. Locked while one is read.
    files: Mutex<HashMap<u32, (i64, bool)>>,
    /// Of the thread that reads.
    signs: Mutex<Option<Signs>>,
}

impl Reindexed {
    /// Whether samples lie where they did in a file that has this time of change. Reads it if no
    /// other thread has; a read that fails counts for this thread alone.
    pub fn holds<E>(
        &self,
        file: u32,
        changed: i64,
        read: impl FnOnce() -> Result<bool, E>,
    ) -> Result<bool, E> {
        let stripe = &self.0[file as usize % STRIPES];
        let mut files = stripe.wait();
        if let Some((_, holds)) = files.get(&file).filter(|(at, _)| *at == changed) {
            return Ok(*holds);
        }
        *lock(&stripe.signs) = Some(Signs::of_this_thread());
        let holds = read()?;
        files.insert(file, (changed, holds));
        Ok(holds)
    }
}

impl Stripe {
    fn wait(&self) -> MutexGuard<'_, HashMap<u32, (i64, bool)>> {
        let mut seen = None;
        loop {
            if let Some(files) = lock_within(&self.files, Instant::now() + LOOK) {
                return files;
            }
            let now = lock(&self.signs).as_ref().map(Signs::count);
            if now != seen {
                signs::give();
                seen = now;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc;

    use super::*;

    type Outcome = Result<bool, ()>;

    #[test]
    fn a_file_is_read_again_once_for_each_of_its_versions() {
        let (reindexed, reads) = (Reindexed::default(), AtomicU32::new(0));
        let read = |holds: Outcome| {
            reads.fetch_add(1, Ordering::Relaxed);
            holds
        };
        assert_eq!(reindexed.holds(3, 1, || read(Err(()))), Err(()));
        for _ in 0..2 {
            assert_eq!(reindexed.holds(3, 1, || read(Ok(true))), Ok(true));
            assert_eq!(reindexed.holds(4, 1, || read(Ok(false))), Ok(false));
        }
        assert_eq!(reindexed.holds(3, 2, || read(Ok(false))), Ok(false));
        assert_eq!(reads.into_inner(), 4);
    }

    #[test]
    fn a_thread_that_waits_lives_as_long_as_the_one_that_reads() {
        let reindexed = Reindexed::default();
        let (begin, begun) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let reindexed = &reindexed;
            let reader = scope.spawn(move || {
                reindexed.holds(3, 1, || -> Outcome {
                    begin.send(()).unwrap();
                    let other: Signs = told.recv().unwrap();
                    let before = other.count();
                    // It sees that this one is there, and then that it goes on.
                    while other.count() < before + 2 {
                        signs::give();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Ok(true)
                })
            });
            begun.recv().unwrap();
            let waiter = scope.spawn(move || {
                tell.send(Signs::of_this_thread()).unwrap();
                reindexed.holds(3, 1, || -> Outcome { panic!("it was read") })
            });
            assert_eq!(reader.join().unwrap(), Ok(true));
            assert_eq!(waiter.join().unwrap(), Ok(true));
        });
    }
}

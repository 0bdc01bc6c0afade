//! Indexes a packed file again after it was touched: once, however many threads ask.
//!
//! The first thread reads the file. The others wait for it and pass its [`heartbeat`] on, so that
//! the engine waits for a large file and gives up storage that hangs.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use belady_base::heartbeat::{self, Heartbeat};
use belady_base::sync::{Mutex, MutexGuard, lock, lock_within};

/// Files that share a lock wait for each other. That costs little: few files are touched, or all of
/// them are read anyway.
const STRIPES: usize = 16;
/// How often a waiting thread checks the heartbeat of the reading one.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Results for touched files.
#[derive(Debug, Default)]
pub(super) struct Reindexed([ReindexStripe; STRIPES]);

#[derive(Debug, Default)]
struct ReindexStripe {
    /// By file: the time of change at which it was indexed again, and whether its samples lie as
    /// before. Locked while a file is indexed.
    files: Mutex<HashMap<u32, (i64, bool)>>,
    /// The heartbeat of the reading thread.
    heartbeat: Mutex<Option<Heartbeat>>,
}

impl Reindexed {
    /// Whether the samples of a file with this time of change lie as before. Calls `read` unless
    /// another thread has; an error is returned to this thread only and not kept.
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
        *lock(&stripe.heartbeat) = Some(Heartbeat::of_this_thread());
        let holds = read()?;
        files.insert(file, (changed, holds));
        Ok(holds)
    }
}

impl ReindexStripe {
    fn wait(&self) -> MutexGuard<'_, HashMap<u32, (i64, bool)>> {
        let mut seen = None;
        loop {
            if let Some(files) = lock_within(&self.files, Instant::now() + CHECK_INTERVAL) {
                return files;
            }
            let now = lock(&self.heartbeat).as_ref().map(Heartbeat::count);
            if now != seen {
                heartbeat::beat();
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
    fn a_file_is_indexed_again_once_for_each_of_its_versions() {
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
    fn a_waiting_thread_passes_on_the_heartbeat_of_the_reading_one() {
        let reindexed = Reindexed::default();
        let (begin, begun) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            let reindexed = &reindexed;
            let reader = scope.spawn(move || {
                reindexed.holds(3, 1, || -> Outcome {
                    begin.send(()).unwrap();
                    let other: Heartbeat = told.recv().unwrap();
                    let before = other.count();
                    // It sees the first count, and then that the count goes on.
                    while other.count() < before + 2 {
                        heartbeat::beat();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Ok(true)
                })
            });
            begun.recv().unwrap();
            let waiter = scope.spawn(move || {
                tell.send(Heartbeat::of_this_thread()).unwrap();
                reindexed.holds(3, 1, || -> Outcome { panic!("it was read") })
            });
            assert_eq!(reader.join().unwrap(), Ok(true));
            assert_eq!(waiter.join().unwrap(), Ok(true));
        });
    }
}

//! The threads of an engine, which load and transform for all of its jobs.
//!
//! Each thread has a [`Duty`]. One that loads runs tasks: it fills, stores and prefetches. One that
//! transforms works for a [`stage`]. The policy decides how many have which ([`Lane::assign`]), and
//! a thread changes its duty when it has finished what it does. Without work, it sleeps.
//!
//! Each job has a lane. Lanes take turns. Within a lane, tasks run in the order of their
//! submission, urgent ones before background ones. A task may belong to a rank, whose share of the
//! threads the policy can limit; a task whose rank has no thread left lets the next one pass. A
//! task makes calls that could hang under the watchdog ([`Worker::watch`]): if such a call takes
//! too long, another thread carries on, and a fresh thread replaces the hung one. A thread that
//! comes back goes on working only if there are too few. A task may also be delayed
//! ([`Lane::delay`]).

mod duty;
#[cfg(test)]
mod duty_tests;
mod lane;
mod numa;
mod placement;
mod queues;
mod stage;
mod task_share;
#[cfg(test)]
mod tests;
mod watchdog;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use belady_base::sync::{Arc, Condvar, Mutex, MutexGuard, lock};

pub use duty::{Duty, LaneThreads, TransformShare};
pub use lane::Lane;
pub use numa::NumaTopology;
pub use placement::{MOST_NICE, ThreadPlacement};
use queues::{DelayedTask, Queues, UrgentTask};
pub use stage::{Lateness, StageSlot, TransformWork};
use watchdog::WatchedCall;
pub use watchdog::{Hung, Watched};
pub use worker::Worker;

/// A piece of work.
pub type Task = Box<dyn FnOnce(&Worker) + Send>;

/// Threads that may hang in calls that were given up, for each thread of the pool.
const HUNG_PER_THREAD: u32 = 4;
/// How long a stopping pool or lane waits for running tasks.
const GRACE: Duration = Duration::from_secs(2);

/// Waits on a condition for a while.
fn wait_for<'a, T>(
    condition: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    match condition.wait_timeout(guard, time) {
        Ok((guard, _)) => guard,
        Err(poisoned) => poisoned.into_inner().0,
    }
}

struct PoolShared {
    queues: Mutex<Queues>,
    /// Wakes threads that load.
    work: Condvar,
    /// Wakes threads that transform.
    transforms: Condvar,
    /// Wakes the watchdog.
    clock: Condvar,
    ended: Condvar,
    short: Condvar,
    /// The threads before any stage brought more.
    threads: u32,
    /// The threads that are to load.
    loading: AtomicU32,
    /// More threads transform than are to.
    crowded: AtomicBool,
    placement: ThreadPlacement,
    /// The time limit of a watched call, from its last heartbeat on ([`belady_base::heartbeat`]).
    limit: Duration,
}

/// The threads of an engine. They end when it is dropped.
pub struct WorkerPool {
    shared: Arc<PoolShared>,
}

impl WorkerPool {
    /// Starts threads that load; `limit` is the time limit of watched calls.
    pub fn new(threads: u32, limit: Duration) -> std::io::Result<Self> {
        Self::placed(threads, limit, ThreadPlacement::default())
    }

    /// The same, with a placement of threads that transform.
    pub fn placed(
        threads: u32,
        limit: Duration,
        placement: ThreadPlacement,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(PoolShared {
            queues: Mutex::default(),
            work: Condvar::new(),
            transforms: Condvar::new(),
            clock: Condvar::new(),
            ended: Condvar::new(),
            short: Condvar::new(),
            threads,
            loading: AtomicU32::new(threads),
            crowded: AtomicBool::new(false),
            placement,
            limit,
        });
        let pool = Self { shared };
        pool.shared.redivide(&mut lock(&pool.shared.queues));
        pool.shared.start_missing()?;
        let watchdog = pool.shared.clone();
        std::thread::Builder::new()
            .name("belady-watch".into())
            .spawn(move || watchdog.keep_watch())?;
        Ok(pool)
    }

    /// Returns the number of threads before any stage brought more.
    pub fn threads(&self) -> u32 {
        self.shared.threads
    }

    pub fn lane(&self) -> Lane {
        Lane::new(self.shared.clone())
    }
}

impl std::fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerPool").field("threads", &self.shared.threads).finish_non_exhaustive()
    }
}

impl Drop for WorkerPool {
    /// Waits for running tasks. Hung threads are left behind: they own what they touch.
    fn drop(&mut self) {
        let left = lock(&self.shared.queues).stop();
        drop(left);
        self.shared.work.notify_all();
        self.shared.transforms.notify_all();
        self.shared.clock.notify_all();
        let until = Instant::now() + GRACE;
        let mut queues = lock(&self.shared.queues);
        while queues.threads.total() > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(
                    threads = queues.threads.total(),
                    "threads are left behind in calls that hang"
                );
                break;
            }
            queues = wait_for(&self.shared.ended, queues, left);
        }
    }
}

impl PoolShared {
    /// Starts threads for duties that have too few, unless others are to change theirs.
    fn start_missing(self: &Arc<Self>) -> std::io::Result<()> {
        loop {
            let missing = lock(&self.queues).missing(self.most_hung());
            let Some(duty) = missing else { return Ok(()) };
            worker::start(self, duty)?;
        }
    }

    /// Returns how many threads may hang.
    fn most_hung(&self) -> u32 {
        self.threads * HUNG_PER_THREAD
    }

    /// Divides the threads anew, after what decides it has changed.
    fn redivide(&self, queues: &mut Queues) {
        queues.wanted = queues.divided(self.threads);
        self.loading.store(queues.wanted[Duty::Load].max(1), Ordering::Relaxed);
        self.note_crowd(queues);
        self.work.notify_all();
        self.transforms.notify_all();
        // It starts what is missing when a thread ends instead of changing its duty.
        self.clock.notify_all();
    }

    fn note_crowd(&self, queues: &Queues) {
        let duty = Duty::Transform;
        self.crowded.store(queues.threads[duty] > queues.wanted[duty], Ordering::Relaxed);
    }

    fn wake(&self, queues: MutexGuard<'_, Queues>, added: usize) {
        let sleeping = queues.sleeping[Duty::Load] as usize;
        drop(queues);
        for _ in 0..added.min(sleeping) {
            self.work.notify_one();
        }
    }

    fn wake_transforming(&self, queues: &Queues) {
        if queues.sleeping[Duty::Transform] > 0 {
            self.transforms.notify_all();
        }
    }

    fn keep_watch(self: Arc<Self>) {
        // A call is given up at most this long after its time limit.
        let tick = (self.limit / 8).max(Duration::from_millis(1));
        let mut queues = lock(&self.queues);
        while !queues.stopping {
            let now = Instant::now();
            let due = queues.take_due(now);
            let late: Vec<_> = queues
                .posts
                .iter()
                .filter_map(|post| watchdog::late_call(post, now, self.limit))
                .collect();
            if queues.missing(self.most_hung()).is_some() {
                drop(queues);
                if let Err(error) = self.start_missing() {
                    // It is tried again with the next tick.
                    tracing::warn!(%error, "a thread that ended cannot be replaced");
                }
                queues = lock(&self.queues);
                if queues.missing(self.most_hung()).is_some() && due.is_empty() && late.is_empty() {
                    queues = wait_for(&self.clock, queues, tick);
                    continue;
                }
            }
            if due.is_empty() && late.is_empty() {
                let next = queues.later.peek().map_or(tick, |later| (later.at - now).min(tick));
                queues = wait_for(&self.clock, queues, next);
                continue;
            }
            let mut added = 0;
            for DelayedTask { lane, task, .. } in due {
                added += queues.add(lane, |lane| {
                    lane.urgent.push_back(UrgentTask { rank: None, task });
                });
            }
            self.wake(queues, added);
            for watch in late {
                self.give_up(&watch);
            }
            queues = lock(&self.queues);
        }
    }

    fn give_up(self: &Arc<Self>, watch: &WatchedCall) {
        if !watch.give_up() {
            return;
        }
        let hung = {
            let mut queues = lock(&self.queues);
            queues.hung += 1;
            queues.threads[Duty::Load] -= 1;
            queues.ended(watch.share);
            queues.hung
        };
        self.ended.notify_all();
        let too_many = hung > self.most_hung() || self.start_missing().is_err();
        let Some(on_timeout) = watch.take_callback() else { return };
        let hung = Hung { threads: hung, too_many };
        if too_many {
            // There may be no other thread left to do so.
            on_timeout(hung);
            return;
        }
        let mut queues = lock(&self.queues);
        let task: Task = Box::new(move |_| on_timeout(hung));
        let task = UrgentTask { rank: None, task };
        let added = queues.add(watch.share.lane, |lane| lane.urgent.push_front(task));
        self.wake(queues, added);
    }
}

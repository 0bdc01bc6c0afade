//! The threads of an engine, which fill, store and prefetch for all of its jobs.
//!
//! Each job has a lane. Lanes take turns. Within a lane, tasks run in the order of their
//! submission, urgent ones before background ones. A task may belong to a rank, whose share of the
//! threads the policy can limit ([`Lane::set_limits`]); a task whose rank has no thread left lets
//! the next one pass. A task makes calls that could hang under the
//! watchdog ([`Worker::watch`]): if such a call takes too long, another thread carries on, and a
//! fresh thread replaces the hung one. A thread that comes back goes on working only if there are
//! too few. A task may also be delayed ([`Lane::delay`]).

mod queues;
mod task_share;
mod watchdog;

use std::cell::Cell;
use std::time::{Duration, Instant};

use belady_base::sync::{Arc, Condvar, Mutex, MutexGuard, lock};

use queues::{DelayedTask, Queues, UrgentTask};
use task_share::TaskShare;
pub use watchdog::{Hung, Watched};
use watchdog::{WatchPost, WatchedCall};

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
    work: Condvar,
    /// Wakes the watchdog.
    clock: Condvar,
    ended: Condvar,
    short: Condvar,
    threads: u32,
    /// The time limit of a watched call, from its last heartbeat on ([`belady_base::heartbeat`]).
    limit: Duration,
}

/// The threads of an engine. They end when it is dropped.
pub struct WorkerPool {
    shared: Arc<PoolShared>,
}

/// A job's queue in the pool.
pub struct Lane {
    pool: Arc<PoolShared>,
    id: u64,
}

/// The thread that a task runs on.
pub struct Worker {
    pool: Arc<PoolShared>,
    post: Arc<WatchPost>,
    /// The thread was given up in the middle of the present task.
    lost: Cell<bool>,
    share: Cell<TaskShare>,
}

impl WorkerPool {
    /// Starts threads; `limit` is the time limit of watched calls.
    pub fn new(threads: u32, limit: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(PoolShared {
            queues: Mutex::default(),
            work: Condvar::new(),
            clock: Condvar::new(),
            ended: Condvar::new(),
            short: Condvar::new(),
            threads,
            limit,
        });
        let pool = Self { shared };
        for _ in 0..threads {
            pool.shared.start_worker()?;
        }
        let watchdog = pool.shared.clone();
        std::thread::Builder::new()
            .name("belady-watch".into())
            .spawn(move || watchdog.keep_watch())?;
        Ok(pool)
    }

    pub fn threads(&self) -> u32 {
        self.shared.threads
    }

    pub fn lane(&self) -> Lane {
        let id = lock(&self.shared.queues).open_lane();
        Lane { pool: self.shared.clone(), id }
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
        self.shared.clock.notify_all();
        let until = Instant::now() + GRACE;
        let mut queues = lock(&self.shared.queues);
        while queues.threads > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(
                    threads = queues.threads,
                    "threads are left behind in calls that hang"
                );
                break;
            }
            queues = wait_for(&self.shared.ended, queues, left);
        }
    }
}

impl Lane {
    /// Submits tasks behind those that wait, which take threads of a rank's share.
    pub fn submit_for(&self, rank: usize, tasks: impl IntoIterator<Item = Task>) {
        let tasks = tasks.into_iter().map(|task| UrgentTask { rank: Some(rank), task });
        let mut queues = lock(&self.pool.queues);
        let added = queues.add(self.id, |lane| lane.urgent.extend(tasks));
        self.pool.wake(queues, added);
    }

    /// Submits tasks before all that wait, which take threads of a rank's share: for what the
    /// oldest batch still lacks.
    pub fn submit_first_for(&self, rank: usize, tasks: Vec<Task>) {
        self.add_first(Some(rank), tasks);
    }

    /// Submits tasks before all that wait, which take any threads.
    pub fn submit_first(&self, tasks: Vec<Task>) {
        self.add_first(None, tasks);
    }

    fn add_first(&self, rank: Option<usize>, tasks: Vec<Task>) {
        let mut queues = lock(&self.pool.queues);
        let added = queues.add(self.id, |lane| {
            for task in tasks.into_iter().rev() {
                lane.urgent.push_front(UrgentTask { rank, task });
            }
        });
        self.pool.wake(queues, added);
    }

    /// Limits how many threads work for each rank at once.
    pub fn set_limits(&self, limits: Vec<u32>) {
        let mut queues = lock(&self.pool.queues);
        if let Some(lane) = queues.lane_mut(self.id) {
            lane.limits = limits;
        }
        drop(queues);
        // Tasks that the old limits held back may run now.
        self.pool.work.notify_all();
    }

    /// Submits tasks that run when no urgent task waits.
    pub fn submit_background(&self, tasks: impl IntoIterator<Item = Task>) {
        let mut queues = lock(&self.pool.queues);
        let added = queues.add(self.id, |lane| lane.background.extend(tasks));
        self.pool.wake(queues, added);
    }

    /// Submits a task after a pause.
    pub fn delay(&self, pause: Duration, task: Task) {
        let at = Instant::now() + pause;
        lock(&self.pool.queues).later.push(DelayedTask { at, lane: self.id, task });
        self.pool.clock.notify_all();
    }

    /// Returns the number of urgent tasks that wait for a thread.
    pub fn queued(&self) -> usize {
        lock(&self.pool.queues).lane(self.id).map_or(0, |lane| lane.urgent.len())
    }

    pub fn threads(&self) -> u32 {
        self.pool.threads
    }

    /// Waits until fewer than `limit` urgent tasks wait, or the time is up.
    pub fn wait_until_short(&self, limit: usize, timeout: Duration) {
        let mut queues = lock(&self.pool.queues);
        if let Some(lane) = queues.lane_mut(self.id)
            && lane.urgent.len() >= limit
        {
            lane.wanted_short = limit;
            drop(wait_for(&self.pool.short, queues, timeout));
        }
    }

    /// Drops waiting tasks, and waits for running ones, but not for hung ones.
    pub fn close(&self) {
        let left = lock(&self.pool.queues).close_lane(self.id);
        drop(left);
        let until = Instant::now() + GRACE;
        let mut queues = lock(&self.pool.queues);
        queues.closing += 1;
        while queues.is_running(self.id) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queues = wait_for(&self.pool.ended, queues, left);
        }
        queues.closing -= 1;
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("id", &self.id).finish_non_exhaustive()
    }
}

impl PoolShared {
    fn start_worker(self: &Arc<Self>) -> std::io::Result<()> {
        let post = Arc::new(WatchPost::default());
        let worker = Worker {
            pool: self.clone(),
            post: post.clone(),
            lost: Cell::new(false),
            share: Cell::default(),
        };
        {
            let mut queues = lock(&self.queues);
            queues.threads += 1;
            queues.posts.push(post.clone());
        }
        let started =
            std::thread::Builder::new().name("belady-load".into()).spawn(move || worker.run());
        if let Err(error) = started {
            let mut queues = lock(&self.queues);
            queues.threads -= 1;
            queues.posts.retain(|other| !Arc::ptr_eq(other, &post));
            return Err(error);
        }
        Ok(())
    }

    fn wake(&self, queues: MutexGuard<'_, Queues>, added: usize) {
        let sleeping = queues.sleeping as usize;
        drop(queues);
        for _ in 0..added.min(sleeping) {
            self.work.notify_one();
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
            queues.threads -= 1;
            queues.ended(watch.share);
            queues.hung
        };
        self.ended.notify_all();
        let too_many = hung > self.threads * HUNG_PER_THREAD || self.start_worker().is_err();
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

impl Worker {
    fn run(self) {
        let mut ended = false;
        while let Some((task, share)) = self.next(ended) {
            self.share.set(share);
            // A panic is a defect of belady. The task fails its job; this thread goes on.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task(&self)));
            if outcome.is_err() {
                tracing::error!("a task of the engine panicked");
            }
            ended = !self.lost.get();
            if self.lost.replace(false) && !self.is_needed_again() {
                break;
            }
        }
        let mut queues = lock(&self.pool.queues);
        queues.posts.retain(|post| !Arc::ptr_eq(post, &self.post));
        drop(queues);
        self.pool.ended.notify_all();
    }

    /// Returns the next task. `ended` says that the one before has ended and was not given up.
    fn next(&self, ended: bool) -> Option<(Task, TaskShare)> {
        let mut queues = lock(&self.pool.queues);
        if ended {
            queues.ended(self.share.get());
            if queues.closing > 0 {
                self.pool.ended.notify_all();
            }
        }
        loop {
            if queues.stopping {
                queues.threads -= 1;
                return None;
            }
            // Background tasks leave threads for tasks that become urgent.
            if let Some(found) = queues.take((self.pool.threads / 2).max(1)) {
                if found.short {
                    self.pool.short.notify_all();
                }
                return Some((found.task, found.share));
            }
            queues.sleeping += 1;
            queues = self.pool.work.wait(queues).unwrap_or_else(std::sync::PoisonError::into_inner);
            queues.sleeping -= 1;
        }
    }

    /// Counts a hung thread that has come back; returns whether it goes on.
    fn is_needed_again(&self) -> bool {
        let mut queues = lock(&self.pool.queues);
        queues.hung -= 1;
        if queues.stopping || queues.threads >= self.pool.threads {
            return false;
        }
        queues.threads += 1;
        true
    }

    /// Makes a call that may hang. If it exceeds the pool's time limit, another thread calls
    /// `on_timeout` and this thread is replaced.
    pub fn watch<T>(
        &self,
        on_timeout: impl FnOnce(Hung) + Send + 'static,
        work: impl FnOnce() -> T,
    ) -> Watched<T> {
        let watch = Arc::new(WatchedCall::new(self.share.get(), Box::new(on_timeout)));
        *lock(&self.post) = Some(watch.clone());
        // Ends the watch even if `work` panics.
        let guard = WatchGuard { worker: self, watch };
        let result = work();
        if guard.end() { Watched::InTime(result) } else { Watched::TooLate }
    }
}

/// The thread is watched while this exists.
struct WatchGuard<'a> {
    worker: &'a Worker,
    watch: Arc<WatchedCall>,
}

impl WatchGuard<'_> {
    /// Returns whether the call was in time.
    fn end(self) -> bool {
        let in_time = self.watch.end();
        drop(self);
        in_time
    }
}

impl Drop for WatchGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.worker.post) = None;
        if !self.watch.end() {
            self.worker.lost.set(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn task(run: impl FnOnce(&Worker) + Send + 'static) -> Task {
        Box::new(run)
    }

    #[test]
    fn tasks_run_in_order_and_urgent_ones_first() {
        let pool = WorkerPool::new(1, Duration::from_mins(1)).unwrap();
        let lane = pool.lane();
        let (hold, held) = mpsc::channel::<()>();
        let (seen, order) = mpsc::channel();
        lane.submit_for(0, [task(move |_| held.recv().unwrap())]);
        let say = |number: u32| {
            let seen = seen.clone();
            task(move |_| seen.send(number).unwrap())
        };
        lane.submit_background([say(9)]);
        lane.submit_for(0, [say(2), say(3)]);
        lane.submit_first(vec![say(0), say(1)]);
        hold.send(()).unwrap();
        assert_eq!(order.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 9]);
    }

    #[test]
    fn lanes_take_turns() {
        let pool = WorkerPool::new(1, Duration::from_mins(1)).unwrap();
        let (one, other) = (pool.lane(), pool.lane());
        let (hold, held) = mpsc::channel::<()>();
        let (seen, order) = mpsc::channel();
        one.submit_for(0, [task(move |_| held.recv().unwrap())]);
        let say = |name: &'static str| {
            let seen = seen.clone();
            task(move |_| seen.send(name).unwrap())
        };
        one.submit_for(0, (0..3).map(|_| say("one")));
        other.submit_for(0, (0..2).map(|_| say("other")));
        hold.send(()).unwrap();
        let order: Vec<_> = order.iter().take(5).collect();
        assert_eq!(order.iter().filter(|&&name| name == "other").count(), 2);
        assert!(order[..4].windows(2).all(|pair| pair[0] != pair[1]), "{order:?}");
    }

    #[test]
    fn a_hung_call_is_given_up_and_its_thread_replaced() {
        let pool = WorkerPool::new(1, Duration::from_millis(20)).unwrap();
        let lane = pool.lane();
        let (hold, held) = mpsc::channel::<()>();
        let (seen, told) = mpsc::channel();
        let late = seen.clone();
        lane.submit_for(
            0,
            [task(move |worker| {
                let given_up = late.clone();
                let watched = worker.watch(
                    move |hung| given_up.send(format!("given up, {} hang", hung.threads)).unwrap(),
                    || held.recv().unwrap(),
                );
                late.send(format!("{watched:?}")).unwrap();
            })],
        );
        assert_eq!(told.recv().unwrap(), "given up, 1 hang");
        lane.submit_for(0, [task(move |_| seen.send("others go on".into()).unwrap())]);
        assert_eq!(told.recv().unwrap(), "others go on");
        hold.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), "TooLate");
    }

    #[test]
    fn hung_threads_that_come_back_work_again_if_too_few_are_left() {
        let pool = WorkerPool::new(1, Duration::from_millis(5)).unwrap();
        let lane = pool.lane();
        let (told, gave_up) = mpsc::channel();
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        // One more than may be replaced.
        for _ in 0..=HUNG_PER_THREAD {
            let (told, gate) = (told.clone(), gate.clone());
            lane.submit_for(
                0,
                [task(move |worker| {
                    let told = told.clone();
                    worker.watch(
                        move |hung| told.send(hung.too_many).unwrap(),
                        || {
                            let mut open = lock(&gate.0);
                            while !*open {
                                open = gate.1.wait(open).unwrap();
                            }
                        },
                    );
                })],
            );
        }
        while !gave_up.recv().unwrap() {}
        let (seen, alive) = mpsc::channel();
        lane.submit_for(0, [task(move |_| seen.send(()).unwrap())]);
        *lock(&gate.0) = true;
        gate.1.notify_all();
        alive.recv_timeout(Duration::from_secs(30)).expect("a thread works again");
    }

    #[test]
    fn a_panic_leaves_the_pool_working_and_a_stop_drops_waiting_tasks() {
        let pool = WorkerPool::new(1, Duration::from_mins(1)).unwrap();
        let lane = pool.lane();
        let (seen, told) = mpsc::channel();
        lane.submit_for(
            0,
            [task(|worker| {
                worker.watch(|_| unreachable!("it did not hang"), || panic!("on purpose"));
            })],
        );
        let first = seen.clone();
        lane.submit_for(0, [task(move |_| first.send(1).unwrap())]);
        assert_eq!(told.recv().unwrap(), 1);
        lane.delay(Duration::from_mins(10), task(move |_| seen.send(2).unwrap()));
        drop(pool);
        assert_eq!(told.recv(), Err(mpsc::RecvError));
    }

    /// Tasks of rank 0 wait at a gate; those of rank 1 pass.
    #[test]
    fn a_rank_has_no_more_threads_than_its_limit_and_holds_up_no_other_rank() {
        let pool = WorkerPool::new(3, Duration::from_mins(1)).unwrap();
        let lane = pool.lane();
        lane.set_limits(vec![1, 3]);
        let gate = Arc::new((Mutex::new((false, 0, 0)), Condvar::new()));
        let (seen, told) = mpsc::channel();
        let held = (0..3).map(|_| {
            let gate = gate.clone();
            task(move |_| {
                let mut state = lock(&gate.0);
                state.1 += 1;
                state.2 = state.2.max(state.1);
                gate.1.notify_all();
                while !state.0 {
                    state = gate.1.wait(state).unwrap();
                }
                state.1 -= 1;
            })
        });
        lane.submit_for(0, held);
        for number in 0..5 {
            let seen = seen.clone();
            lane.submit_for(1, [task(move |_| seen.send(number).unwrap())]);
        }
        assert_eq!(told.iter().take(5).count(), 5, "the others pass");
        assert_eq!(lane.queued(), 2, "two tasks of rank 0 wait for its thread");
        lane.set_limits(vec![2, 3]);
        let mut state = lock(&gate.0);
        while state.1 < 2 {
            state = gate.1.wait(state).unwrap();
        }
        state.0 = true;
        drop(state);
        gate.1.notify_all();
        while lane.queued() > 0 {
            std::thread::yield_now();
        }
        assert!(lock(&gate.0).2 <= 2, "never more than the limit");
    }
}

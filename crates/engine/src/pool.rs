//! Threads that load, keep and prefetch, for all jobs of an engine.
//!
//! Work is taken in the order in which it was given, urgent before background. A piece of
//! work may put what could hang under watch ([`Worker::watch`]): if it takes too long,
//! somebody else is told to do it, a fresh thread takes the place of the one that hangs, and
//! that one ends when it comes back. Work may also be put off until later ([`Pool::delay`]).

use std::cell::Cell;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A piece of work.
pub type Task = Box<dyn FnOnce(&Worker) + Send>;

/// How many threads may hang in reads that were given up, for each that works.
const HUNG_PER_THREAD: u32 = 4;
/// How long a stopping pool waits for threads that are in the middle of a read.
const GRACE: Duration = Duration::from_secs(2);

pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Queues {
    urgent: VecDeque<Task>,
    background: VecDeque<Task>,
    later: BinaryHeap<Later>,
    /// Background tasks that run now.
    in_background: u32,
    sleeping: u32,
    /// Somebody waits for the urgent work to become less than this.
    wanted_short: usize,
    /// Threads that were not given up.
    threads: u32,
    hung: u32,
    /// What each thread has under watch.
    posts: Vec<Arc<Post>>,
    stopping: bool,
}

struct Shared {
    queues: Mutex<Queues>,
    work: Condvar,
    /// For the watchman, who keeps time.
    clock: Condvar,
    ended: Condvar,
    short: Condvar,
    threads: u32,
    /// What is under watch may take this long.
    limit: Duration,
}

/// Where a thread leaves word of what it has under watch.
type Post = Mutex<Option<Arc<Watch>>>;

/// The threads of an engine.
pub struct Pool {
    shared: Arc<Shared>,
}

/// What a task knows of the thread that it runs on.
pub struct Worker {
    pool: Arc<Shared>,
    post: Arc<Post>,
    /// The thread was given up and ends after this task.
    lost: Cell<bool>,
}

/// Put off until `at`; earliest first.
struct Later {
    at: Instant,
    task: Task,
}

impl PartialEq for Later {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for Later {}
impl PartialOrd for Later {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Later {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

const RUNNING: u8 = 0;
const DONE: u8 = 1;
const GIVEN_UP: u8 = 2;

type OnTimeout = Box<dyn FnOnce(Hung) + Send>;

struct Watch {
    state: AtomicU8,
    since: Instant,
    on_timeout: Mutex<Option<OnTimeout>>,
}

/// How many threads hang when a read is given up.
#[derive(Clone, Copy, Debug)]
pub struct Hung {
    pub threads: u32,
    /// There are too many: no fresh thread was started.
    pub too_many: bool,
}

/// How something under watch ended.
#[derive(Debug)]
pub enum Watched<T> {
    InTime(T),
    /// It was given up: its result is nobody's business any more.
    TooLate,
}

impl Pool {
    /// `limit` is how long what is under watch may take.
    pub fn new(threads: u32, limit: Duration) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
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
        let watchman = pool.shared.clone();
        std::thread::Builder::new()
            .name("belady-watch".into())
            .spawn(move || watchman.keep_watch())?;
        Ok(pool)
    }

    pub fn threads(&self) -> u32 {
        self.shared.threads
    }

    pub fn submit(&self, tasks: impl IntoIterator<Item = Task>) {
        let mut queues = lock(&self.shared.queues);
        let before = queues.urgent.len();
        queues.urgent.extend(tasks);
        let added = queues.urgent.len() - before;
        self.shared.wake(queues, added);
    }

    /// Before all that waits: for what the oldest batch still lacks.
    pub fn submit_first(
        &self,
        tasks: impl IntoIterator<Item = Task, IntoIter: DoubleEndedIterator>,
    ) {
        let mut queues = lock(&self.shared.queues);
        let before = queues.urgent.len();
        for task in tasks.into_iter().rev() {
            queues.urgent.push_front(task);
        }
        let added = queues.urgent.len() - before;
        self.shared.wake(queues, added);
    }

    /// When nothing urgent is left to do.
    pub fn submit_background(&self, tasks: impl IntoIterator<Item = Task>) {
        let mut queues = lock(&self.shared.queues);
        let before = queues.background.len();
        queues.background.extend(tasks);
        let added = queues.background.len() - before;
        self.shared.wake(queues, added);
    }

    pub fn delay(&self, pause: Duration, task: Task) {
        let mut queues = lock(&self.shared.queues);
        queues.later.push(Later { at: Instant::now() + pause, task });
        drop(queues);
        self.shared.clock.notify_all();
    }

    /// Waits until there is little urgent work left, at most so long.
    pub fn wait_until_short(&self, limit: usize, timeout: Duration) {
        let mut queues = lock(&self.shared.queues);
        if queues.urgent.len() >= limit {
            queues.wanted_short = queues.wanted_short.max(limit);
            drop(self.shared.short.wait_timeout(queues, timeout));
        }
    }

    /// Urgent work that waits for a thread.
    pub fn queued(&self) -> usize {
        lock(&self.shared.queues).urgent.len()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.shared.threads).finish_non_exhaustive()
    }
}

impl Drop for Pool {
    /// Lets running tasks end and drops the others. Threads that hang are left behind: they
    /// own what they touch.
    fn drop(&mut self) {
        let mut queues = lock(&self.shared.queues);
        queues.stopping = true;
        let dropped = (
            std::mem::take(&mut queues.urgent),
            std::mem::take(&mut queues.background),
            std::mem::take(&mut queues.later),
        );
        drop(queues);
        drop(dropped);
        self.shared.work.notify_all();
        self.shared.clock.notify_all();
        let until = Instant::now() + GRACE;
        let mut queues = lock(&self.shared.queues);
        while queues.threads > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!(threads = queues.threads, "left threads behind in hung reads");
                break;
            }
            queues = match self.shared.ended.wait_timeout(queues, left) {
                Ok((queues, _)) => queues,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Shared {
    fn start_worker(self: &Arc<Self>) -> std::io::Result<()> {
        let (pool, post) = (self.clone(), Arc::new(Post::default()));
        let worker = Worker { pool, post: post.clone(), lost: Cell::new(false) };
        {
            let mut queues = lock(&self.queues);
            queues.threads += 1;
            queues.posts.push(post);
        }
        let started =
            std::thread::Builder::new().name("belady-load".into()).spawn(move || worker.run());
        if let Err(error) = started {
            let mut queues = lock(&self.queues);
            queues.threads -= 1;
            queues.posts.pop();
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

    fn next(&self) -> Option<(Task, bool)> {
        // Background work must leave somebody for what becomes urgent.
        let most_in_background = (self.threads / 2).max(1);
        let mut queues = lock(&self.queues);
        loop {
            if queues.stopping {
                return None;
            }
            if let Some(task) = queues.urgent.pop_front() {
                if queues.urgent.len() < queues.wanted_short {
                    queues.wanted_short = 0;
                    self.short.notify_all();
                }
                return Some((task, false));
            }
            if queues.in_background < most_in_background
                && let Some(task) = queues.background.pop_front()
            {
                queues.in_background += 1;
                return Some((task, true));
            }
            queues.sleeping += 1;
            queues = self.work.wait(queues).unwrap_or_else(PoisonError::into_inner);
            queues.sleeping -= 1;
        }
    }

    fn keep_watch(self: Arc<Self>) {
        // A read is given up at most this much after its time.
        let tick = (self.limit / 8).max(Duration::from_millis(1));
        let mut queues = lock(&self.queues);
        while !queues.stopping {
            let now = Instant::now();
            let mut due = vec![];
            while queues.later.peek().is_some_and(|later| later.at <= now) {
                due.extend(queues.later.pop().map(|later| later.task));
            }
            let late: Vec<_> =
                queues.posts.iter().filter_map(|post| self.late(post, now)).collect();
            if due.is_empty() && late.is_empty() {
                let next = queues.later.peek().map_or(tick, |later| (later.at - now).min(tick));
                queues = match self.clock.wait_timeout(queues, next) {
                    Ok((queues, _)) => queues,
                    Err(poisoned) => poisoned.into_inner().0,
                };
                continue;
            }
            let added = due.len();
            queues.urgent.extend(due);
            self.wake(queues, added);
            for watch in late {
                self.give_up(&watch);
            }
            queues = lock(&self.queues);
        }
    }

    /// What a thread has under watch, if it takes too long.
    fn late(&self, post: &Post, now: Instant) -> Option<Arc<Watch>> {
        let watch = lock(post);
        let watch = watch.as_ref()?;
        let late = now.saturating_duration_since(watch.since) > self.limit;
        (late && watch.state.load(Ordering::Acquire) == RUNNING).then(|| watch.clone())
    }

    fn give_up(self: &Arc<Self>, watch: &Watch) {
        let given_up =
            watch.state.compare_exchange(RUNNING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
        if given_up.is_err() {
            return;
        }
        let hung = {
            let mut queues = lock(&self.queues);
            queues.hung += 1;
            queues.threads -= 1;
            queues.hung
        };
        let too_many = hung > self.threads * HUNG_PER_THREAD || self.start_worker().is_err();
        let on_timeout = lock(&watch.on_timeout).take();
        if let Some(on_timeout) = on_timeout {
            on_timeout(Hung { threads: hung, too_many });
        }
    }
}

impl Worker {
    fn run(self) {
        while !self.lost.get()
            && let Some((task, background)) = self.pool.next()
        {
            // A panic is a defect of ours, but must not leave a consumer waiting for ever: the
            // task's own guards tell the job, and this thread goes on.
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| task(&self)));
            if outcome.is_err() {
                tracing::error!("a loading task failed with a panic");
            }
            if background {
                lock(&self.pool.queues).in_background -= 1;
            }
        }
        let mut queues = lock(&self.pool.queues);
        queues.posts.retain(|post| !Arc::ptr_eq(post, &self.post));
        if self.lost.get() {
            queues.hung -= 1;
        } else {
            queues.threads -= 1;
        }
        drop(queues);
        self.pool.ended.notify_all();
    }

    /// Does something that may hang. If it takes longer than the pool's limit, `on_timeout` is
    /// called elsewhere and this thread is replaced.
    pub fn watch<T>(
        &self,
        on_timeout: impl FnOnce(Hung) + Send + 'static,
        work: impl FnOnce() -> T,
    ) -> Watched<T> {
        let watch = Arc::new(Watch {
            state: AtomicU8::new(RUNNING),
            since: Instant::now(),
            on_timeout: Mutex::new(Some(Box::new(on_timeout))),
        });
        *lock(&self.post) = Some(watch.clone());
        let result = work();
        *lock(&self.post) = None;
        let in_time =
            watch.state.compare_exchange(RUNNING, DONE, Ordering::AcqRel, Ordering::Acquire);
        if in_time.is_ok() {
            return Watched::InTime(result);
        }
        self.lost.set(true);
        Watched::TooLate
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
    fn work_is_taken_in_order_and_urgent_first() {
        let pool = Pool::new(1, Duration::from_mins(1)).unwrap();
        let (hold, held) = mpsc::channel::<()>();
        let (seen, order) = mpsc::channel();
        pool.submit([task(move |_| held.recv().unwrap())]);
        let say = |number: u32| {
            let seen = seen.clone();
            task(move |_| seen.send(number).unwrap())
        };
        pool.submit_background([say(9)]);
        pool.submit([say(2), say(3)]);
        pool.submit_first([say(0), say(1)]);
        hold.send(()).unwrap();
        assert_eq!(order.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 9]);
    }

    #[test]
    fn what_hangs_is_given_up_and_its_thread_replaced() {
        let pool = Pool::new(1, Duration::from_millis(20)).unwrap();
        let (hold, held) = mpsc::channel::<()>();
        let (seen, told) = mpsc::channel();
        let late = seen.clone();
        pool.submit([task(move |worker| {
            let given_up = late.clone();
            let watched = worker.watch(
                move |hung| given_up.send(format!("given up, {} hang", hung.threads)).unwrap(),
                || held.recv().unwrap(),
            );
            late.send(format!("{watched:?}")).unwrap();
        })]);
        assert_eq!(told.recv().unwrap(), "given up, 1 hang");
        pool.submit([task(move |_| seen.send("others go on".into()).unwrap())]);
        assert_eq!(told.recv().unwrap(), "others go on");
        hold.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), "TooLate");
    }

    #[test]
    fn a_panic_leaves_the_pool_working_and_a_stop_drops_what_waits() {
        let pool = Pool::new(1, Duration::from_mins(1)).unwrap();
        let (seen, told) = mpsc::channel();
        pool.submit([task(|_| panic!("on purpose"))]);
        let first = seen.clone();
        pool.submit([task(move |_| first.send(1).unwrap())]);
        assert_eq!(told.recv().unwrap(), 1);
        pool.delay(Duration::from_mins(10), task(move |_| seen.send(2).unwrap()));
        drop(pool);
        assert_eq!(told.recv(), Err(mpsc::RecvError));
    }
}

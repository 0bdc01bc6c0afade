//! A thread of the pool.

use std::cell::{Cell, RefCell};
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belady_base::sync::{Arc, lock};
use rustix::thread::set_name;

use super::duty::Duty;
use super::placement::PlacedThread;
use super::queues::Queues;
use super::stage::TransformWork;
use super::task_share::TaskShare;
use super::watchdog::{Hung, WatchPost, Watched, WatchedCall};
use super::{PoolShared, Task};

/// The thread that a task runs on.
pub struct Worker {
    pool: Arc<PoolShared>,
    post: Arc<WatchPost>,
    duty: Cell<Duty>,
    placed: RefCell<PlacedThread>,
    /// The thread was given up in the middle of the present task.
    lost: Cell<bool>,
    share: Cell<TaskShare>,
}

/// What a thread does next.
enum NextWork {
    Task(Task, TaskShare),
    /// A stage and its rank, after some idle time.
    Stage(u64, usize, Duration, Arc<dyn TransformWork>),
}

/// What a thread has ended, and has not been given up in.
#[derive(Clone, Copy)]
enum Ended {
    Nothing,
    Task,
    Stage(u64),
}

/// Starts a thread with a duty.
pub fn start(pool: &Arc<PoolShared>, duty: Duty) -> std::io::Result<()> {
    let post = Arc::new(WatchPost::default());
    {
        let mut queues = lock(&pool.queues);
        queues.threads[duty] += 1;
        queues.posts.push(post.clone());
    }
    let (for_thread, own_post) = (pool.clone(), post.clone());
    let name = std::thread::Builder::new().name(duty.thread_name().into());
    let started = name.spawn(move || {
        let mut placed = PlacedThread::of_this_thread(for_thread.placement.clone());
        // A thread may always yield more, and this one has not yielded yet.
        placed.turn_to(duty);
        let (duty, placed) = (Cell::new(duty), RefCell::new(placed));
        let (lost, share) = (Cell::new(false), Cell::default());
        Worker { pool: for_thread, post: own_post, duty, placed, lost, share }.run();
    });
    if let Err(error) = started {
        let mut queues = lock(&pool.queues);
        queues.threads[duty] -= 1;
        queues.posts.retain(|other| !Arc::ptr_eq(other, &post));
        return Err(error);
    }
    Ok(())
}

impl Worker {
    fn run(self) {
        let mut ended = Ended::Nothing;
        while let Some(work) = self.next(ended) {
            // A panic is a defect of belady. The task fails its job; this thread goes on.
            let outcome = match work {
                NextWork::Task(task, share) => {
                    self.share.set(share);
                    let outcome = catch_unwind(AssertUnwindSafe(|| task(&self)));
                    ended = if self.lost.get() { Ended::Nothing } else { Ended::Task };
                    if self.lost.replace(false) && !self.is_needed_again() {
                        break;
                    }
                    outcome
                }
                NextWork::Stage(id, rank, idled, stage) => {
                    self.placed.borrow_mut().work_for(rank, stage.ranks());
                    let leave = || self.pool.crowded.load(Ordering::Relaxed);
                    let outcome = catch_unwind(AssertUnwindSafe(|| stage.run(idled, &leave)));
                    // The stage may hold the last reference to a job.
                    drop(stage);
                    ended = Ended::Stage(id);
                    outcome
                }
            };
            if outcome.is_err() {
                tracing::error!("a task of the engine panicked");
            }
        }
        let mut queues = lock(&self.pool.queues);
        queues.posts.retain(|post| !Arc::ptr_eq(post, &self.post));
        drop(queues);
        self.pool.ended.notify_all();
    }

    /// Returns the next work, after what has `ended`; `None` if the thread is to end.
    fn next(&self, ended: Ended) -> Option<NextWork> {
        let pool = &self.pool;
        let mut queues = lock(&pool.queues);
        match ended {
            Ended::Task => queues.ended(self.share.get()),
            Ended::Stage(id) => queues.leave_stage(id),
            Ended::Nothing => {}
        }
        if !matches!(ended, Ended::Nothing) && queues.closing > 0 {
            pool.ended.notify_all();
        }
        let mut idle_since = None;
        loop {
            if queues.stopping || !self.settle(&mut queues) {
                queues.threads[self.duty.get()] -= 1;
                pool.note_crowd(&queues);
                // Another thread may have to take its place, and do what this one was woken for.
                pool.clock.notify_all();
                pool.work.notify_one();
                return None;
            }
            let sleeps_on = match self.duty.get() {
                Duty::Load => {
                    // Background tasks leave threads for tasks that become urgent.
                    let most_in_background = (queues.wanted[Duty::Load] / 2).max(1);
                    if let Some(found) = queues.take(most_in_background) {
                        if found.short {
                            pool.short.notify_all();
                        }
                        return Some(NextWork::Task(found.task, found.share));
                    }
                    &pool.work
                }
                Duty::Transform => {
                    if let Some((id, rank, stage)) = queues.take_stage() {
                        let idled =
                            idle_since.map_or(Duration::ZERO, |since: Instant| since.elapsed());
                        return Some(NextWork::Stage(id, rank, idled, stage));
                    }
                    idle_since.get_or_insert_with(Instant::now);
                    &pool.transforms
                }
            };
            queues.sleeping[self.duty.get()] += 1;
            queues = sleeps_on.wait(queues).unwrap_or_else(PoisonError::into_inner);
            queues.sleeping[self.duty.get()] -= 1;
        }
    }

    /// Changes the duty of this thread if too many have it and too few the other; returns whether
    /// the thread goes on.
    fn settle(&self, queues: &mut Queues) -> bool {
        let duty = self.duty.get();
        if queues.threads[duty] <= queues.wanted[duty] {
            return true;
        }
        let other = duty.other();
        let is_missing = queues.threads[other] < queues.wanted[other];
        if !is_missing || !self.placed.borrow_mut().turn_to(other) {
            return false;
        }
        queues.threads[duty] -= 1;
        queues.threads[other] += 1;
        self.duty.set(other);
        // Only a name.
        let _ = CString::new(other.thread_name()).map(|name| set_name(&name));
        self.pool.note_crowd(queues);
        // It may have been woken for a task.
        self.pool.work.notify_one();
        true
    }

    /// Counts a hung thread that has come back; returns whether it goes on.
    fn is_needed_again(&self) -> bool {
        let mut queues = lock(&self.pool.queues);
        queues.hung -= 1;
        if queues.stopping || queues.threads[Duty::Load] >= queues.wanted[Duty::Load] {
            return false;
        }
        queues.threads[Duty::Load] += 1;
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

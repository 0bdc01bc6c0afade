//! A job's queue in the pool.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use belady_base::sync::{Arc, lock};

use super::duty::{Duty, LaneThreads, TransformShare};
use super::queues::{DelayedTask, UrgentTask};
use super::stage::{StageEntry, StageSlot, TransformWork};
use super::{GRACE, PoolShared, Task, wait_for};

/// A job's queue in the pool.
pub struct Lane {
    pool: Arc<PoolShared>,
    id: u64,
}

/// How the threads of a pool are divided, as one lane sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneDivision {
    /// The threads of the pool that load.
    pub loading: u32,
    /// The threads of the pool that transform.
    pub transforming: u32,
    /// What the lane uses of them.
    pub of_lane: LaneThreads,
    /// The ranks that have a transform stage, and the threads that it brought.
    stages: Vec<(usize, u32)>,
}

impl LaneDivision {
    /// Returns how many threads may transform for a rank at once.
    pub fn transforming_for(&self, rank: usize) -> u32 {
        let Some((_, brought)) = self.stages.iter().find(|(of, _)| *of == rank) else { return 0 };
        match self.of_lane.transforming {
            TransformShare::Pooled => self.transforming,
            TransformShare::PerRank => self.transforming.min(*brought),
            TransformShare::Threads(threads) => self.transforming.min(threads),
        }
    }
}

impl Lane {
    pub(super) fn new(pool: Arc<PoolShared>) -> Self {
        let id = lock(&pool.queues).open_lane();
        Self { pool, id }
    }

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

    /// Sets how the lane uses its threads. Tasks that the old limits held back may run now.
    pub fn assign(&self, threads: LaneThreads) {
        let mut queues = lock(&self.pool.queues);
        let lane = queues.lane_mut(self.id).filter(|lane| lane.threads != threads);
        let Some(lane) = lane else { return };
        lane.threads = threads;
        self.pool.redivide(&mut queues);
    }

    /// Lets threads work for a transform stage of a rank. The stage brings so many threads.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn add_stage(
        &self,
        rank: usize,
        threads: u32,
        work: Arc<dyn TransformWork>,
    ) -> std::io::Result<StageSlot> {
        let mut queues = lock(&self.pool.queues);
        queues.next_stage += 1;
        let slot = StageSlot { pool: self.pool.clone(), id: queues.next_stage };
        let (id, lane) = (slot.id, self.id);
        queues.stages.push(StageEntry { id, lane, rank, threads, running: 0, work });
        self.pool.redivide(&mut queues);
        drop(queues);
        // Dropping the slot takes back those that were started.
        self.pool.start_missing()?;
        Ok(slot)
    }

    /// Returns the threads of this lane for all duties: what its stages brought, and an equal share
    /// of those before.
    pub fn share(&self) -> u32 {
        let queues = lock(&self.pool.queues);
        let own = queues.stages.iter().filter(|stage| stage.lane == self.id);
        let brought: u32 = own.map(|stage| stage.threads).sum();
        self.pool.threads / (queues.lanes() as u32).max(1) + brought
    }

    /// Returns how the threads are divided now.
    pub fn division(&self) -> LaneDivision {
        let queues = lock(&self.pool.queues);
        let stages = queues.stages.iter().filter(|stage| stage.lane == self.id);
        LaneDivision {
            loading: queues.wanted[Duty::Load],
            transforming: queues.wanted[Duty::Transform],
            of_lane: queues.lane(self.id).map(|lane| lane.threads.clone()).unwrap_or_default(),
            stages: stages.map(|stage| (stage.rank, stage.threads)).collect(),
        }
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

    /// Returns the number of threads that load now.
    pub fn threads(&self) -> u32 {
        self.pool.loading.load(Ordering::Relaxed)
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

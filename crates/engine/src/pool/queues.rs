//! The tasks that wait for a thread, by lane, and the stages that threads work for.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

use belady_base::sync::Arc;

use super::Task;
use super::duty::{ByDuty, Duty, LaneThreads, TransformShare, divide};
use super::stage::{StageEntry, TransformWork};
use super::task_share::TaskShare;
use super::watchdog::WatchPost;

/// All waiting and running tasks of a pool.
#[derive(Default)]
pub struct Queues {
    /// In the order of their turns.
    lanes: VecDeque<LaneQueue>,
    next_lane: u64,
    pub later: BinaryHeap<DelayedTask>,
    /// Tasks of each lane that run now and do not hang.
    running: Vec<(u64, u32)>,
    /// Lanes that are being closed.
    pub closing: u32,
    /// Background tasks that run now.
    in_background: u32,
    pub sleeping: ByDuty,
    /// Threads that were not given up.
    pub threads: ByDuty,
    /// How many there are to be.
    pub wanted: ByDuty,
    pub stages: Vec<StageEntry>,
    pub next_stage: u64,
    pub hung: u32,
    /// By thread: its watched call.
    pub posts: Vec<Arc<WatchPost>>,
    pub stopping: bool,
}

/// The waiting tasks of one lane.
#[derive(Default)]
pub struct LaneQueue {
    id: u64,
    pub urgent: VecDeque<UrgentTask>,
    pub background: VecDeque<Task>,
    pub threads: LaneThreads,
    /// By rank: how many of its tasks run.
    running: Vec<u32>,
    /// A planner waits for fewer urgent tasks than this.
    pub wanted_short: usize,
}

/// A task before those in the background.
pub struct UrgentTask {
    /// The rank whose share of the threads it takes; `None` for a task that takes any.
    pub rank: Option<usize>,
    pub task: Task,
}

/// A task that waits until `at`; ordered earliest first.
pub struct DelayedTask {
    pub at: Instant,
    pub lane: u64,
    pub task: Task,
}

/// A task for a thread.
pub struct NextTask {
    pub task: Task,
    pub share: TaskShare,
    /// The lane has become as short as its planner waits for.
    pub short: bool,
}

impl Queues {
    pub fn open_lane(&mut self) -> u64 {
        self.next_lane += 1;
        self.lanes.push_back(LaneQueue { id: self.next_lane, ..LaneQueue::default() });
        self.next_lane
    }

    /// Removes a lane and returns its tasks, for the caller to drop without the lock.
    pub fn close_lane(&mut self, id: u64) -> (Option<LaneQueue>, Vec<DelayedTask>) {
        let at = self.lanes.iter().position(|lane| lane.id == id);
        let lane = at.and_then(|at| self.lanes.remove(at));
        let (left, kept) = std::mem::take(&mut self.later)
            .into_vec()
            .into_iter()
            .partition(|later| later.lane == id);
        self.later = Vec::into(kept);
        (lane, left)
    }

    /// Stops the pool and returns all tasks, for the caller to drop without the lock.
    pub fn stop(&mut self) -> (VecDeque<LaneQueue>, BinaryHeap<DelayedTask>) {
        self.stopping = true;
        (std::mem::take(&mut self.lanes), std::mem::take(&mut self.later))
    }

    pub fn lane(&self, id: u64) -> Option<&LaneQueue> {
        self.lanes.iter().find(|lane| lane.id == id)
    }

    /// Returns the number of lanes.
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    pub fn lane_mut(&mut self, id: u64) -> Option<&mut LaneQueue> {
        self.lanes.iter_mut().find(|lane| lane.id == id)
    }

    /// Returns how many threads each duty is to have; `before` were there before any stage.
    pub fn divided(&self, before: u32) -> ByDuty {
        let mut lanes: Vec<(u64, u32, TransformShare)> = vec![];
        for stage in &self.stages {
            if let Some((_, brought, _)) = lanes.iter_mut().find(|(lane, ..)| *lane == stage.lane) {
                *brought += stage.threads;
                continue;
            }
            let lane = self.lane(stage.lane);
            let share = lane.map_or(TransformShare::Pooled, |lane| lane.threads.transforming);
            lanes.push((stage.lane, stage.threads, share));
        }
        divide(before, lanes.into_iter().map(|(_, brought, share)| (brought, share)))
    }

    /// Returns a duty with too few threads, if no thread of the other is to change its duty. None
    /// is missing while more than so many hang.
    pub fn missing(&self, most_hung: u32) -> Option<Duty> {
        let is_short = self.threads.total() < self.wanted.total();
        let may_start = is_short && !self.stopping && self.hung <= most_hung;
        let too_few = |duty: &Duty| self.threads[*duty] < self.wanted[*duty];
        Duty::ALL.into_iter().find(|duty| may_start && too_few(duty))
    }

    /// Adds tasks to a lane, unless it is closed; returns how many.
    pub fn add(&mut self, id: u64, add: impl FnOnce(&mut LaneQueue)) -> usize {
        let Some(lane) = self.lane_mut(id) else { return 0 };
        let before = lane.urgent.len() + lane.background.len();
        add(lane);
        lane.urgent.len() + lane.background.len() - before
    }

    pub fn take_due(&mut self, now: Instant) -> Vec<DelayedTask> {
        let mut due = vec![];
        while self.later.peek().is_some_and(|later| later.at <= now) {
            due.extend(self.later.pop());
        }
        due
    }

    /// Takes the next task that may run, of the lane whose turn it is; limits running background
    /// tasks.
    pub fn take(&mut self, most_in_background: u32) -> Option<NextTask> {
        let background = self.in_background < most_in_background;
        let urgent = (0..).zip(&self.lanes).find_map(|(at, lane)| Some((at, lane.next_urgent()?)));
        let (at, urgent) = match urgent {
            Some((at, task)) => (at, Some(task)),
            None if background => {
                (self.lanes.iter().position(|lane| !lane.background.is_empty())?, None)
            }
            None => return None,
        };
        let mut lane = self.lanes.remove(at)?;
        let (rank, task) = match urgent.and_then(|at| lane.urgent.remove(at)) {
            Some(UrgentTask { rank, task }) => (rank, Some(task)),
            None => (None, lane.background.pop_front()),
        };
        if let Some(rank) = rank {
            lane.count(rank, true);
        }
        let short = lane.urgent.len() < lane.wanted_short;
        if short {
            lane.wanted_short = 0;
        }
        let share = TaskShare { lane: lane.id, rank, is_background: urgent.is_none() };
        self.in_background += u32::from(share.is_background);
        match self.running.iter_mut().find(|(lane, _)| *lane == share.lane) {
            Some((_, running)) => *running += 1,
            None => self.running.push((share.lane, 1)),
        }
        self.lanes.push_back(lane);
        Some(NextTask { task: task?, share, short })
    }

    /// Counts a task that has ended or hangs.
    pub fn ended(&mut self, TaskShare { lane, rank, is_background }: TaskShare) {
        self.in_background -= u32::from(is_background);
        if let (Some(rank), Some(lane)) = (rank, self.lane_mut(lane)) {
            lane.count(rank, false);
        }
        if let Some(at) = self.running.iter().position(|(other, _)| *other == lane) {
            self.running[at].1 -= 1;
            if self.running[at].1 == 0 {
                self.running.swap_remove(at);
            }
        }
    }

    pub fn is_running(&self, lane: u64) -> bool {
        self.running.iter().any(|(other, _)| *other == lane)
    }

    pub fn stage(&self, id: u64) -> Option<&StageEntry> {
        self.stages.iter().find(|stage| stage.id == id)
    }

    /// Takes the stage that a thread is to work for, and counts the thread.
    pub fn take_stage(&mut self) -> Option<(u64, usize, Arc<dyn TransformWork>)> {
        let running = |lane: u64| -> u32 {
            self.stages.iter().filter(|stage| stage.lane == lane).map(|stage| stage.running).sum()
        };
        let may_run = |stage: &StageEntry| {
            let share = self
                .lane(stage.lane)
                .map_or(TransformShare::Pooled, |lane| lane.threads.transforming);
            match share {
                TransformShare::Pooled => true,
                TransformShare::PerRank => stage.running < stage.threads,
                TransformShare::Threads(threads) => running(stage.lane) < threads.max(1),
            }
        };
        let late = self.stages.iter().enumerate().filter(|(_, stage)| may_run(stage));
        let late = late.filter_map(|(at, stage)| {
            Some((Reverse(running(stage.lane)), stage.work.lateness()?, Reverse(stage.rank), at))
        });
        let (.., at) = late.max()?;
        let stage = &mut self.stages[at];
        stage.running += 1;
        Some((stage.id, stage.rank, stage.work.clone()))
    }

    /// Counts a thread that has stopped working for a stage.
    pub fn leave_stage(&mut self, id: u64) {
        if let Some(stage) = self.stages.iter_mut().find(|stage| stage.id == id) {
            stage.running -= 1;
        }
    }
}

impl LaneQueue {
    /// Returns the index of the first urgent task whose rank has a thread left; of soft limits,
    /// else of the first.
    fn next_urgent(&self) -> Option<usize> {
        let limits = &self.threads.loading;
        let may_run = |rank: usize| match (limits.get(rank), self.running.get(rank)) {
            (Some(limit), Some(running)) => running < limit,
            _ => true,
        };
        let within = self.urgent.iter().position(|urgent| urgent.rank.is_none_or(may_run));
        let beyond = self.threads.is_soft && !self.urgent.is_empty();
        within.or_else(|| beyond.then_some(0))
    }

    fn count(&mut self, rank: usize, begins: bool) {
        if self.running.len() <= rank {
            self.running.resize(rank + 1, 0);
        }
        let running = &mut self.running[rank];
        *running = if begins { *running + 1 } else { running.saturating_sub(1) };
    }
}

impl PartialEq for DelayedTask {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl Eq for DelayedTask {}
impl PartialOrd for DelayedTask {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for DelayedTask {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

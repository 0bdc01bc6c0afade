//! What waits for a thread, by lane.

use std::collections::{BinaryHeap, VecDeque};
use std::time::Instant;

use belady_data::sync::Arc;

use super::Task;
use super::watch::Post;

#[derive(Default)]
pub struct Queues {
    /// In the order of their turns.
    lanes: VecDeque<Waiting>,
    next_lane: u64,
    pub later: BinaryHeap<Later>,
    /// Tasks of each lane that run now and do not hang.
    running: Vec<(u64, u32)>,
    /// Lanes that somebody waits for to end.
    pub closing: u32,
    /// Background tasks that run now.
    in_background: u32,
    pub sleeping: u32,
    /// Threads that were not given up.
    pub threads: u32,
    pub hung: u32,
    /// What each thread has under watch.
    pub posts: Vec<Arc<Post>>,
    pub stopping: bool,
}

/// The work of one lane.
#[derive(Default)]
pub struct Waiting {
    id: u64,
    pub urgent: VecDeque<Task>,
    pub background: VecDeque<Task>,
    /// Somebody waits for the urgent work to become less than this.
    pub wanted_short: usize,
}

/// Put off until `at`; earliest first.
pub struct Later {
    pub at: Instant,
    pub lane: u64,
    pub task: Task,
}

/// A task for a thread.
pub struct Found {
    pub task: Task,
    pub lane: u64,
    pub background: bool,
    /// Its lane has become as short as somebody wants it.
    pub short: bool,
}

impl Queues {
    pub fn open_lane(&mut self) -> u64 {
        self.next_lane += 1;
        self.lanes.push_back(Waiting { id: self.next_lane, ..Waiting::default() });
        self.next_lane
    }

    /// Its work, for the caller to drop without a lock.
    pub fn close_lane(&mut self, id: u64) -> (Option<Waiting>, Vec<Later>) {
        let at = self.lanes.iter().position(|lane| lane.id == id);
        let lane = at.and_then(|at| self.lanes.remove(at));
        let (left, kept) = std::mem::take(&mut self.later)
            .into_vec()
            .into_iter()
            .partition(|later| later.lane == id);
        self.later = Vec::into(kept);
        (lane, left)
    }

    /// All work, for the caller to drop without a lock.
    pub fn stop(&mut self) -> (VecDeque<Waiting>, BinaryHeap<Later>) {
        self.stopping = true;
        (std::mem::take(&mut self.lanes), std::mem::take(&mut self.later))
    }

    pub fn lane(&self, id: u64) -> Option<&Waiting> {
        self.lanes.iter().find(|lane| lane.id == id)
    }

    pub fn lane_mut(&mut self, id: u64) -> Option<&mut Waiting> {
        self.lanes.iter_mut().find(|lane| lane.id == id)
    }

    /// Adds work to a lane, unless that is closed; how much was added.
    pub fn add(&mut self, id: u64, add: impl FnOnce(&mut Waiting)) -> usize {
        let Some(lane) = self.lane_mut(id) else { return 0 };
        let before = lane.urgent.len() + lane.background.len();
        add(lane);
        lane.urgent.len() + lane.background.len() - before
    }

    pub fn take_due(&mut self, now: Instant) -> Vec<Later> {
        let mut due = vec![];
        while self.later.peek().is_some_and(|later| later.at <= now) {
            due.extend(self.later.pop());
        }
        due
    }

    /// The next task, of the lane whose turn it is; at most so many in the background.
    pub fn take(&mut self, most_in_background: u32) -> Option<Found> {
        let background = self.in_background < most_in_background;
        let at = self.lanes.iter().position(|lane| !lane.urgent.is_empty());
        let at = at.or_else(|| {
            self.lanes.iter().position(|lane| background && !lane.background.is_empty())
        })?;
        let mut lane = self.lanes.remove(at)?;
        let (task, background) = match lane.urgent.pop_front() {
            Some(task) => (Some(task), false),
            None => (lane.background.pop_front(), true),
        };
        let short = lane.urgent.len() < lane.wanted_short;
        if short {
            lane.wanted_short = 0;
        }
        self.in_background += u32::from(background);
        let id = lane.id;
        match self.running.iter_mut().find(|(lane, _)| *lane == id) {
            Some((_, running)) => *running += 1,
            None => self.running.push((id, 1)),
        }
        self.lanes.push_back(lane);
        Some(Found { task: task?, lane: id, background, short })
    }

    /// A task has ended or hangs.
    pub fn ended(&mut self, lane: u64, background: bool) {
        self.in_background -= u32::from(background);
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

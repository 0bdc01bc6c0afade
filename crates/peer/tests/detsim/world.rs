//! Virtual time: events, one after another.

use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use belady_control::policy::NodeId;

use crate::message::Envelope;
use crate::node::{Batch, Consumer, Item, Node};
use crate::random::Random;
use crate::scenario::{Away, Scenario};
use crate::source::Read;
use crate::tier::SimTier;

#[derive(Clone, Debug)]
pub enum Happening {
    Arrives(Envelope),
    /// A node's call was not answered, or its connection was reset.
    Fails {
        node: NodeId,
        life: u32,
        call: u64,
    },
    /// The source has served a node's oldest read.
    Read {
        node: NodeId,
    },
    /// It is time to ask for these again.
    AskAgain {
        node: NodeId,
        life: u32,
        step: u64,
        items: Vec<usize>,
    },
    Computed {
        node: NodeId,
        life: u32,
    },
    Wake {
        node: NodeId,
        life: u32,
    },
    /// It is time to service the push queue.
    LookAfter {
        node: NodeId,
        life: u32,
    },
    Incident,
    /// Nodes disappear for a while.
    Absence,
    /// The node that the scenario names disappears.
    GoesAway(Away),
    /// A stopped process continues.
    Continue {
        node: NodeId,
        life: u32,
    },
    Restart {
        node: NodeId,
        warm: bool,
        /// With the first epoch, not with that of its consumer.
        from_start: bool,
    },
    Heal {
        from: NodeId,
        to: NodeId,
    },
    SourceRecovers,
}

struct Entry {
    at: Duration,
    number: u64,
    what: Happening,
}

impl Happening {
    /// Returns the node of the event; if it is stopped, the event waits.
    fn actor(&self) -> Option<NodeId> {
        match *self {
            Self::Arrives(Envelope { to, .. }) => Some(to),
            Self::Fails { node, .. }
            | Self::AskAgain { node, .. }
            | Self::Computed { node, .. }
            | Self::Wake { node, .. }
            | Self::LookAfter { node, .. } => Some(node),
            _ => None,
        }
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Samples that were read from the source, by epoch of their use.
    pub source_reads: Vec<u64>,
    /// Those of them that the plan expects.
    pub planned_reads: Vec<u64>,
    pub peer_reads: u64,
    pub pushed: u64,
    /// Pushes that were dropped.
    pub dropped: u64,
    pub crashes: u64,
    pub longest_wait: Duration,
    pub ended_at: Duration,
    /// By node: when its consumer had all its epochs.
    pub done_at: Vec<Duration>,
    /// Steps that ended before all nodes had loaded them.
    pub given_up: u64,
    pub largest_push_queue: u64,
}

pub struct World {
    pub scenario: Scenario,
    pub random: Random,
    pub now: Duration,
    queue: BinaryHeap<Entry>,
    pub numbers: u64,
    pub nodes: Vec<Node>,
    /// Links that are cut, by `from * nodes + to`.
    pub cut: Vec<bool>,
    /// By node: its waiting reads of the source.
    pub reads: Vec<VecDeque<Read>>,
    pub slow_source: bool,
    pub longest_read: Duration,
    /// Steps that each consumer has finished.
    pub finished: Vec<u64>,
    pub outcome: Outcome,
}

impl World {
    pub fn new(scenario: Scenario) -> Self {
        let count = scenario.job.system.nodes;
        let mut world = Self {
            random: Random::new(scenario.seed ^ 0x5eed),
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            numbers: 0,
            nodes: vec![],
            cut: vec![false; (count * count) as usize],
            reads: vec![VecDeque::new(); count as usize],
            slow_source: false,
            longest_read: Duration::ZERO,
            finished: vec![0; count as usize],
            outcome: Outcome::default(),
            scenario,
        };
        let epochs = world.scenario.epochs as usize;
        world.outcome.source_reads = vec![0; epochs];
        world.outcome.planned_reads = vec![0; epochs];
        world.outcome.done_at = vec![Duration::ZERO; count as usize];
        for id in 0..count {
            let shelves = world.empty_shelves(id);
            world.nodes.push(Node::new(id, 1, &world.scenario, 0, shelves));
        }
        world
    }

    pub fn empty_shelves(&self, node: NodeId) -> Vec<SimTier> {
        let job = &self.scenario.job;
        let tiers = job.system.tiers.iter().skip(1);
        tiers.map(|tier| SimTier::new(tier.capacity_of(node).0, job.sizes.len())).collect()
    }

    pub fn steps(&self) -> u64 {
        u64::from(self.scenario.job.stream.iterations()) * u64::from(self.scenario.epochs)
    }

    pub fn schedule(&mut self, at: Duration, what: Happening) {
        self.numbers += 1;
        self.queue.push(Entry { at, number: self.numbers, what });
    }

    /// Runs until every consumer has all its epochs.
    pub fn run(mut self) -> Outcome {
        for node in 0..self.nodes.len() {
            self.advance(node as NodeId);
        }
        for _ in 0..self.scenario.faults.incidents {
            // Most of a run without faults is over after this.
            let at = Duration::from_micros(self.random.between(0, 3_000_000));
            self.schedule(at, Happening::Incident);
        }
        for _ in 0..self.scenario.faults.absences {
            let at = Duration::from_micros(self.random.between(0, 30_000_000));
            self.schedule(at, Happening::Absence);
        }
        if let Some(away) = self.scenario.away {
            self.schedule(away.from, Happening::GoesAway(away));
        }
        let mut happened = 0u32;
        while !self.nodes.iter().all(|node| node.alive && node.consumer == Consumer::Done) {
            let Some(Entry { at, what, .. }) = self.queue.pop() else {
                self.fail("nothing happens any more")
            };
            self.now = at;
            happened += 1;
            if at > Duration::from_hours(1) || happened > 10_000_000 {
                self.fail("the run does not end");
            }
            let stopped = what.actor().map(|node| self.nodes[node as usize].stopped_until);
            match stopped {
                Some(until) if until > at => self.schedule(until, what),
                _ => self.happen(what),
            }
        }
        self.outcome.ended_at = self.now;
        self.outcome
    }

    pub fn fail(&self, what: &str) -> ! {
        for node in &self.nodes {
            eprintln!(
                "node {} alive {} consumer {:?} at {} ended {} next {} push_queue {} down {:?}",
                node.id,
                node.alive,
                node.consumer,
                node.consuming,
                node.ended,
                node.next,
                node.push_queue.bytes(),
                node.health.down().collect::<Vec<_>>(),
            );
        }
        panic!("seed {}: {what}, at {:?}; {:?}", self.scenario.seed, self.now, self.outcome);
    }

    pub fn lives(&self, node: NodeId, life: u32) -> bool {
        let node = &self.nodes[node as usize];
        node.alive && node.life == life
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Arrives(envelope) => self.arrives(envelope),
            Happening::Fails { node, life, call } if self.lives(node, life) => {
                self.call_failed(node, call);
                self.advance(node);
            }
            Happening::Read { node } => self.served(node),
            Happening::AskAgain { node, life, step, items } if self.lives(node, life) => {
                self.seek(node, step, items);
                self.advance(node);
            }
            Happening::Computed { node, life } if self.lives(node, life) => self.computed(node),
            Happening::Wake { node, life }
                if self.lives(node, life)
                    && self.nodes[node as usize].wakes_at.is_some_and(|at| at <= self.now) =>
            {
                self.nodes[node as usize].wakes_at = None;
                self.advance(node);
            }
            Happening::LookAfter { node, life }
                if self.lives(node, life)
                    && self.nodes[node as usize].push_timer.is_some_and(|at| at <= self.now) =>
            {
                self.nodes[node as usize].push_timer = None;
                self.look_after(node);
                self.advance(node);
            }
            Happening::Continue { node, life } if self.lives(node, life) => self.advance(node),
            Happening::Absence => self.absence(),
            Happening::Incident => self.incident(),
            Happening::GoesAway(away) => self.goes_away(away),
            Happening::Restart { node, warm, from_start } => self.restart(node, warm, from_start),
            Happening::Heal { from, to } => {
                let at = self.link(from, to);
                self.cut[at] = false;
            }
            Happening::SourceRecovers => self.slow_source = false,
            _ => {}
        }
    }

    pub fn item(&mut self, node: NodeId, step: u64, item: usize) -> &mut Item {
        let batch = self.batch(node, step);
        &mut batch.items[item]
    }

    pub fn batch(&mut self, node: NodeId, step: u64) -> &mut Batch {
        let ring = &mut self.nodes[node as usize].ring;
        let first = ring.front().map_or(0, |batch| batch.step);
        &mut ring[(step - first) as usize]
    }

    /// The longest time until a node acts again by itself.
    pub fn wake(&mut self, node: NodeId, at: Duration) {
        let at = at.max(self.now + Duration::from_micros(1));
        let sleeper = &mut self.nodes[node as usize];
        if sleeper.wakes_at.is_none_or(|other| at < other) {
            sleeper.wakes_at = Some(at);
            let life = sleeper.life;
            self.schedule(at, Happening::Wake { node, life });
        }
    }
}

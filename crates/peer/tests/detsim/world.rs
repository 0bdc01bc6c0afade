//! Virtual time, the network, the source, the consumers.

use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use belady_control::policy::NodeId;

use crate::dice::Dice;
use crate::message::{Bytes, Call, Envelope, Message, Reply};
use crate::node::{Batch, Consumer, Node, PATIENCE, step_of};
use crate::scenario::{Consumers, LARGEST, Scenario, Trouble};
use crate::shelf::Shelf;

/// A call that was not answered in this time has failed.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// Pauses between two questions, and messages under way.
const MARGIN: Duration = Duration::from_millis(300);
/// A slow source takes so many times longer.
const SLOW: u32 = 10;

#[derive(Clone, Debug)]
pub enum Happening {
    Arrives(Envelope),
    /// A node's call has not been answered, or its connection was reset.
    Fails {
        node: NodeId,
        life: u32,
        call: u64,
    },
    /// The source has given a node what it asked for first.
    Read {
        node: NodeId,
    },
    /// It is time to ask for these once more.
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
    Incident,
    Restart {
        node: NodeId,
        warm: bool,
    },
    Heal {
        from: NodeId,
        to: NodeId,
    },
    SourceRecovers,
}

/// A sample that is wanted of the source.
#[derive(Clone, Copy)]
struct Read {
    life: u32,
    step: u64,
    item: usize,
    since: Duration,
}

struct Entry {
    at: Duration,
    number: u64,
    what: Happening,
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

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Samples that were read from the source, by epoch of their use.
    pub source_reads: Vec<u64>,
    /// Of these, what the plan said.
    pub planned_reads: Vec<u64>,
    pub peer_reads: u64,
    pub pushed: u64,
    /// Parcels that were given up.
    pub dropped: u64,
    pub crashes: u64,
    pub longest_wait: Duration,
    pub ended_at: Duration,
    /// Steps that ended before all had loaded them.
    pub given_up: u64,
    pub largest_outbox: u64,
}

pub struct World {
    pub scenario: Scenario,
    pub dice: Dice,
    pub now: Duration,
    queue: BinaryHeap<Entry>,
    numbers: u64,
    pub nodes: Vec<Node>,
    /// Links that are cut, by `from * nodes + to`.
    cut: Vec<bool>,
    /// By node: what it wants of the source.
    reads: Vec<VecDeque<Read>>,
    slow_source: bool,
    longest_read: Duration,
    /// Steps that each consumer has finished.
    finished: Vec<u64>,
    pub outcome: Outcome,
}

impl World {
    pub fn new(scenario: Scenario) -> Self {
        let count = scenario.job.system.nodes;
        let mut world = Self {
            dice: Dice::new(scenario.seed ^ 0x5eed),
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
        for id in 0..count {
            let shelves = world.empty_shelves();
            world.nodes.push(Node::new(id, 1, &world.scenario, 0, shelves));
        }
        world
    }

    fn empty_shelves(&self) -> Vec<Shelf> {
        let job = &self.scenario.job;
        let tiers = job.system.tiers.iter().skip(1);
        tiers.map(|tier| Shelf::new(tier.capacity.0, job.sizes.len())).collect()
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
        for _ in 0..self.scenario.trouble.incidents {
            // Most of a run without trouble is over after this.
            let at = Duration::from_micros(self.dice.between(0, 3_000_000));
            self.schedule(at, Happening::Incident);
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
            self.happen(what);
        }
        self.outcome.ended_at = self.now;
        self.outcome
    }

    pub fn fail(&self, what: &str) -> ! {
        for node in &self.nodes {
            eprintln!(
                "node {} alive {} consumer {:?} at {} ended {} next {} outbox {} down {:?}",
                node.id,
                node.alive,
                node.consumer,
                node.consuming,
                node.ended,
                node.next,
                node.outbox.bytes(),
                node.health.down().collect::<Vec<_>>(),
            );
        }
        panic!("seed {}: {what}, at {:?}; {:?}", self.scenario.seed, self.now, self.outcome);
    }

    fn lives(&self, node: NodeId, life: u32) -> bool {
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
                    && self.nodes[node as usize].wakes_at == Some(self.now) =>
            {
                self.nodes[node as usize].wakes_at = None;
                self.advance(node);
            }
            Happening::Incident => self.incident(),
            Happening::Restart { node, warm } => self.restart(node, warm),
            Happening::Heal { from, to } => {
                let at = self.link(from, to);
                self.cut[at] = false;
            }
            Happening::SourceRecovers => self.slow_source = false,
            _ => {}
        }
    }

    pub fn item(&mut self, node: NodeId, step: u64, item: usize) -> &mut crate::node::Item {
        let batch = self.batch(node, step);
        &mut batch.items[item]
    }

    pub fn batch(&mut self, node: NodeId, step: u64) -> &mut Batch {
        let ring = &mut self.nodes[node as usize].ring;
        let first = ring.front().map_or(0, |batch| batch.step);
        &mut ring[(step - first) as usize]
    }

    /// A node looks after itself again no later than this.
    pub fn wake(&mut self, node: NodeId, at: Duration) {
        let at = at.max(self.now + Duration::from_micros(1));
        let sleeper = &mut self.nodes[node as usize];
        if sleeper.wakes_at.is_none_or(|other| at < other) {
            sleeper.wakes_at = Some(at);
            let life = sleeper.life;
            self.schedule(at, Happening::Wake { node, life });
        }
    }

    // The source.

    /// Reads items of a batch.
    pub fn read_source(&mut self, node: NodeId, step: u64, items: Vec<usize>) {
        if items.is_empty() {
            return;
        }
        let epoch = step_of(&self.scenario, step).epoch as usize;
        self.outcome.source_reads[epoch] += items.len() as u64;
        let idle = self.reads.iter().all(VecDeque::is_empty);
        let life = self.nodes[node as usize].life;
        for item in items {
            self.reads[node as usize].push_back(Read { life, step, item, since: self.now });
        }
        if idle {
            self.schedule(self.now + self.source_time(), Happening::Read { node });
        }
    }

    fn source_time(&self) -> Duration {
        self.scenario.source * if self.slow_source { SLOW } else { 1 }
    }

    /// The source has served a node, and turns to the next that wants something.
    fn served(&mut self, node: NodeId) {
        if let Some(Read { life, step, item, since }) = self.reads[node as usize].pop_front() {
            self.longest_read = self.longest_read.max(self.now.saturating_sub(since));
            if self.lives(node, life) {
                let item = self.item(node, step, item);
                item.bytes = Some(Bytes::of(item.sample));
                self.advance(node);
            }
        }
        let count = self.nodes.len() as NodeId;
        let mut others = (1..=count).map(|after| (node + after) % count);
        if let Some(node) = others.find(|&other| !self.reads[other as usize].is_empty()) {
            self.schedule(self.now + self.source_time(), Happening::Read { node });
        }
    }

    // The network.

    fn link(&self, from: NodeId, to: NodeId) -> usize {
        from as usize * self.nodes.len() + to as usize
    }

    /// Asks a peer; the answer, or that there is none, comes later.
    pub fn call(&mut self, node: NodeId, call: Call, message: Message) {
        self.numbers += 1;
        let (number, peer) = (self.numbers, call.peer());
        let life = self.nodes[node as usize].life;
        self.nodes[node as usize].calls.insert(number, call);
        self.schedule(self.now + DEADLINE, Happening::Fails { node, life, call: number });
        self.send(Envelope { from: node, life, to: peer, call: number, message });
    }

    pub fn send(&mut self, mut envelope: Envelope) {
        let trouble = self.trouble();
        let (low, high) = self.scenario.latency;
        let cut = trouble.incidents > 0 && self.cut[self.link(envelope.from, envelope.to)];
        if cut || self.dice.once_in(trouble.lost) {
            // Half of the time the connection's end is noticed at once, else nobody hears of it.
            if self.dice.once_in(2) {
                let at = self.now + self.dice.micros(low, high);
                self.reset(&envelope, at);
            }
            return;
        }
        if self.dice.once_in(trouble.garbled) {
            garble(&mut envelope.message);
        }
        let times = if self.dice.once_in(trouble.doubled) { 2 } else { 1 };
        for _ in 0..times {
            let at = self.now + self.dice.micros(low, high);
            self.schedule(at, Happening::Arrives(envelope.clone()));
        }
    }

    /// Whoever asked learns that there will be no answer.
    fn reset(&mut self, envelope: &Envelope, at: Duration) {
        let asks = matches!(
            envelope.message,
            Message::Get { .. } | Message::Put { .. } | Message::Tell { .. }
        );
        let node = if asks { envelope.from } else { envelope.to };
        let life = self.nodes[node as usize].life;
        self.schedule(at, Happening::Fails { node, life, call: envelope.call });
    }

    fn arrives(&mut self, envelope: Envelope) {
        if !self.nodes[envelope.to as usize].alive {
            let at = self.now + self.dice.micros(10, 100);
            if self.dice.once_in(2) {
                self.reset(&envelope, at);
            }
            return;
        }
        let to = envelope.to;
        self.heard(&envelope);
        self.take(envelope);
        self.advance(to);
    }

    // The consumers.

    /// Looks after everything that a node can do now.
    pub fn advance(&mut self, node: NodeId) {
        self.stage(node);
        self.set_out(node);
        self.end_steps(node);
        self.consume(node);
        self.stage(node);
        self.tell(node);
        self.give(node);
        let outbox = self.nodes[node as usize].outbox.bytes();
        self.outcome.largest_outbox = self.outcome.largest_outbox.max(outbox);
        let limit = self.scenario.outbox.max(LARGEST);
        assert!(outbox <= limit, "an outbox has {outbox} of {limit} bytes");
    }

    fn consume(&mut self, node: NodeId) {
        let steps = self.steps();
        let at = self.nodes[node as usize].consuming;
        if self.nodes[node as usize].consumer == Consumer::Blocked {
            let others = self.nodes.iter().zip(&self.finished).filter(|(other, _)| other.alive);
            let together = self.scenario.consumers == Consumers::Together;
            if at == steps {
                self.nodes[node as usize].consumer = Consumer::Done;
            } else if !together || others.map(|(_, &finished)| finished).min() >= Some(at) {
                self.nodes[node as usize].consumer = Consumer::Waiting { since: self.now };
                self.end_steps(node);
            }
        }
        let Consumer::Waiting { since } = self.nodes[node as usize].consumer else { return };
        if self.nodes[node as usize].ended <= at {
            return;
        }
        let Some(batch) = self.nodes[node as usize].ring.pop_front() else {
            self.fail("a batch that has ended is not there")
        };
        self.check(node, &batch, since);
        self.nodes[node as usize].consumer = Consumer::Computing;
        let (low, high) = self.scenario.compute[node as usize];
        let at = self.now + self.dice.micros(low, high);
        let life = self.nodes[node as usize].life;
        self.schedule(at, Happening::Computed { node, life });
    }

    /// The promise: the right samples in the right order, the right bytes, no endless wait.
    fn check(&mut self, node: NodeId, batch: &Batch, since: Duration) {
        let scenario = self.scenario.clone();
        let expected = self.nodes[node as usize].samples(&scenario, batch.step);
        let got: Vec<_> = batch.items.iter().map(|item| item.sample).collect();
        if batch.step != self.nodes[node as usize].consuming || got != expected {
            self.fail(&format!("rank {node} got {got:?} instead of {expected:?}"));
        }
        for item in &batch.items {
            if item.bytes != Some(Bytes::of(item.sample)) {
                self.fail(&format!("rank {node} got wrong bytes of sample {}", item.sample));
            }
        }
        let wait = self.now.saturating_sub(since);
        self.outcome.longest_wait = self.outcome.longest_wait.max(wait);
        // Patience for the epoch to begin, for a sample that may come, for others to load the step, and
        // for room in the outbox; a question that was under way, and another one; then the source.
        let bound = 4 * PATIENCE + 2 * DEADLINE + MARGIN + self.longest_read;
        if wait > bound {
            self.fail(&format!("rank {node} has waited {wait:?} for a batch, more than {bound:?}"));
        }
    }

    fn computed(&mut self, node: NodeId) {
        let consumer = &mut self.nodes[node as usize];
        consumer.consumer = Consumer::Blocked;
        consumer.consuming += 1;
        self.finished[node as usize] = consumer.consuming;
        self.advance(node);
        self.unblock();
    }

    /// A step may begin for those who have waited for others.
    fn unblock(&mut self) {
        for node in 0..self.nodes.len() {
            if self.nodes[node].alive && self.nodes[node].consumer == Consumer::Blocked {
                self.advance(node as NodeId);
            }
        }
    }

    // What goes wrong.

    /// How often what goes wrong now: trouble ends when all consumers have come to some epoch.
    pub fn trouble(&self) -> Trouble {
        let trouble = self.scenario.trouble;
        let slowest = self.finished.iter().min().copied().unwrap_or(0);
        if step_of(&self.scenario, slowest).epoch < trouble.epochs {
            trouble
        } else {
            Trouble::NONE
        }
    }

    fn incident(&mut self) {
        if self.trouble().incidents == 0 {
            return;
        }
        let count = self.nodes.len() as u64;
        let node = self.dice.between(0, count - 1) as NodeId;
        match self.dice.between(0, 3) {
            0 => {
                let living = self.nodes.iter().filter(|node| node.alive).count();
                let victim = &mut self.nodes[node as usize];
                if !victim.alive || living < 2 {
                    return;
                }
                victim.alive = false;
                self.outcome.crashes += 1;
                let back = self.now + self.dice.micros(1_000, 3_000_000);
                let warm = self.dice.once_in(2);
                self.schedule(back, Happening::Restart { node, warm });
                self.unblock();
            }
            1 | 2 => {
                let other = self.dice.between(0, count - 1) as NodeId;
                for (from, to) in [(node, other), (other, node)] {
                    // Sometimes only one way.
                    if self.dice.once_in(4) {
                        continue;
                    }
                    let at = self.link(from, to);
                    self.cut[at] = true;
                    let until = self.now + self.dice.micros(1_000, 4_000_000);
                    self.schedule(until, Happening::Heal { from, to });
                }
            }
            _ => {
                self.slow_source = true;
                let until = self.now + self.dice.micros(1_000, 1_000_000);
                self.schedule(until, Happening::SourceRecovers);
            }
        }
    }

    /// The node begins anew with the epoch that its consumer was in.
    fn restart(&mut self, node: NodeId, warm: bool) {
        let old = &self.nodes[node as usize];
        let iterations = u64::from(self.scenario.job.stream.iterations());
        let first = old.consuming.min(self.steps() - 1) / iterations * iterations;
        let life = old.life + 1;
        let samples = self.scenario.job.sizes.len();
        let mut shelves = self.empty_shelves();
        if warm && shelves.len() > 1 {
            // Memory is lost, the disk is not.
            shelves[1] = old.shelves[1].clone().warm(samples);
        }
        self.nodes[node as usize] = Node::new(node, life, &self.scenario, first, shelves);
        self.finished[node as usize] = first;
        self.advance(node);
    }
}

fn garble(message: &mut Message) {
    match message {
        Message::Got { replies } => {
            for reply in replies.iter_mut().take(1) {
                if let Reply::Here(bytes) = reply {
                    *bytes = bytes.garbled();
                }
            }
        }
        Message::Put { parcels } => {
            for parcel in parcels.iter_mut().take(1) {
                parcel.bytes = parcel.bytes.garbled();
            }
        }
        _ => {}
    }
}

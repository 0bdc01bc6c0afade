//! A simulated node: what it holds, what it has under way, and what it knows of the others. Only
//! state; what it does is in [`crate::load`], [`crate::end`] and [`crate::talk`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use belady_control::model::Seconds;
use belady_control::policy::{
    self, Actions, Event, Evict, Keep, NodeId, Place, Plan, Policy, TierId,
};
use belady_control::sampler::{EpochOrder, SampleId, Step};
use belady_peer::protocol::health::Health;
use belady_peer::protocol::herald::Herald;
use belady_peer::protocol::ledger::Ledger;
use belady_peer::protocol::outbox::Outbox;
use belady_peer::protocol::pace::Pace;

use crate::message::{Bytes, Call};
use crate::scenario::Scenario;
use crate::shelf::Shelf;

pub const PATIENCE: Duration = Duration::from_secs(2);

/// One sample of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub sample: SampleId,
    pub from: Place,
    pub last_use: bool,
    pub asked: u32,
    /// When it was asked for first.
    pub since: Duration,
    /// It was not where it should have been.
    pub missed: bool,
    pub bytes: Option<Bytes>,
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub step: u64,
    pub items: Vec<Item>,
    pub keeps: Vec<Keep>,
    pub evictions: Vec<Evict>,
    /// Of `keeps` and what else is to be put somewhere: what has found its place.
    pub kept: usize,
    pub staged_at: Duration,
    /// When it was found to be loaded, and when it was let go.
    pub loaded_at: Option<Duration>,
    pub let_go_at: Duration,
}

impl Batch {
    pub fn is_loaded(&self) -> bool {
        self.items.iter().all(|item| item.bytes.is_some())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumer {
    /// The others have not finished the step before.
    Blocked,
    Waiting {
        since: Duration,
    },
    Computing,
    Done,
}

pub struct Node {
    pub id: NodeId,
    pub life: u32,
    pub alive: bool,
    plan: Arc<dyn Plan>,
    policy: Box<dyn Policy>,
    /// Epochs that the plan was told of.
    begun: u32,
    orders: BTreeMap<u32, Arc<EpochOrder>>,
    /// Tier j at j − 1.
    pub shelves: Vec<Shelf>,
    pub health: Health,
    pub ledger: Ledger,
    pub pace: Pace,
    pub herald: Herald,
    /// Steps wait in it for room.
    pub outbox: Outbox<Bytes, u64>,
    /// When it is looked after next, if nothing happens before.
    pub outbox_timer: Option<Duration>,
    pub ring: VecDeque<Batch>,
    /// Items by step that wait for their epoch to begin.
    pub not_begun: Vec<(u64, Vec<usize>)>,
    /// The next step to stage, to let go, to end, and to consume.
    pub next: u64,
    pub let_go: u64,
    pub ended: u64,
    pub consuming: u64,
    pub consumer: Consumer,
    /// Epochs that are done here.
    pub done: u32,
    pub calls: BTreeMap<u64, Call>,
    /// Which life of each peer has been heard of.
    pub lives: Vec<u32>,
    pub wakes_at: Option<Duration>,
    /// It does nothing until then: its process is stopped.
    pub stopped_until: Duration,
    /// How long it was stopped while its consumer waited.
    pub stopped_for: Duration,
}

impl Node {
    /// A node that begins with a step.
    pub fn new(
        id: NodeId,
        life: u32,
        scenario: &Scenario,
        first: u64,
        shelves: Vec<Shelf>,
    ) -> Self {
        let nodes = scenario.job.system.nodes;
        let plan = policy::plan(&scenario.policy, &scenario.job).expect("the policy runs any job");
        let iterations = u64::from(scenario.job.stream.iterations());
        let mut herald = Herald::new(nodes);
        herald.loaded(first);
        let mut pace = Pace::new(id, nodes, iterations, PATIENCE);
        pace.skip(first);
        let mut ledger = Ledger::new(nodes);
        let done = (first / iterations) as u32;
        if let Some(epoch) = done.checked_sub(1) {
            ledger.done(id, epoch);
            herald.done(epoch);
        }
        Self {
            id,
            life,
            alive: true,
            policy: plan.clone().node(id),
            plan,
            begun: 0,
            orders: BTreeMap::new(),
            shelves,
            health: Health::new(nodes),
            ledger,
            pace,
            herald,
            outbox: Outbox::new(nodes, scenario.outbox, PATIENCE),
            outbox_timer: None,
            ring: VecDeque::new(),
            not_begun: vec![],
            next: first,
            let_go: first,
            ended: first,
            consuming: first,
            consumer: Consumer::Blocked,
            done,
            calls: BTreeMap::new(),
            lives: vec![0; nodes as usize],
            wakes_at: None,
            stopped_until: Duration::ZERO,
            stopped_for: Duration::ZERO,
        }
    }

    pub fn shelf(&mut self, tier: TierId) -> Option<&mut Shelf> {
        self.shelves.get_mut(usize::from(tier).checked_sub(1)?)
    }

    /// Bytes of a sample, from whatever tier has it.
    pub fn held(&self, sample: SampleId) -> Option<Bytes> {
        self.shelves.iter().find_map(|shelf| shelf.get(sample))
    }

    /// Whether a node does its part of the plan: it is there, and in step.
    pub fn takes_part(&self, node: NodeId) -> bool {
        self.health.is_up(node) && self.pace.is_in_step(node)
    }

    /// So many epochs are behind all that take part.
    pub fn all_done(&self) -> u32 {
        self.ledger.all_done(|node| self.takes_part(node))
    }

    /// Steps that the consumer has asked for.
    pub fn asked(&self) -> u64 {
        self.consuming + u64::from(matches!(self.consumer, Consumer::Waiting { .. }))
    }

    /// How long the consumer has been waiting for a step on account of something that has been the
    /// matter since then: neither the time in which it had something to do counts, nor that in which it
    /// waited for something else.
    pub fn starved(&self, step: u64, matter: Duration, now: Duration) -> Duration {
        match self.consumer {
            Consumer::Waiting { since } if self.consuming == step => {
                now.saturating_sub(since.max(matter))
            }
            _ => Duration::ZERO,
        }
    }

    /// What a rank reads in a step.
    pub fn samples(&mut self, scenario: &Scenario, step: u64) -> Vec<SampleId> {
        let step = step_of(scenario, step);
        let order = self.orders.entry(step.epoch);
        let order = order.or_insert_with(|| Arc::new(scenario.job.stream.epoch(step.epoch)));
        order.batch(self.id, step.iteration).collect()
    }

    /// Asks the policy about the next batch: where its samples come from and what it leaves.
    pub fn decide(&mut self, scenario: &Scenario, now: Duration) -> Batch {
        let number = self.next;
        let step = step_of(scenario, number);
        while self.begun <= step.epoch {
            let epoch = |epoch: u32| {
                (epoch < scenario.epochs).then(|| Arc::new(scenario.job.stream.epoch(epoch)))
            };
            if let Some(order) = epoch(self.begun) {
                self.plan.begin_epoch(self.begun, &order, epoch(self.begun + 1).as_ref());
            }
            self.begun += 1;
        }
        let samples = self.samples(scenario, number);
        let mut actions = Actions::default();
        let (rank, at) = (self.id, Seconds::ZERO);
        self.policy.on(at, Event::Stage { rank, step, samples: &samples }, &mut actions);
        self.policy.on(at, Event::Consumed { rank, step, samples: &samples }, &mut actions);
        let mut keeps = actions.keeps;
        let mut items = vec![];
        for load in &actions.loads {
            keeps.extend(load.keep.map(|tier| Keep { sample: load.sample, node: rank, tier }));
            items.push(Item {
                sample: load.sample,
                from: load.from,
                last_use: load.last_use,
                asked: 0,
                since: Duration::ZERO,
                missed: false,
                bytes: None,
            });
        }
        let evictions = actions.evictions;
        let (loaded_at, let_go_at) = (None, Duration::ZERO);
        let step = number;
        Batch { step, items, keeps, evictions, kept: 0, staged_at: now, loaded_at, let_go_at }
    }
}

pub fn step_of(scenario: &Scenario, step: u64) -> Step {
    let iterations = u64::from(scenario.job.stream.iterations());
    Step { epoch: (step / iterations) as u32, iteration: (step % iterations) as u32 }
}

//! The state of a simulated node: what it holds, what is in flight, and what it knows of the
//! others. What it does is in [`crate::load`], [`crate::end`] and [`crate::talk`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use belady_control::model::Seconds;
use belady_control::policy::{
    self, Actions, Event, Evict, Keep, LoadFrom, NodeId, Policy, PolicyPlan, TierId,
};
use belady_control::sampler::{EpochOrder, SampleId, Step};
use belady_peer::protocol::epoch_progress::FinishedEpochs;
use belady_peer::protocol::health::Health;
use belady_peer::protocol::progress_notifier::ProgressNotifier;
use belady_peer::protocol::push_queue::PushQueue;
use belady_peer::protocol::step_fence::StepFence;

use crate::message::{Bytes, Call};
use crate::scenario::Scenario;
use crate::tier::SimTier;

pub const PATIENCE: Duration = Duration::from_secs(2);

/// One sample of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub sample: SampleId,
    pub from: LoadFrom,
    pub last_use: bool,
    pub asked: u32,
    /// When it was first asked for.
    pub since: Duration,
    /// It was not where the plan expected it.
    pub missed: bool,
    pub bytes: Option<Bytes>,
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub step: u64,
    pub items: Vec<Item>,
    pub keeps: Vec<Keep>,
    pub evictions: Vec<Evict>,
    /// Of `keeps` and the other samples to put: those that are in place.
    pub kept: usize,
    pub staged_at: Duration,
    /// When it was found to be loaded, and when it was evicted.
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
    /// The other nodes have not finished the step before.
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
    plan: Arc<dyn PolicyPlan>,
    policy: Box<dyn Policy>,
    /// Epochs that the plan was told of.
    begun: u32,
    orders: BTreeMap<u32, Arc<EpochOrder>>,
    /// Tier j at j − 1.
    pub shelves: Vec<SimTier>,
    pub health: Health,
    pub progress: FinishedEpochs,
    pub fence: StepFence,
    pub notifier: ProgressNotifier,
    /// Steps wait in it for space.
    pub push_queue: PushQueue<Bytes, u64>,
    /// When the queue is serviced next, if nothing happens before.
    pub push_timer: Option<Duration>,
    pub ring: VecDeque<Batch>,
    /// Items by step that wait for their epoch to begin.
    pub not_begun: Vec<(u64, Vec<usize>)>,
    /// The next step to stage, to evict, to end, and to consume.
    pub next: u64,
    pub let_go: u64,
    pub ended: u64,
    pub consuming: u64,
    pub consumer: Consumer,
    /// Epochs that are done here.
    pub done: u32,
    pub calls: BTreeMap<u64, Call>,
    /// The last seen process of each peer.
    pub lives: Vec<u32>,
    pub wakes_at: Option<Duration>,
    /// Until when its process is stopped.
    pub stopped_until: Duration,
    /// How long it was stopped while its consumer waited.
    pub stopped_for: Duration,
}

impl Node {
    /// Creates a node that begins with a step.
    pub fn new(
        id: NodeId,
        life: u32,
        scenario: &Scenario,
        first: u64,
        shelves: Vec<SimTier>,
    ) -> Self {
        let nodes = scenario.job.system.nodes;
        let plan = policy::plan(&scenario.policy, &scenario.job).expect("the policy runs any job");
        let iterations = u64::from(scenario.job.stream.iterations());
        let mut notifier = ProgressNotifier::new(nodes);
        notifier.loaded(first);
        let mut fence = StepFence::new(id, nodes, iterations, PATIENCE);
        fence.skip(first);
        let mut progress = FinishedEpochs::new(nodes);
        let done = (first / iterations) as u32;
        if let Some(epoch) = done.checked_sub(1) {
            progress.done(id, epoch);
            notifier.done(epoch);
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
            progress,
            fence,
            notifier,
            push_queue: PushQueue::new(nodes, scenario.push_queue, PATIENCE),
            push_timer: None,
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

    pub fn tier(&mut self, tier: TierId) -> Option<&mut SimTier> {
        self.shelves.get_mut(usize::from(tier).checked_sub(1)?)
    }

    /// Returns the bytes of a sample from any tier.
    pub fn held(&self, sample: SampleId) -> Option<Bytes> {
        self.shelves.iter().find_map(|tier| tier.get(sample))
    }

    /// Returns whether a node does its part of the plan: it is up and in step.
    pub fn takes_part(&self, node: NodeId) -> bool {
        self.health.is_up(node) && self.fence.is_in_step(node)
    }

    /// Returns how many epochs all participating nodes have finished.
    pub fn all_done(&self) -> u32 {
        self.progress.all_done(|node| self.takes_part(node))
    }

    /// Returns how many steps the consumer has asked for.
    pub fn asked(&self) -> u64 {
        self.consuming + u64::from(matches!(self.consumer, Consumer::Waiting { .. }))
    }

    /// Returns how long the consumer has been waiting for a step because of something that began at
    /// `since`: neither its own work nor other waits count.
    pub fn starved(&self, step: u64, matter: Duration, now: Duration) -> Duration {
        match self.consumer {
            Consumer::Waiting { since } if self.consuming == step => {
                now.saturating_sub(since.max(matter))
            }
            _ => Duration::ZERO,
        }
    }

    /// Returns what a rank reads in a step.
    pub fn samples(&mut self, scenario: &Scenario, step: u64) -> Vec<SampleId> {
        let step = step_of(scenario, step);
        let order = self.orders.entry(step.epoch);
        let order = order.or_insert_with(|| Arc::new(scenario.job.stream.epoch(step.epoch)));
        order.batch(self.id, step.iteration).collect()
    }

    /// Asks the policy about the next batch: where its samples are, and what it leaves.
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

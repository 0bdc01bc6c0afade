//! The run of a seed: the job, how much the nodes differ, and the faults.

use std::sync::Arc;
use std::time::Duration;

use belady_control::job::Packing;
use belady_control::model::{
    Bytes, Curve, Pipeline, Rate, Readers, Sharing, SourceModel, System, TierModel,
};
use belady_control::policy::{Availability, NodeId, PolicyKind};
use belady_control::sampler::{AccessStream, Order, Scheme, StreamConfig};
use belady_control::{Job, Sizes};
use belady_peer::protocol::push_queue;

use crate::random::Random;

/// How consumers go from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consumers {
    /// As in training: a step begins when all have finished the one before.
    Together,
    /// Each at its own speed.
    Apart,
}

/// How often faults occur; 0 for never, n for once in n.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// A message and its connection are lost.
    pub lost: u64,
    /// A message arrives twice.
    pub doubled: u64,
    /// A sample's bytes are corrupted.
    pub garbled: u64,
    /// A tier accepts nothing now, loses a sample, or flips a bit of it, when it is used.
    pub bad_tier: u64,
    /// Crashes, cut links, and phases of a slow source, over the run.
    pub incidents: u64,
    /// How often nodes disappear for 1 to 30 s over the run: they are stopped, or their links are
    /// cut, all or some, in both directions or one.
    pub absences: u64,
    /// Faults end when all consumers have reached this epoch.
    pub epochs: u32,
}

impl FaultRates {
    pub const NONE: Self =
        Self { lost: 0, doubled: 0, garbled: 0, bad_tier: 0, incidents: 0, absences: 0, epochs: 0 };

    /// Whether links are cut at times.
    pub fn can_cut(&self) -> bool {
        self.incidents > 0 || self.absences > 0
    }
}

/// Bytes of the largest sample.
pub const LARGEST: u64 = 140;

/// One node is away, once.
#[derive(Clone, Copy, Debug)]
pub struct Away {
    pub node: NodeId,
    pub from: Duration,
    pub until: Duration,
    /// It is killed, and begins with the first step; else it is stopped.
    pub killed: bool,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub job: Arc<Job>,
    pub policy: PolicyKind,
    pub consumers: Consumers,
    pub epochs: u32,
    /// By node: batches that its ring holds.
    pub ring: Vec<u64>,
    /// By node: how long its consumer computes on a batch, from and to.
    pub compute: Vec<(u64, u64)>,
    /// How many microseconds a message takes, from and to.
    pub latency: (u64, u64),
    /// How long a read of the source takes.
    pub source: Duration,
    pub push_queue: u64,
    pub faults: FaultRates,
    pub away: Option<Away>,
}

/// Returns a tier model with these capacities.
fn tier(capacities_by_node: &[u64]) -> TierModel {
    let least = capacities_by_node.iter().min().copied().unwrap_or(0);
    TierModel {
        name: format!("{least} B"),
        capacity: Bytes(least),
        by_node: capacities_by_node.iter().map(|&room| Bytes(room)).collect(),
        threads: 1,
        read: Curve::flat(Rate(1e9)),
        write: Curve::flat(Rate(1e9)),
    }
}

/// `capacities`: of each cache tier, by node.
fn system(nodes: u32, capacities: &[Vec<u64>]) -> System {
    let mut tiers = vec![tier(&vec![1000; nodes as usize])];
    tiers.extend(capacities.iter().map(|capacities_by_node| tier(capacities_by_node)));
    System {
        nodes,
        ranks_per_node: 1,
        compute: Rate(100.0).into(),
        preprocess: Rate(200.0).into(),
        network: Rate(1e6),
        source: SourceModel {
            throughput: Curve::flat(Rate(100.0)),
            link: Rate(1000.0),
            sharing: Sharing::Aggregate,
            readers: Readers::Nodes,
        },
        tiers,
        pipeline: Pipeline::Overlapped,
    }
}

/// Returns the cache of each node in per cent of the mean. In every second run they are equal, else
/// each second node gives some or all of its capacity to the one before it.
fn shares(random: &mut Random, nodes: usize) -> Vec<u64> {
    let mut shares = vec![100; nodes];
    if random.once_in(2) {
        for pair in shares.chunks_exact_mut(2) {
            let moved = random.one_of(&[10, 50, 90, 100]);
            (pair[0], pair[1]) = (100 + moved, 100 - moved);
        }
    }
    shares
}

pub const NOPFS: PolicyKind = PolicyKind::Nopfs {
    in_order: true,
    cleanup_read: false,
    availability: Availability::Heuristic,
    duties: None,
};

impl Scenario {
    /// Returns the job of a seed. `fits`: all caches together are 2 % larger than the dataset, and
    /// it is dealt to ranks without padding; else both are drawn.
    pub fn draw(seed: u64, policy: PolicyKind, fits: bool, faults: FaultRates) -> Self {
        let random = &mut Random::new(seed);
        let nodes = random.between(2, 5) as u32;
        let batch = random.between(1, 6) as u32;
        let iterations = random.between(if fits { 40 } else { 5 }, 80) as u32;
        // Padding gives a sample to two ranks in one epoch. The second may ask before the first has
        // put it there, and then reads it from the source: the plan's figures are not met.
        let ragged = !fits && faults.epochs > 0 && random.once_in(2);
        let samples = nodes * batch * iterations - if ragged { batch.min(nodes) / 2 } else { 0 };
        let sizes = if random.once_in(2) {
            Sizes::Equal { bytes: 100, samples }
        } else {
            let mut of_each = random.clone();
            Sizes::from_bytes(
                (0..samples).map(|_| of_each.between(60, LARGEST)).collect::<Vec<_>>(),
            )
        };
        let total = sizes.total().0;
        let percent = if fits { 102 } else { random.between(20, 130) };
        let each = (total * percent).div_ceil(100 * u64::from(nodes));
        let capacities = match random.between(0, 2) {
            0 => vec![each],
            1 => vec![each / 3, each - each / 3],
            _ => vec![each - each / 4, each / 4],
        };
        // So few samples do not fill a tier completely.
        let brim = if fits { 2 * LARGEST } else { 0 };
        // A generator of its own, so that the rest of the run is the same as with equal nodes.
        let unlike = &mut Random::new(seed ^ 0xca9);
        let shares = shares(unlike, nodes as usize);
        let room = |capacity: u64, share: u64| capacity * share / 100 + brim;
        let capacities_by_node =
            |capacity: u64| shares.iter().map(|&share| room(capacity, share)).collect();
        let capacities: Vec<Vec<u64>> = capacities.into_iter().map(capacities_by_node).collect();
        let order = random.one_of(&[true, false]);
        let order = if order { Order::Torch } else { Order::Permutation };
        let config = StreamConfig {
            samples,
            ranks: nodes,
            batch: batch * nodes,
            order,
            scheme: Scheme::Uniform,
            seed: random.next() >> 33,
            sampler_drop_last: false,
            drop_last: false,
        };
        let stream = AccessStream::new(config).expect("a stream of positive numbers");
        let epochs = random.between(2, 5) as u32;
        let system = system(nodes, &capacities);
        let packing = Packing { files: samples, read_size: None };
        let job = Arc::new(Job { system, stream, sizes, epochs: Some(epochs), packing });
        let deepest = random.one_of(&[2, 5, 20, 100]);
        let skew = random.one_of(&[1, 1, 2, 8]);
        let ring = (0..nodes).map(|_| random.between(1, deepest)).collect();
        let fence = random.one_of(&[200, 2_000, 20_000]);
        let compute = (0..nodes).map(|_| (fence, fence * random.between(1, skew))).collect();
        let latency = random.one_of(&[(20, 60), (50, 2_000), (1_000, 30_000)]);
        let source = Duration::from_micros(random.one_of(&[100, 1_000, 5_000]));
        let consumers = random.one_of(&[Consumers::Together, Consumers::Apart]);
        let staging = random.one_of(&[1_200, 8_000, 200_000]);
        let push_queue = push_queue::capacity(staging, u64::from(batch) * LARGEST);
        Self {
            seed,
            job,
            policy,
            consumers,
            epochs,
            ring,
            compute,
            latency,
            source,
            push_queue,
            faults,
            away: None,
        }
    }

    /// Returns the same scenario with more epochs.
    pub fn extend_to(&mut self, epochs: u32) {
        self.epochs = epochs;
        let job = Job { epochs: Some(epochs), ..(*self.job).clone() };
        self.job = Arc::new(job);
    }
}

//! Nodes whose caches differ in size: every policy fills each node's capacity, and no more.
//!
//! A naive world carries out what the instances of all nodes answer, step by step, with nothing but
//! sets of samples, and fails where a tier would hold more than its own node's capacity.

use std::collections::BTreeSet;
use std::sync::Arc;

use belady_control::job::{Job, Packing, Sizes};
use belady_control::model::{
    Bytes, Curve, Pipeline, Rate, Readers, Seconds, Sharing, SourceModel, System, TierModel,
};
use belady_control::policy::{
    self, Actions, Availability, Event, Evict, LoadFrom, NodeId, Policy, PolicyKind, PolicyPlan,
    TierId,
};
use belady_control::sampler::{
    AccessStream, EpochOrder, Order, SampleId, Scheme, Step, StreamConfig,
};
use proptest::prelude::*;

/// Every policy, and the options that change what is held.
fn kinds() -> impl Iterator<Item = PolicyKind> {
    let availability = Availability::Known;
    PolicyKind::ALL.into_iter().chain(PolicyKind::ON_REQUEST).chain([
        PolicyKind::Lobster { threads: true, eviction: false, tau: Seconds(0.001) },
        PolicyKind::Nopfs { in_order: true, cleanup_read: true, availability, duties: None },
    ])
}

fn tier(rooms: &[u64]) -> TierModel {
    let least = rooms.iter().min().copied().unwrap_or(0);
    TierModel {
        name: format!("{least} B"),
        capacity: Bytes(least),
        by_node: rooms.iter().map(|&room| Bytes(room)).collect(),
        threads: 2,
        read: Curve::flat(Rate(1e9)),
        write: Curve::flat(Rate(1e9)),
    }
}

/// `rooms`: by cache tier, the capacity of each node.
fn job(samples: u32, ranks_per_node: u32, rooms: &[Vec<u64>], scheme: Scheme, seed: u64) -> Job {
    let nodes = rooms[0].len() as u32;
    let ranks = nodes * ranks_per_node;
    let stream = StreamConfig {
        samples,
        ranks,
        batch: 2 * ranks,
        order: Order::Torch,
        scheme,
        seed,
        sampler_drop_last: false,
        drop_last: false,
    };
    let sizes: Vec<u64> = (0..u64::from(samples)).map(|k| 5 + k * 7919 % 11).collect();
    let mut tiers = vec![tier(&vec![1000; nodes as usize])];
    tiers.extend(rooms.iter().map(|rooms| tier(rooms)));
    Job {
        system: System {
            nodes,
            ranks_per_node,
            compute: Rate(100.0).into(),
            preprocess: Rate(200.0).into(),
            network: Rate(1000.0),
            source: SourceModel {
                throughput: Curve::flat(Rate(100.0)),
                link: Rate(1000.0),
                sharing: Sharing::Aggregate,
                readers: Readers::Nodes,
            },
            tiers,
            pipeline: Pipeline::Overlapped,
        },
        stream: AccessStream::new(stream).unwrap(),
        sizes: Sizes::from_bytes(sizes),
        epochs: Some(4),
        packing: Packing { files: samples, read_size: None },
    }
}

struct World {
    job: Arc<Job>,
    policies: Vec<Box<dyn Policy>>,
    /// By node and tier.
    held: Vec<Vec<BTreeSet<SampleId>>>,
    /// By node: what its ranks have staged in this step.
    ring: Vec<BTreeSet<SampleId>>,
    /// All answers.
    digest: u64,
}

impl World {
    /// What the nodes hold after the run, or nothing where the policy cannot run the job.
    fn run(job: &Arc<Job>, kind: &PolicyKind) -> Option<Self> {
        let plan = policy::plan(kind, job).ok()?;
        let (nodes, tiers) = (job.system.nodes, job.system.tiers.len());
        let mut world = Self {
            job: job.clone(),
            policies: vec![],
            held: vec![vec![BTreeSet::new(); tiers]; nodes as usize],
            ring: vec![],
            digest: 0,
        };
        for (node, list) in (0..).zip(plan.preload().nodes) {
            for (sample, tier) in list {
                world.put(node, tier, sample);
            }
        }
        let epochs = job.epochs.unwrap();
        let order = |epoch| Arc::new(job.stream.epoch(epoch));
        for epoch in 0..epochs {
            let next = (epoch + 1 < epochs).then(|| order(epoch + 1));
            plan.begin_epoch(epoch, &order(epoch), next.as_ref());
            if world.policies.is_empty() {
                world.policies = (0..nodes).map(|node| plan.clone().node(node)).collect();
            }
            for iteration in 0..order(epoch).iterations() {
                world.step(&*plan, &order(epoch), Step { epoch, iteration });
                (0..nodes).for_each(|node| world.prefetch(node));
            }
        }
        Some(world)
    }

    fn step(&mut self, plan: &dyn PolicyPlan, order: &EpochOrder, step: Step) {
        self.ring = vec![BTreeSet::new(); self.held.len()];
        if self.job.stream.config().scheme == Scheme::Whole {
            // Every ring gets the whole batch, and one may take from another what that brings.
            let all: BTreeSet<SampleId> = order.batch(0, step.iteration).collect();
            self.ring.fill(all);
        }
        let mut given = vec![];
        let mut releases = vec![];
        for rank in 0..self.job.system.ranks() {
            let node = self.job.system.node_of(rank);
            let batch: Vec<SampleId> = order.batch(rank, step.iteration).collect();
            let loads = self.ask(node, Event::Stage { rank, step, samples: &batch }).loads;
            let samples: Vec<SampleId> = loads.iter().map(|load| load.sample).collect();
            assert!(!plan.keeps_order() || samples == batch);
            for load in loads {
                self.read(node, rank, load.sample, load.from);
                self.ring[node as usize].insert(load.sample);
                if let Some(tier) = load.keep {
                    self.put(node, tier, load.sample);
                }
                match load.from {
                    LoadFrom::Local(tier) if load.last_use => {
                        releases.push((node, tier, load.sample));
                    }
                    LoadFrom::Peer(peer, tier) if load.last_use => {
                        releases.push((peer, tier, load.sample));
                    }
                    _ => {}
                }
            }
            given.push(samples);
        }
        for (node, tier, sample) in releases {
            self.held[node as usize][usize::from(tier)].remove(&sample);
        }
        // Evictions of all nodes free space for what one keeps on another.
        let mut keeps = vec![];
        for (rank, samples) in (0..).zip(&given) {
            let node = self.job.system.node_of(rank);
            let answer = self.ask(node, Event::Consumed { rank, step, samples });
            let (own, others): (Vec<_>, Vec<_>) =
                answer.keeps.into_iter().partition(|keep| keep.node == node);
            for keep in own {
                self.put(node, keep.tier, keep.sample);
            }
            keeps.extend(others);
        }
        for keep in keeps {
            self.put(keep.node, keep.tier, keep.sample);
        }
    }

    fn prefetch(&mut self, node: NodeId) {
        for tier in 1..self.job.system.tiers.len() as TierId {
            for fetch in self.ask(node, Event::Idle { tier, limit: 3 }).fetches {
                self.put(node, tier, fetch.sample);
                self.ask(node, Event::Fetched { tier, sample: fetch.sample });
            }
        }
    }

    fn read(&mut self, node: NodeId, rank: u32, sample: SampleId, from: LoadFrom) {
        let holds = |node: NodeId, tier: TierId| {
            let node = node as usize;
            self.held[node][usize::from(tier)].contains(&sample)
                || self.ring[node].contains(&sample)
        };
        match from {
            LoadFrom::Source => {}
            LoadFrom::Local(tier) => assert!(holds(node, tier), "{sample} is not on node {node}"),
            LoadFrom::Peer(peer, tier) => {
                if !holds(peer, tier) {
                    let missed = Event::Missed { rank, sample, peer };
                    assert_eq!(self.ask(node, missed).loads.len(), 1);
                }
            }
        }
    }

    fn ask(&mut self, node: NodeId, event: Event<'_>) -> Actions {
        let mut actions = Actions::default();
        self.policies[node as usize].on(Seconds::ZERO, event, &mut actions);
        for &Evict { sample, tier } in &actions.evictions {
            let held = self.held[node as usize][usize::from(tier)].remove(&sample);
            assert!(held, "node {node} evicts {sample}, which tier {tier} does not hold");
        }
        let words = format!("{actions:?}");
        for byte in words.bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        actions
    }

    fn put(&mut self, node: NodeId, tier: TierId, sample: SampleId) {
        let shelf = &mut self.held[node as usize][usize::from(tier)];
        shelf.insert(sample);
        let used: u64 = shelf.iter().map(|&sample| self.job.sizes.get(sample)).sum();
        let room = self.job.system.tiers[usize::from(tier)].capacity_of(node).0;
        assert!(used <= room, "tier {tier} of node {node} holds {used} of {room} bytes");
    }

    fn used(&self, node: usize) -> u64 {
        let held = self.held[node].iter().flatten();
        held.map(|&sample| self.job.sizes.get(sample)).sum()
    }
}

/// From nothing to more than a dataset of 80 samples.
fn rooms() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1u64..60, 60u64..500, Just(1000)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn no_policy_puts_more_on_a_node_than_that_node_holds(
        samples in 8u32..80,
        (ranks, whole, seed) in (1u32..=2, any::<bool>(), any::<u64>()),
        rooms in (1usize..=4, 1usize..=2).prop_flat_map(|(nodes, tiers)| {
            prop::collection::vec(prop::collection::vec(rooms(), nodes), tiers)
        }),
    ) {
        let scheme = if whole { Scheme::Whole } else { Scheme::Uniform };
        let job = Arc::new(job(samples, ranks, &rooms, scheme, seed));
        for kind in kinds() {
            World::run(&job, &kind);
        }
    }

    #[test]
    fn capacities_that_are_told_for_each_node_and_equal_change_nothing(
        samples in 8u32..80,
        (nodes, ranks, seed) in (1usize..=4, 1u32..=2, any::<u64>()),
        rooms in prop::collection::vec(rooms(), 1..=2),
    ) {
        let rooms: Vec<Vec<u64>> = rooms.iter().map(|&room| vec![room; nodes]).collect();
        let told = job(samples, ranks, &rooms, Scheme::Uniform, seed);
        let mut alike = told.clone();
        for tier in &mut alike.system.tiers {
            tier.by_node.clear();
        }
        let [told, alike] = [told, alike].map(Arc::new);
        for kind in kinds() {
            let digests = [&told, &alike].map(|job| World::run(job, &kind).map(|it| it.digest));
            prop_assert_eq!(digests[0], digests[1], "{}", kind.name());
        }
    }
}

/// The largest sample is of 15 bytes: a policy may leave less than that free in each tier.
#[test]
fn policies_fill_each_nodes_capacity() {
    let rooms = [50, 120, 250, 400];
    let job = Arc::new(job(200, 1, &[rooms.to_vec()], Scheme::Uniform, 7));
    let lobster = PolicyKind::Lobster { threads: true, eviction: false, tau: Seconds(0.001) };
    let names = ["nopfs", "monarch", "lru", "deepio-ordered", "locality-aware"];
    for kind in names.iter().map(|name| PolicyKind::by_name(name).unwrap()).chain([lobster]) {
        let world = World::run(&job, &kind).unwrap();
        for (node, room) in rooms.into_iter().enumerate() {
            let used = world.used(node);
            assert!(used + 15 > room, "{}: {used} of {room} on node {node}", kind.name());
        }
    }
}

/// The dataset does not fit four times the smallest memory, and does fit all of them.
#[test]
fn a_dataset_that_fits_all_nodes_together_is_kept_whole() {
    let job = Arc::new(job(100, 1, &[vec![20, 100, 400, 600]], Scheme::Uniform, 7));
    assert!(job.sizes.total().0 > 4 * 20 && job.sizes.total() < job.system.cache_total());
    for name in ["lbann-dynamic", "lbann-preload"] {
        let world = World::run(&job, &PolicyKind::by_name(name).unwrap()).unwrap();
        let all: BTreeSet<_> = world.held.iter().flatten().flatten().collect();
        assert_eq!(all.len(), 100, "{name}");
    }
}

/// The error names the capacity of the node that is too small for the whole dataset.
#[test]
fn whole_copies_need_the_capacity_on_every_node() {
    let enough = job(40, 1, &[vec![1000, 300, 500], vec![0, 300, 500]], Scheme::Uniform, 7);
    let small = job(40, 1, &[vec![1000, 77, 500], vec![0, 12, 500]], Scheme::Uniform, 7);
    for kind in PolicyKind::ON_REQUEST {
        let world = World::run(&Arc::new(enough.clone()), &kind).unwrap();
        assert_eq!(kind.name() == "local", world.held[1][2].len() > 10);
        let refused = policy::plan(&kind, &Arc::new(small.clone())).err().unwrap().to_string();
        assert!(refused.contains("89 B"), "{refused}");
    }
}

/// What each policy answers where all nodes are alike, as it was before nodes could differ: in a
/// job that no node holds alone, and in one that each does. (`belady` has digests of its own.)
#[test]
fn equal_nodes_get_the_recorded_answers() {
    let rooms = [vec![130; 4], vec![200; 4]];
    let told = [100, 30].map(|samples| {
        let mut job = job(samples, 2, &rooms, Scheme::Uniform, 3);
        job.system.tiers.iter_mut().for_each(|tier| tier.by_node.clear());
        let job = Arc::new(job);
        let others = kinds().filter(|kind| *kind != PolicyKind::Belady);
        let run = |kind: PolicyKind| Some((kind.name(), World::run(&job, &kind)?.digest));
        let told = others.filter_map(run).map(|(name, digest)| format!("{name} {digest:016x}"));
        told.collect::<Vec<_>>()
    });
    assert_eq!(told.concat(), PINNED);
}

const PINNED: [&str; 30] = [
    "perfect 6491a081b82dc6f3",
    "naive 6491a081b82dc6f3",
    "staging 6491a081b82dc6f3",
    "deepio-ordered ef9df720f4cd5a5c",
    "deepio-opportunistic ac4b278d00444266",
    "parallel-staging 5037a8f3d1483978",
    "locality-aware 7dd7c3facd499d60",
    "nopfs c926e215f5efbd08",
    "lobster 2c5098692cde4d7b",
    "monarch 07cf46d2b46f2feb",
    "lru cb4cc7f34b89a692",
    "lobster d20aa588c1ecfab6",
    "nopfs 48544ccf026044b9",
    "perfect 96c0d228492e37c6",
    "naive 96c0d228492e37c6",
    "staging 96c0d228492e37c6",
    "deepio-ordered 9329c220401b14b9",
    "deepio-opportunistic 98dcd874418b9aff",
    "parallel-staging 18d8a49c6d17285d",
    "lbann-dynamic 36f421291a5b24d6",
    "lbann-preload 9329c220401b14b9",
    "locality-aware 009a45b6614df7f1",
    "nopfs 17ceab462ce73894",
    "lobster 83ce2800ba555d9f",
    "monarch 369bd83baaa2414f",
    "lru 369bd83baaa2414f",
    "local c281b4c85c1c226d",
    "cache ee83f665118fdc8b",
    "lobster a78698f68d9ae6c2",
    "nopfs 80307701aaf5e49d",
];

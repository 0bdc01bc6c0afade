//! What every policy promises, checked on random small jobs in the simulated world.
//!
//! A policy is done when it passes: each rank gets exactly its samples in order (or
//! each global batch exactly once, for the policy that only changes ranks), nothing
//! is read where it is not and no tier overflows (the world's own checks), the same
//! job gives the same run, and an instance needs nothing but the job and the events
//! of its own node.
//!
//! The last is enforced by recording the events and answers of each instance of a run,
//! and playing one node's events to a fresh plan in which no other node exists. The plan receives
//! each epoch once as late and once as early as it may: epochs are planned on another thread, and a
//! run must not depend on how far that is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use belady_control::job::{Job, Packing, Sizes};
use belady_control::model::online::NodeMeasurement;
use belady_control::model::{
    Bytes, ComputeCost, Curve, Pipeline, Portfolio, PreprocessModel, Rate, Readers, Seconds,
    Sharing, SourceModel, System, TierModel,
};
use belady_control::policy::{
    self, Actions, Availability, Event, FixedDuties, NodeId, Policy, PolicyKind, PolicyPlan,
    Preload, RankId, Staging, ThreadAssignment, TierId,
};
use belady_control::sampler::{
    AccessStream, EpochOrder, Order, SampleId, Scheme, Step, StreamConfig,
};
use belady_sim::world::{SimulatedRun, simulate};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Every policy with its default options, then with options that change its decisions.
fn kinds() -> impl Iterator<Item = PolicyKind> {
    let lobster =
        |threads, eviction| PolicyKind::Lobster { threads, eviction, tau: Seconds(0.001) };
    let nopfs = |in_order, cleanup_read, availability| PolicyKind::Nopfs {
        in_order,
        cleanup_read,
        availability,
        duties: None,
    };
    let duties = FixedDuties { loading: 1, preprocessing: Some(1) };
    PolicyKind::ALL.into_iter().chain(PolicyKind::ON_REQUEST).chain([
        PolicyKind::Staging { duties: Some(duties) },
        PolicyKind::Nopfs {
            in_order: true,
            cleanup_read: false,
            availability: Availability::Heuristic,
            duties: Some(duties),
        },
        lobster(false, true),
        lobster(true, false),
        nopfs(false, false, Availability::Heuristic),
        nopfs(true, true, Availability::Known),
    ])
}

// ---------------------------------------------------------------------------
// Recording

/// An [`Event`] that can be kept.
#[derive(Clone, Debug)]
enum Told {
    /// Not of the node but of the plan: its process starts staging an epoch.
    Begin {
        epoch: u32,
        order: Arc<EpochOrder>,
        next: Option<Arc<EpochOrder>>,
    },
    Stage {
        rank: RankId,
        step: Step,
        samples: Vec<SampleId>,
    },
    Consumed {
        rank: RankId,
        step: Step,
        samples: Vec<SampleId>,
    },
    Idle {
        tier: TierId,
        limit: usize,
    },
    Fetched {
        tier: TierId,
        sample: SampleId,
    },
    Missed {
        rank: RankId,
        sample: SampleId,
        peer: NodeId,
    },
    Measured(NodeMeasurement),
}

impl Told {
    fn of(event: Event<'_>) -> Self {
        match event {
            Event::Stage { rank, step, samples } => {
                Self::Stage { rank, step, samples: samples.to_vec() }
            }
            Event::Consumed { rank, step, samples } => {
                Self::Consumed { rank, step, samples: samples.to_vec() }
            }
            Event::Idle { tier, limit } => Self::Idle { tier, limit },
            Event::Fetched { tier, sample } => Self::Fetched { tier, sample },
            Event::Missed { rank, sample, peer } => Self::Missed { rank, sample, peer },
            Event::Measured(now) => Self::Measured(now.clone()),
        }
    }

    fn event(&self) -> Option<Event<'_>> {
        Some(match self {
            Self::Begin { .. } => return None,
            Self::Stage { rank, step, samples } => {
                Event::Stage { rank: *rank, step: *step, samples }
            }
            Self::Consumed { rank, step, samples } => {
                Event::Consumed { rank: *rank, step: *step, samples }
            }
            Self::Idle { tier, limit } => Event::Idle { tier: *tier, limit: *limit },
            Self::Fetched { tier, sample } => Event::Fetched { tier: *tier, sample: *sample },
            Self::Missed { rank, sample, peer } => {
                Event::Missed { rank: *rank, sample: *sample, peer: *peer }
            }
            Self::Measured(now) => Event::Measured(now),
        })
    }
}

/// One event of a node, its time, and the answer.
#[derive(Clone, Debug)]
struct Entry {
    at: Seconds,
    told: Told,
    answer: String,
    fetches: usize,
}

type Diary = Arc<Mutex<Vec<Vec<Entry>>>>;

/// A plan that writes down what its instances hear and say.
struct Recorded {
    inner: Arc<dyn PolicyPlan>,
    diary: Diary,
}

impl PolicyPlan for Recorded {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        let inner = self.inner.clone().node(node);
        Box::new(RecordedPolicy { node, inner, diary: self.diary.clone() })
    }

    fn staging(&self) -> Staging {
        self.inner.staging()
    }

    fn preload(&self) -> Preload {
        self.inner.preload()
    }

    fn waits_for_fetches(&self) -> bool {
        self.inner.waits_for_fetches()
    }

    fn begin_epoch(&self, epoch: u32, order: &Arc<EpochOrder>, next: Option<&Arc<EpochOrder>>) {
        let told = Told::Begin { epoch, order: order.clone(), next: next.cloned() };
        for node in self.diary.lock().unwrap().iter_mut() {
            node.push(Entry {
                at: Seconds::ZERO,
                told: told.clone(),
                answer: String::new(),
                fetches: 0,
            });
        }
        self.inner.begin_epoch(epoch, order, next);
    }

    fn threads(&self) -> ThreadAssignment {
        self.inner.threads()
    }

    fn keeps_order(&self) -> bool {
        self.inner.keeps_order()
    }

    fn startup_ops(&self) -> (u64, u64) {
        self.inner.startup_ops()
    }
}

struct RecordedPolicy {
    node: NodeId,
    inner: Box<dyn Policy>,
    diary: Diary,
}

impl Policy for RecordedPolicy {
    fn on(&mut self, now: Seconds, event: Event<'_>, actions: &mut Actions) {
        // The world may ask again before it has carried out all of the last answer.
        let mut answer = Actions::default();
        self.inner.on(now, event, &mut answer);
        let fetches = answer.fetches.len();
        let entry =
            Entry { at: now, told: Told::of(event), answer: format!("{answer:?}"), fetches };
        self.diary.lock().unwrap()[self.node as usize].push(entry);
        actions.loads.append(&mut answer.loads);
        actions.keeps.append(&mut answer.keeps);
        actions.evictions.append(&mut answer.evictions);
        actions.fetches.append(&mut answer.fetches);
        if answer.threads.is_some() {
            actions.threads = answer.threads;
        }
    }
}

fn recorded(
    job: &Arc<Job>,
    kind: &PolicyKind,
    epochs: u32,
) -> Option<(SimulatedRun, Vec<Vec<Entry>>)> {
    let inner = policy::plan(kind, job).ok()?;
    let diary: Diary = Arc::new(Mutex::new(vec![vec![]; job.system.nodes as usize]));
    let plan: Arc<dyn PolicyPlan> = Arc::new(Recorded { inner, diary: diary.clone() });
    let run = simulate(job, &plan, epochs, &mut |_, _| {});
    let entries = std::mem::take(&mut *diary.lock().unwrap());
    Some((run, entries))
}

// ---------------------------------------------------------------------------
// Checks

/// No capacity exceeded, nothing read or evicted that is not there, order kept.
fn check_rules(kind: &PolicyKind, run: &SimulatedRun) {
    assert!(run.violations.is_empty(), "{}: {:#?}", kind.name(), &run.violations);
}

/// Each rank was staged exactly the batches of its access stream, once each, and the
/// world carried all of them to the consumer; what the ranks of a step consumed is
/// the global batch where the policy says it delivers every sample.
fn check_delivery(
    job: &Job,
    kind: &PolicyKind,
    plan: &dyn PolicyPlan,
    epochs: u32,
    diary: &[Vec<Entry>],
) {
    if plan.staging() == Staging::Instant {
        return;
    }
    let orders: Vec<_> = (0..epochs).map(|epoch| job.stream.epoch(epoch)).collect();
    let mut consumed: HashMap<(RankId, Step), Vec<SampleId>> = HashMap::new();
    for entry in diary.iter().flatten() {
        match &entry.told {
            Told::Stage { rank, step, samples } => {
                let batch: Vec<_> =
                    orders[step.epoch as usize].batch(*rank, step.iteration).collect();
                assert_eq!(samples, &batch, "{}: asked for a wrong batch", kind.name());
            }
            Told::Consumed { rank, step, samples } => {
                let before = consumed.insert((*rank, *step), samples.clone());
                assert!(before.is_none(), "{}: {step:?} came twice", kind.name());
            }
            _ => {}
        }
    }
    let ranks = job.system.ranks();
    for (epoch, order) in orders.iter().enumerate() {
        for iteration in 0..order.iterations() {
            let step = Step { epoch: epoch as u32, iteration };
            let mut wanted = vec![];
            let mut given: Vec<SampleId> = vec![];
            for rank in 0..ranks {
                let batch: Vec<_> = order.batch(rank, iteration).collect();
                let got = &consumed[&(rank, step)];
                assert_eq!(got.len(), batch.len(), "{}: rank {rank}, {step:?}", kind.name());
                if plan.keeps_order() {
                    assert_eq!(got, &batch, "{}: rank {rank}, {step:?}", kind.name());
                }
                wanted.extend(batch);
                given.extend(got);
            }
            if matches!(kind, PolicyKind::LocalityAware) {
                wanted.sort_unstable();
                given.sort_unstable();
                assert_eq!(given, wanted, "{}: {step:?}", kind.name());
            }
        }
    }
}

/// When a plan receives an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planned {
    /// Before the first event of it.
    Late,
    /// While the epoch before it begins to be staged.
    Early,
}

/// The events of a node, and between them the epochs that its plan receives.
fn with_epochs(entries: &[Entry], planned: Planned) -> Vec<&Entry> {
    let (begins, events): (Vec<_>, Vec<_>) =
        entries.iter().partition(|entry| matches!(entry.told, Told::Begin { .. }));
    let mut begins = begins.into_iter();
    let mut begun = 0;
    let mut all = vec![];
    for event in events {
        // Prefetchers ask before the first batch is staged.
        let epoch = match &event.told {
            Told::Stage { step, .. } | Told::Consumed { step, .. } => step.epoch,
            _ => 0,
        };
        let until = epoch + 1 + u32::from(planned == Planned::Early);
        while begun < until {
            all.extend(begins.next());
            begun += 1;
        }
        all.push(event);
    }
    all
}

/// The same events of one node, in a process where no other node lives, give the
/// same answers.
fn check_isolation(job: &Arc<Job>, kind: &PolicyKind, diary: &[Vec<Entry>], planned: Planned) {
    for (node, entries) in diary.iter().enumerate() {
        let plan = policy::plan(kind, job).unwrap();
        let mut alone = plan.clone().node(node as NodeId);
        let mut actions = Actions::default();
        for entry in with_epochs(entries, planned) {
            let Some(event) = entry.told.event() else {
                let Told::Begin { epoch, order, next } = &entry.told else { continue };
                plan.begin_epoch(*epoch, order, next.as_ref());
                continue;
            };
            actions.clear();
            alone.on(entry.at, event, &mut actions);
            assert_eq!(
                format!("{actions:?}"),
                entry.answer,
                "{}: node {node} answers otherwise alone, epochs planned {planned:?}, told {:?}",
                kind.name(),
                entry.told
            );
        }
    }
}

/// Returns what the instances were told and said, if the policy can run the job.
fn check(job: &Arc<Job>, kind: &PolicyKind, epochs: u32) -> Option<Vec<Vec<Entry>>> {
    let (run, diary) = recorded(job, kind, epochs)?;
    check_rules(kind, &run);
    let plan = policy::plan(kind, job).unwrap();
    check_delivery(job, kind, plan.as_ref(), epochs, &diary);
    for planned in [Planned::Late, Planned::Early] {
        check_isolation(job, kind, &diary, planned);
    }
    let again = simulate(job, &plan, epochs, &mut |_, _| {});
    assert_eq!(again.outcome, run.outcome, "{}: two runs differ", kind.name());
    Some(diary)
}

// ---------------------------------------------------------------------------
// Random jobs

#[derive(Clone, Debug)]
struct Shape {
    nodes: u32,
    ranks_per_node: u32,
    samples: u32,
    local_batch: u32,
    epochs: u32,
    /// Of the mean sample, so that some differ.
    spread: u64,
    /// Share of the dataset that each cache tier of a node can hold.
    tiers: Vec<f64>,
    /// Local batches that a rank's part of the staging buffer holds.
    ring: u32,
    files: u32,
    scheme: Scheme,
    order: Order,
    drops: (bool, bool),
    sharing: Sharing,
    readers: Readers,
    pipeline: Pipeline,
    known_epochs: bool,
    /// Whether preprocessing is given by sample size and thread count, and compute by sample too.
    measured: bool,
    seed: u64,
}

impl Shape {
    fn preprocess(&self) -> PreprocessModel {
        if !self.measured {
            return Rate(1e4).into();
        }
        // Small samples peak at three of the four threads, large ones at two.
        let curve = |peak| {
            let points = vec![(1, Rate(1e4)), (peak, Rate(2.5e4)), (4, Rate(2e4))];
            Curve::new(points).unwrap()
        };
        let models = vec![(Bytes(120), curve(3)), (Bytes(250), curve(2))];
        PreprocessModel::Measured(Portfolio::new(models).unwrap())
    }

    fn job(&self) -> Option<Arc<Job>> {
        let ranks = self.nodes * self.ranks_per_node;
        let stream = AccessStream::new(StreamConfig {
            samples: self.samples,
            ranks,
            batch: self.local_batch * ranks,
            order: self.order.clone(),
            scheme: self.scheme,
            seed: self.seed,
            sampler_drop_last: self.drops.0,
            drop_last: self.drops.1,
        })
        .ok()?;
        let sizes: Vec<u64> =
            (0..u64::from(self.samples)).map(|k| 100 + k * 7919 % (self.spread + 1)).collect();
        let total: u64 = sizes.iter().sum();
        let largest = sizes.iter().max().copied()?;
        let tier = |name: &str, capacity: u64, threads: u32, rate: f64| TierModel {
            name: name.to_owned(),
            capacity: Bytes(capacity),
            by_node: vec![],
            threads,
            read: Curve::new(vec![(1, Rate(rate)), (4, Rate(2.0 * rate))]).unwrap(),
            write: Curve::flat(Rate(rate)),
        };
        // The whole-batch scheme gives every rank the global batch.
        let batch = if self.scheme.is_even() || self.scheme == Scheme::Contiguous {
            self.local_batch
        } else {
            self.local_batch * ranks
        };
        let ring = u64::from(self.ring * batch * self.ranks_per_node) * largest;
        let mut tiers = vec![tier("staging", ring, 4, 1e6)];
        for (at, share) in self.tiers.iter().enumerate() {
            let rate = 1e6 / (at + 1) as f64;
            let capacity = (share * total as f64).round() as u64;
            tiers.push(tier(&format!("tier {}", at + 1), capacity, 2, rate));
        }
        Some(Arc::new(Job {
            system: System {
                nodes: self.nodes,
                ranks_per_node: self.ranks_per_node,
                compute: ComputeCost {
                    rate: Rate(5e3),
                    per_sample: Seconds(if self.measured { 0.01 } else { 0.0 }),
                },
                preprocess: self.preprocess(),
                network: Rate(1e5),
                source: SourceModel {
                    throughput: Curve::new(vec![(1, Rate(4e3)), (4, Rate(1e4))]).unwrap(),
                    link: Rate(1e4),
                    sharing: self.sharing,
                    readers: self.readers,
                },
                tiers,
                pipeline: self.pipeline,
            },
            stream,
            sizes: Sizes::from_bytes(sizes),
            epochs: self.known_epochs.then_some(self.epochs),
            packing: Packing { files: self.files.min(self.samples), read_size: None },
        }))
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    let machine = (1u32..=4, 1u32..=3, prop::collection::vec(capacities(), 0..=3), 2u32..=12);
    let data = (8u32..=120, 1u32..=4, 1u32..=4, prop_oneof![Just(0u64), 1u64..200], 1u32..=120);
    let stream = (
        prop::sample::select(vec![
            Scheme::Uniform,
            Scheme::Parts,
            Scheme::Contiguous,
            Scheme::Whole,
            Scheme::Imbalanced,
        ]),
        prop::sample::select(vec![Order::Torch, Order::Permutation, Order::Sequential]),
        any::<(bool, bool)>(),
        any::<u64>(),
    );
    let model = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (machine, data, stream, model).prop_map(|(machine, data, stream, model)| {
        let (nodes, ranks_per_node, tiers, ring) = machine;
        let (samples, local_batch, epochs, spread, files) = data;
        let (scheme, order, drops, seed) = stream;
        Shape {
            nodes,
            ranks_per_node,
            samples,
            local_batch,
            epochs,
            spread,
            tiers,
            ring,
            // Mostly one file a sample.
            files: if files > 60 { u32::MAX } else { files },
            scheme,
            order,
            drops,
            sharing: if model.0 { Sharing::Aggregate } else { Sharing::PerThread },
            readers: if model.1 { Readers::Nodes } else { Readers::Threads },
            pipeline: if model.2 { Pipeline::Overlapped } else { Pipeline::Serial },
            known_epochs: model.3,
            measured: model.4,
            seed,
        }
    })
}

/// From nothing to everything.
fn capacities() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), 0.001f64..0.05, 0.05f64..0.6, Just(0.25), Just(1.0), Just(1.5)]
}

/// Random jobs, each option set of the policy of that name on each.
fn conforms(name: &str) {
    let config = ProptestConfig { failure_persistence: None, ..Default::default() };
    let result = TestRunner::new(config).run(&shapes(), |shape| {
        if let Some(job) = shape.job() {
            for kind in kinds().filter(|kind| kind.name() == name) {
                check(&job, &kind, shape.epochs);
            }
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// One test a policy, so that a failure names it.
macro_rules! suite {
    ($($test:ident = $name:literal),* $(,)?) => {
        $(#[test]
        fn $test() {
            conforms($name);
        })*

        #[test]
        fn every_policy_is_in_the_suite() {
            let tested = [$($name),*];
            for kind in kinds() {
                assert!(tested.contains(&kind.name()), "{} has no test", kind.name());
            }
        }
    };
}

suite! {
    perfect = "perfect",
    naive = "naive",
    staging = "staging",
    deepio_ordered = "deepio-ordered",
    deepio_opportunistic = "deepio-opportunistic",
    parallel_staging = "parallel-staging",
    lbann_dynamic = "lbann-dynamic",
    lbann_preload = "lbann-preload",
    locality_aware = "locality-aware",
    nopfs = "nopfs",
    lobster = "lobster",
    monarch = "monarch",
    lru = "lru",
    belady = "belady",
    local = "local",
    cache = "cache",
}

/// Jobs of which some nodes use much less than others, and whose caches hold little: nodes with
/// small batches read for the others through space that they keep free.
fn uneven_shapes() -> impl Strategy<Value = Shape> {
    (shapes(), 2u32..=4, 2u32..=8, 0.01f64..0.12).prop_map(|(shape, nodes, times, capacity)| {
        Shape {
            nodes,
            samples: 100 * times + shape.samples,
            tiers: vec![capacity; shape.tiers.len().clamp(1, 2)],
            scheme: Scheme::Imbalanced,
            drops: (true, true),
            sharing: Sharing::Aggregate,
            readers: Readers::Nodes,
            ..shape
        }
    })
}

#[test]
fn belady_nodes_that_read_for_others() {
    let relayed = AtomicUsize::new(0);
    let config = ProptestConfig { failure_persistence: None, ..Default::default() };
    let result = TestRunner::new(config).run(&uneven_shapes(), |shape| {
        let Some(job) = shape.job() else { return Ok(()) };
        let diary = check(&job, &PolicyKind::Belady, shape.epochs).unwrap_or_default();
        for entries in &diary {
            let later = entries.iter().skip_while(
                |entry| !matches!(entry.told, Told::Consumed { step, .. } if step.epoch > 0),
            );
            relayed.fetch_add(later.map(|entry| entry.fetches).sum(), Ordering::Relaxed);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(relayed.into_inner() > 0, "nothing is fetched after the first epoch");
}

/// The random jobs leave few policies out; this one leaves out none.
#[test]
fn every_policy_runs_a_job_that_fits_everywhere() {
    let shape = Shape {
        nodes: 2,
        ranks_per_node: 2,
        samples: 240,
        local_batch: 3,
        epochs: 3,
        spread: 20,
        tiers: vec![1.0, 1.0],
        ring: 4,
        files: u32::MAX,
        scheme: Scheme::Uniform,
        order: Order::Torch,
        drops: (false, false),
        sharing: Sharing::Aggregate,
        readers: Readers::Nodes,
        pipeline: Pipeline::Overlapped,
        known_epochs: true,
        measured: false,
        seed: 7,
    };
    let job = shape.job().unwrap();
    for kind in kinds() {
        match policy::plan(&kind, &job) {
            Ok(_) => assert!(check(&job, &kind, shape.epochs).is_some()),
            Err(reason) => panic!("{}: {reason}", kind.name()),
        }
    }
}

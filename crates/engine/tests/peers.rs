//! Several nodes in one process, each with its own engine, which share their caches.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use belady_control::model::Bytes;
use belady_control::sampler::orders::{
    OrderProvider, RankOrders, RankShare, Replacement, WeightedOrders,
};
use belady_control::sampler::{AccessStream, Order, SampleId, Scheme, Step, StreamConfig};
use belady_data::source::{FaultSpec, Faulty, Synthetic};
use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{
    BadSamples, Engine, EngineConfig, EngineError, JobConfig, PeerPatience, TierConfig,
};
use belady_peer::faulty::{FaultyTransport, PeerFaults};
use belady_peer::memory::MemoryTransport;
use belady_peer::rendezvous::InProcessRendezvous;
use belady_peer::{Channel, Cluster, NodeId, PeerError, Push, PushOutcome, Transport};
use common::intercept::{Call, Intercept, Intercepted};
use common::{policy, tcp_network, told_digest};
use tempfile::TempDir;

const NODES: u32 = 4;
const LIMIT: Duration = Duration::from_mins(1);
const ANSWER: Duration = Duration::from_secs(1);

struct Seen {
    batches: Vec<Vec<SampleId>>,
    /// After each epoch.
    metrics: Vec<MetricsSnapshot>,
    /// The capacity that plans count on in the cache tier of this node.
    capacity: u64,
}

struct JobWorld {
    source: Arc<Synthetic>,
    job: JobConfig,
    ram: u64,
    /// By rank, if they differ.
    rams: Vec<u64>,
    /// Uses TCP instead of memory.
    tcp: bool,
    /// A directory for each rank.
    disks: Option<TempDir>,
    /// Ranks take their batches in step, as in training.
    together: bool,
    patience: Duration,
    answer: Duration,
    faults: Option<PeerFaults>,
    /// The notices of rank 0 are lost for so long from the start.
    mute: Option<Duration>,
    /// This rank ends its job after so many batches.
    leaves: Option<(u32, usize)>,
    /// This rank's transport is closed after so many batches.
    parts: Option<(u32, usize)>,
}

impl JobWorld {
    fn new(samples: u32, cached: f64) -> Self {
        let source = Arc::new(Synthetic::of_sizes(
            (0..samples).map(|k| 1500 + u64::from(k * 7919 % 1000)),
            7,
        ));
        let bytes = belady_data::source::Source::catalog(&*source).sizes().total().0;
        let mut job = JobConfig::new(source.clone());
        job.batch = 8;
        job.epochs = Some(4);
        job.staging = Bytes(1 << 20);
        let ram = (bytes as f64 * cached / f64::from(NODES)) as u64;
        let (disks, faults, mute, leaves, parts) = (None, None, None, None, None);
        Self {
            source,
            job,
            ram,
            rams: vec![],
            tcp: false,
            disks,
            together: true,
            patience: LIMIT,
            answer: ANSWER,
            faults,
            mute,
            leaves,
            parts,
        }
    }

    fn expected(&self, rank: u32) -> Vec<Vec<SampleId>> {
        self.expected_of(rank, NODES)
    }

    fn expected_of(&self, rank: u32, ranks: u32) -> Vec<Vec<SampleId>> {
        let stream = AccessStream::new(StreamConfig {
            samples: self.source_len(),
            ranks,
            batch: self.job.batch * ranks,
            order: self.job.order.clone(),
            scheme: Scheme::Uniform,
            seed: self.job.seed,
            sampler_drop_last: false,
            drop_last: self.job.drop_last,
        })
        .unwrap();
        (0..self.job.epochs.unwrap())
            .flat_map(|epoch| {
                let order = stream.epoch(epoch);
                (0..order.iterations())
                    .map(|at| order.batch(rank, at).collect())
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    fn source_len(&self) -> u32 {
        belady_data::source::Source::catalog(&*self.source).len()
    }

    fn run(&self) -> Vec<Result<Seen, EngineError>> {
        self.run_on(NODES, |_| self.job.clone())
    }

    /// Runs a job for each rank.
    fn run_on(&self, nodes: u32, job: impl Fn(u32) -> JobConfig) -> Vec<Result<Seen, EngineError>> {
        let rendezvous = InProcessRendezvous::new(nodes, LIMIT);
        let barrier = Barrier::new(nodes as usize);
        let in_memory = |it: Arc<MemoryTransport>| -> Arc<dyn Transport> { it };
        let nodes: Vec<_> = if self.tcp {
            tcp_network(nodes)
        } else {
            MemoryTransport::network(nodes).into_iter().map(in_memory).collect()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(nodes)
                .map(|(rank, transport)| {
                    let mut transport = transport;
                    if let Some(faults) = &self.faults {
                        let faults = PeerFaults { seed: u64::from(rank), ..faults.clone() };
                        transport = FaultyTransport::new(transport, NODES, faults);
                    }
                    if let Some(time) = self.mute.filter(|_| rank == 0) {
                        let by = Mute { until: Instant::now() + time };
                        transport = Arc::new(Intercepted { inner: transport, by });
                    }
                    let cluster = Arc::new(Cluster::new(rendezvous.member(rank), transport));
                    let (barrier, job) = (&barrier, job(rank));
                    scope.spawn(move || self.node(rank, &job, &cluster, barrier))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn node(
        &self,
        rank: u32,
        job: &JobConfig,
        cluster: &Arc<Cluster>,
        barrier: &Barrier,
    ) -> Result<Seen, EngineError> {
        let capacity = Bytes(self.rams.get(rank as usize).copied().unwrap_or(self.ram));
        let mut tiers = vec![TierConfig::Ram { capacity }];
        if let Some(disks) = &self.disks {
            let directory = disks.path().join(rank.to_string());
            tiers = vec![TierConfig::Disk { directory, capacity }];
        }
        let engine = Engine::new(EngineConfig {
            threads: Some(2),
            tiers,
            peers: Some(cluster.clone()),
            peer_patience: PeerPatience { wait: self.patience, answer: self.answer },
            ..EngineConfig::default()
        })?;
        let mut loader = engine.start(job)?;
        let counted_on = loader.job().system.tiers[1].capacity_of(rank).0;
        let mut seen = Seen { batches: vec![], metrics: vec![], capacity: counted_on };
        let mut epoch = 0;
        while let Some(batch) = loader.next_batch()? {
            if batch.step().epoch > epoch {
                seen.metrics.push(engine.metrics().snapshot());
                epoch = batch.step().epoch;
            }
            for sample in batch.iter() {
                let right = self.source.verify(sample.id, sample.bytes());
                assert!(right, "bytes of sample {} on rank {rank}", sample.id);
            }
            seen.batches.push(batch.iter().map(|sample| sample.id).collect());
            if self.together {
                barrier.wait();
            }
            if self.parts == Some((rank, seen.batches.len())) {
                cluster.transport.close();
            }
            if self.leaves == Some((rank, seen.batches.len())) {
                break;
            }
        }
        seen.metrics.push(engine.metrics().snapshot());
        Ok(seen)
    }
}

/// Loses notices until then.
#[derive(Debug)]
struct Mute {
    until: Instant,
}

impl Intercept for Mute {
    fn before(&self, peer: NodeId, call: Call<'_>, _deadline: Instant) -> Result<(), PeerError> {
        if matches!(call, Call::Tell) && Instant::now() < self.until {
            let error = std::io::ErrorKind::ConnectionReset.into();
            return Err(PeerError::Closed { peer, error });
        }
        Ok(())
    }
}

fn source_bytes(seen: &Seen) -> Vec<u64> {
    let mut before = 0;
    let each =
        |now: &MetricsSnapshot| now.source.bytes - std::mem::replace(&mut before, now.source.bytes);
    seen.metrics.iter().map(each).collect()
}

#[test]
fn a_dataset_that_fits_into_all_caches_is_read_from_the_source_once() {
    let world = JobWorld::new(1000, 1.02);
    let seen: Vec<Seen> = world.run().into_iter().map(Result::unwrap).collect();
    for (rank, seen) in (0..).zip(&seen) {
        assert_eq!(seen.batches, world.expected(rank), "rank {rank}");
        eprintln!("{rank}: {:?} {:?}", source_bytes(seen), seen.metrics.last().unwrap().peers);
    }
    let all: u64 = seen.iter().map(|seen| seen.metrics.last().unwrap().source.samples).sum();
    assert_eq!(all, 1000, "each sample once");
    for peers in seen.iter().map(|seen| &seen.metrics[0].peers) {
        assert_eq!((peers.nodes, peers.down), (u64::from(NODES) - 1, 0));
    }
}

/// S > N·D: an epoch reads from the source what the caches do not hold, and the bytes from other
/// nodes are those that they counted.
#[test]
fn an_epoch_reads_from_the_source_what_all_caches_together_do_not_hold() {
    const EPOCHS: u32 = 6;
    for (cached, in_memory) in [(0.25, true), (0.5, false), (0.8, false)] {
        let mut world = JobWorld::new(1200, cached);
        world.job.epochs = Some(EPOCHS);
        world.tcp = !in_memory;
        let sizes = belady_data::source::Source::catalog(&*world.source).sizes();
        let all = sizes.total().0;
        let largest = (0..sizes.len()).map(|sample| sizes.get(sample)).max().unwrap();
        let seen: Vec<Seen> = world.run().into_iter().map(Result::unwrap).collect();
        for (rank, seen) in (0..).zip(&seen) {
            assert_eq!(seen.batches, world.expected(rank), "rank {rank}");
            assert!(seen.capacity <= world.ram, "within the quota");
        }
        let last: Vec<_> = seen.iter().map(|seen| seen.metrics.last().unwrap()).collect();
        let sum = |of: fn(&MetricsSnapshot) -> u64| last.iter().map(|it| of(it)).sum::<u64>();
        let held = u64::from(NODES) * seen[0].capacity;
        let later = u64::from(EPOCHS - 1);
        let read = sum(|it| it.source.bytes);
        let bound = all + later * (all - u64::from(NODES) * world.ram);
        let planned = all + later * (all - held);
        assert!(read >= bound, "{read} is less than {bound}, which no policy can reach");
        // A node has no use for room that is smaller than a sample.
        let slack = later * u64::from(NODES) * largest;
        assert!(read <= planned + slack, "{read} of the source, {planned} + {slack} were planned");
        // Each sample of each epoch has one origin.
        let tiers = sum(|it| it.tiers.iter().map(belady_engine::metrics::TierSnapshot::hits).sum());
        let came = sum(|it| it.source.samples)
            + sum(|it| it.ring.samples)
            + sum(|it| it.peers.read.samples)
            + tiers;
        assert_eq!(came, u64::from(EPOCHS) * 1200);
        // Every sample that a node has given has arrived at another.
        assert_eq!(sum(|it| it.peers.read.bytes), sum(|it| it.peers.served.bytes));
        assert_eq!(sum(|it| it.peers.pushed.bytes), sum(|it| it.peers.taken.bytes));
        let moved = sum(|it| it.peers.read.samples) + sum(|it| it.peers.pushed.samples);
        assert!(moved > 0);
    }
}

/// With nodes of different capacities, an epoch reads S − ΣD, not S − N·min(D).
#[test]
fn nodes_with_different_capacities_use_all_of_them() {
    const EPOCHS: u32 = 6;
    for (shares, tcp) in [([0.05, 0.1, 0.2, 0.4], false), ([0.3, 0.0, 0.25, 0.1], true)] {
        let mut world = JobWorld::new(1200, 0.0);
        world.job.epochs = Some(EPOCHS);
        world.tcp = tcp;
        let sizes = belady_data::source::Source::catalog(&*world.source).sizes();
        let all = sizes.total().0;
        let largest = (0..sizes.len()).map(|sample| sizes.get(sample)).max().unwrap();
        world.rams = shares.map(|share| (all as f64 * share) as u64).to_vec();
        let seen: Vec<Seen> = world.run().into_iter().map(Result::unwrap).collect();
        let mut read = vec![0; EPOCHS as usize];
        for (rank, seen) in (0..).zip(&seen) {
            assert_eq!(seen.batches, world.expected(rank), "rank {rank}");
            assert!(
                seen.capacity <= world.rams[rank as usize],
                "rank {rank} has no more than it has"
            );
            for (read, bytes) in read.iter_mut().zip(source_bytes(seen)) {
                *read += bytes;
            }
            // Tiers round down.
            let tier = &seen.metrics.last().unwrap().tiers[0];
            assert!(tier.capacity + largest > world.rams[rank as usize], "rank {rank}: {tier:?}");
        }
        let held: u64 = seen.iter().map(|seen| seen.capacity).sum();
        let total: u64 = read.iter().sum();
        let later = u64::from(EPOCHS - 1);
        // A node has no use for room that is smaller than a sample.
        let planned = all + later * (all - held + u64::from(NODES) * largest);
        assert!(total <= planned, "{read:?} of the source, {planned} in all were planned");
        let least = all + later * (all - world.rams.iter().sum::<u64>());
        assert!(total >= least, "{read:?}: less than {least}, which no policy can reach");
    }
}

/// Returns the bytes that Belady's rule reads from the source with all caches as one: after a step
/// it keeps what is used soonest, the last of it in part.
fn least_bytes(steps: &[Vec<SampleId>], size: impl Fn(SampleId) -> u64, room: u64) -> u64 {
    let mut held: HashMap<SampleId, u64> = HashMap::new();
    let mut read = 0;
    for (at, step) in steps.iter().enumerate() {
        for &sample in step {
            read += size(sample) - held.insert(sample, size(sample)).unwrap_or(0);
        }
        let next = |sample| steps[at + 1..].iter().position(|step| step.contains(&sample));
        let mut by_use: Vec<_> = held
            .drain()
            .filter_map(|(sample, bytes)| Some((next(sample)?, sample, bytes)))
            .collect();
        by_use.sort_unstable();
        let mut left = room;
        for (_, sample, bytes) in by_use {
            let kept = bytes.min(left);
            left -= kept;
            held.insert(sample, kept);
        }
    }
    read
}

#[test]
fn a_sample_that_an_epoch_draws_again_is_not_read_from_the_source_again() {
    const SAMPLES: u32 = 1000;
    const EPOCHS: u32 = 4;
    let mut world = JobWorld::new(SAMPLES, 0.6);
    world.job.epochs = Some(EPOCHS);
    // A ring of a few batches.
    world.job.staging = Bytes(100_000);
    let weights: Vec<f64> = (0..SAMPLES).map(|it| if it < 100 { 9.0 } else { 1.0 }).collect();
    let orders = |rank| {
        let share = RankShare { rank, ranks: NODES, ..RankShare::whole(8, false) };
        WeightedOrders::new(&weights, SAMPLES, Replacement::With, 7, share).unwrap()
    };
    let seen = world.run_on(NODES, |rank| {
        let order = Order::Provided(Arc::new(orders(rank)));
        JobConfig { order, ..world.job.clone() }
    });
    let read: u64 = seen.iter().flat_map(|it| source_bytes(it.as_ref().unwrap())).sum();
    let mut steps = vec![];
    for epoch in 0..EPOCHS {
        let ranks = orders(0).all_ranks(epoch).unwrap().unwrap();
        let batches: Vec<_> = ranks.iter().map(|rank| rank.batches()).collect();
        let step = |at: usize| batches.iter().flat_map(|it| it[at].to_vec()).collect::<Vec<_>>();
        steps.extend((0..batches[0].len()).map(step));
    }
    let sizes = belady_data::source::Source::catalog(&*world.source).sizes();
    let least = least_bytes(&steps, |sample| sizes.get(sample), u64::from(NODES) * world.ram);
    // Ranks that use a sample in the same step each read it.
    let most = least + sizes.total().0 / 25;
    assert!((least..=most).contains(&read), "{read} of the source, {least} is the least");
}

#[test]
fn policies_deliver_exact_epochs_on_nodes_with_different_capacities() {
    for name in belady_engine::POLICIES {
        let mut world = JobWorld::new(300, 0.0);
        let all = belady_data::source::Source::catalog(&*world.source).sizes().total().0;
        world.rams = vec![all / 2, 0, all / 20, 2 * all];
        world.job.policy = policy(name);
        for (rank, seen) in (0..).zip(world.run()) {
            let seen = seen.unwrap();
            assert_eq!(seen.batches, world.expected(rank), "{name}, rank {rank}");
            for tier in &seen.metrics.last().unwrap().tiers {
                assert!(tier.used <= tier.capacity, "{name}, rank {rank}: {tier:?}");
            }
        }
    }
}

#[test]
fn policies_deliver_exact_epochs_on_several_nodes() {
    for name in ["belady", "nopfs", "staging", "naive", "monarch", "lru", "lobster"] {
        for (together, cached) in [(true, 0.6), (false, 1.1)] {
            let mut world = JobWorld::new(300, cached);
            world.job.policy = policy(name);
            world.job.order = Order::Permutation;
            world.together = together;
            // Ranks that do not train together do not wait for each other.
            world.patience = if together { LIMIT } else { Duration::from_millis(20) };
            for (rank, seen) in (0..).zip(world.run()) {
                assert_eq!(seen.unwrap().batches, world.expected(rank), "{name}, rank {rank}");
            }
        }
    }
}

#[test]
fn no_node_waits_for_one_that_leaves_in_mid_run() {
    let mut world = JobWorld::new(400, 1.1);
    world.leaves = Some((2, 17));
    world.together = false;
    world.patience = Duration::from_millis(50);
    for (rank, seen) in (0..).zip(world.run()) {
        let mut expected = world.expected(rank);
        expected.truncate(if rank == 2 { 17 } else { usize::MAX });
        assert_eq!(seen.unwrap().batches, expected, "rank {rank}");
    }
}

#[test]
fn a_node_whose_transport_is_closed_in_mid_run_gets_all_batches() {
    let mut world = JobWorld::new(400, 1.1);
    world.parts = Some((2, 17));
    world.job.staging = Bytes(64 << 10);
    world.together = false;
    world.patience = Duration::from_millis(50);
    for (rank, seen) in (0..).zip(world.run()) {
        assert_eq!(seen.unwrap().batches, world.expected(rank), "rank {rank}");
    }
}

#[test]
fn a_node_that_joins_in_mid_run_begins_where_the_others_are() {
    let mut world = JobWorld::new(400, 1.1);
    world.together = false;
    world.patience = Duration::from_millis(50);
    let begin = Step { epoch: 2, iteration: 3 };
    let job = |rank| {
        let begin = if rank == 1 { begin } else { Step { epoch: 0, iteration: 0 } };
        JobConfig { begin, ..world.job.clone() }
    };
    for (rank, seen) in (0..).zip(world.run_on(NODES, job)) {
        let expected = world.expected(rank);
        // 100 samples a rank, 13 batches an epoch.
        let gone = if rank == 1 { 2 * 13 + 3 } else { 0 };
        assert_eq!(seen.unwrap().batches, expected[gone..], "rank {rank}");
    }
}

#[test]
fn a_run_that_is_resumed_at_the_end_of_an_epoch_begins_the_next_one() {
    let mut world = JobWorld::new(400, 1.1);
    world.patience = Duration::from_millis(50);
    // 100 samples a rank, 13 batches an epoch.
    world.job.begin = Step { epoch: 0, iteration: 13 };
    for (rank, seen) in (0..).zip(world.run()) {
        assert_eq!(seen.unwrap().batches, world.expected(rank)[13..], "rank {rank}");
    }
}

#[test]
fn bytes_that_change_on_their_way_are_not_delivered() {
    let mut world = JobWorld::new(400, 1.1);
    world.patience = Duration::from_millis(100);
    let delay = Duration::from_millis(5);
    // Most samples are pushed; with some policies all are read.
    for name in ["belady", "nopfs"] {
        world.job.policy = policy(name);
        world.faults = Some(PeerFaults { rates: [0.02, 0.02, 0.1, 0.02], delay, seed: 0 });
        let mut damaged = 0;
        for (rank, seen) in (0..).zip(world.run()) {
            let seen = seen.unwrap();
            assert_eq!(seen.batches, world.expected(rank), "{name}, rank {rank}");
            damaged += seen.metrics.last().unwrap().peers.damaged;
        }
        assert!(damaged > 0, "{name}: nothing was damaged");
    }
}

#[test]
fn a_sample_that_cannot_be_read_is_given_to_no_peer() {
    let mut world = JobWorld::new(300, 1.1);
    let sizes = belady_data::source::Source::catalog(&*world.source).sizes();
    let same = Synthetic::of_sizes((0..300).map(|sample| sizes.get(sample)), 7);
    let spec = FaultSpec { broken: (0..300).step_by(50).collect(), ..FaultSpec::default() };
    let broken = spec.broken.clone();
    world.job.source = Arc::new(Faulty::new(same, spec));
    world.job.bad_samples = BadSamples::Skip;
    world.job.epochs = Some(2);
    for (rank, seen) in (0..).zip(world.run()) {
        let mut expected = world.expected(rank);
        for batch in &mut expected {
            batch.retain(|sample| !broken.contains(sample));
        }
        // A wrong sample at a peer would come from there in the next epoch.
        assert_eq!(seen.unwrap().batches, expected, "rank {rank}");
    }
}

#[test]
fn ranks_that_do_not_run_the_same_job_get_an_error_that_names_the_difference() {
    let world = JobWorld::new(100, 1.0);
    let seed = |rank| JobConfig { seed: u64::from(rank == 3), ..world.job.clone() };
    for result in world.run_on(NODES, seed) {
        let error = result.err().unwrap().to_string();
        assert!(error.contains("seed") && error.contains("rank 3"), "{error}");
    }
}

#[test]
fn ranks_agree_on_the_options_of_their_policy() {
    let world = JobWorld::new(100, 1.0);
    let options = ["lobster,tau=5ms", "lobster,tau=0.005,threads=true"];
    let same = |rank| JobConfig {
        policy: belady_engine::policy(options[rank as usize % 2]).unwrap(),
        ..world.job.clone()
    };
    assert!(world.run_on(2, same).iter().all(Result::is_ok), "written in another way");
    let other = |rank| JobConfig {
        policy: belady_engine::policy(["lobster", "lobster,eviction=false"][rank as usize])
            .unwrap(),
        ..world.job.clone()
    };
    for result in world.run_on(2, other) {
        let error = result.err().unwrap().to_string();
        assert!(error.contains("the policy") && error.contains("eviction=false"), "{error}");
    }
}

/// The samples in order, in contiguous parts of a batch.
fn in_order(rank: NodeId, samples: u32, batch: u32) -> Arc<RankOrders> {
    let config = StreamConfig {
        samples,
        ranks: NODES,
        batch: 0,
        order: Order::Sequential,
        scheme: Scheme::Contiguous,
        seed: 0,
        sampler_drop_last: false,
        drop_last: false,
    };
    Arc::new(RankOrders::new(rank, batch, config).unwrap())
}

#[test]
fn ranks_compare_no_argument_that_a_provided_order_does_not_use() {
    let world = JobWorld::new(100, 1.1);
    let job = |rank| JobConfig {
        order: Order::Provided(in_order(rank, 100, world.job.batch)),
        seed: u64::from(rank),
        ..world.job.clone()
    };
    assert!(world.run_on(NODES, job).iter().all(Result::is_ok));
}

#[test]
fn warm_caches_serve_a_job_of_another_size() {
    let mut world = JobWorld::new(400, 1.3);
    world.disks = Some(TempDir::new().unwrap());
    world.job.epochs = Some(2);
    for seen in world.run() {
        seen.unwrap();
    }
    // Two of the four are restarted: half of the samples are in their directories.
    world.job.batch *= 2;
    world.job.epochs = Some(1);
    let seen: Vec<Seen> =
        world.run_on(2, |_| world.job.clone()).into_iter().map(Result::unwrap).collect();
    let mut from_source = 0;
    for (rank, seen) in (0..).zip(&seen) {
        assert_eq!(seen.batches, world.expected_of(rank, 2), "rank {rank}");
        from_source += seen.metrics.last().unwrap().source.samples;
    }
    assert!(from_source < 280, "{from_source} of 400 came from the source");
}

#[test]
fn ranks_with_nothing_to_read_in_a_step_begin_the_next_epoch() {
    // Of three samples the last rank gets all; of 99 the last three make a batch.
    for samples in [3, 99] {
        let world = JobWorld::new(samples, 1.1);
        let orders = |rank| in_order(rank, samples, world.job.batch);
        let job = |rank| JobConfig { order: Order::Provided(orders(rank)), ..world.job.clone() };
        for (rank, seen) in (0..).zip(world.run_on(NODES, job)) {
            let order = orders(rank).stream().epoch(0);
            let epoch = (0..order.iterations()).map(|at| order.batch(rank, at).collect());
            let epochs: Vec<Vec<SampleId>> = (0..4).flat_map(|_| epoch.clone()).collect();
            assert_eq!(seen.unwrap().batches, epochs, "rank {rank} of {samples} samples");
        }
    }
}

#[test]
fn a_lost_notice_is_sent_again() {
    let mut world = JobWorld::new(400, 1.1);
    world.job.epochs = Some(1);
    world.mute = Some(Duration::from_millis(300));
    for (rank, seen) in (0..).zip(world.run()) {
        let seen = seen.unwrap();
        assert_eq!(seen.batches, world.expected(rank), "rank {rank}");
        let hurried = seen.metrics.last().unwrap().peers.hurried;
        assert_eq!(hurried, 0, "rank {rank} went on without rank 0");
    }
}

#[test]
fn batches_that_wait_for_space_in_the_push_queue_are_admitted() {
    let mut world = JobWorld::new(4000, 1.02);
    world.job.batch = 4;
    world.job.epochs = Some(3);
    // Twice the largest batch; the push queue has space for two samples.
    world.job.staging = Bytes(21 << 10);
    for (rank, seen) in (0..).zip(world.run()) {
        assert_eq!(seen.unwrap().batches, world.expected(rank), "rank {rank}");
    }
}

#[test]
fn a_run_with_nothing_left_ends_without_waiting_for_other_ranks() {
    let mut world = JobWorld::new(100, 1.1);
    world.job.epochs = Some(2);
    world.job.begin = Step { epoch: 2, iteration: 0 };
    // Longer than any test takes: the run ends because there is nothing to wait for.
    world.answer = Duration::from_hours(1);
    for seen in world.run() {
        assert!(seen.unwrap().batches.is_empty());
    }
}

#[test]
fn a_rank_that_cannot_start_a_job_tells_the_others_why() {
    let world = JobWorld::new(100, 1.0);
    let job = |rank| {
        let staging = if rank == 2 { Bytes(10) } else { world.job.staging };
        JobConfig { staging, ..world.job.clone() }
    };
    for (rank, result) in (0..).zip(world.run_on(NODES, job)) {
        let error = result.err().unwrap().to_string();
        if rank == 2 {
            assert!(error.contains("staging buffer"), "{error}");
        } else {
            assert!(error.contains("rank 2 cannot take part: "), "{error}");
            assert!(error.contains("staging buffer"), "{error}");
        }
    }
}

#[test]
fn a_push_whose_bytes_are_not_those_of_the_sample_is_refused() {
    let world = JobWorld::new(40, 4.0);
    let rendezvous = InProcessRendezvous::new(2, LIMIT);
    let clusters: Vec<_> = (0..)
        .zip(MemoryTransport::network(2))
        .map(|(rank, transport)| Arc::new(Cluster::new(rendezvous.member(rank), transport)))
        .collect();
    let start = |cluster: &Arc<Cluster>| {
        let engine = Engine::new(EngineConfig {
            tiers: vec![TierConfig::Ram { capacity: Bytes(world.ram) }],
            peers: Some(cluster.clone()),
            ..EngineConfig::default()
        })
        .unwrap();
        let loader = engine.start(&world.job).unwrap();
        (engine, loader)
    };
    let nodes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            clusters.iter().map(|cluster| scope.spawn(|| start(cluster))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let catalog = belady_data::source::Source::catalog(&*world.source);
    // The last: a node refuses what an epoch needs that is over there, and this one stages ahead.
    let epoch = world.job.epochs.unwrap();
    for sample in 0..40 {
        let mut right = vec![0; catalog.size(sample) as usize];
        let want = belady_data::source::Want::new(sample, &mut right);
        belady_data::source::Source::read(&*world.source, &mut [want]).unwrap();
        let digest = told_digest(&right);
        let mut wrong = right.clone();
        wrong[sample as usize] ^= 1;
        let put = |sample, tier, bytes: &[u8]| {
            let push = Push { sample, tier, epoch, digest, version: 0, bytes };
            let until = Instant::now() + ANSWER;
            clusters[1].transport.put(0, Channel(0), &[push], until).unwrap()
        };
        assert_eq!(put(sample, 1, &wrong), [PushOutcome::Refused], "the digest differs");
        assert_eq!(put(sample, 1, &right[1..]), [PushOutcome::Refused], "too short");
        assert_eq!(put(sample, 2, &right), [PushOutcome::Refused], "there is no such tier");
        assert_eq!(put(40, 1, &right), [PushOutcome::Refused], "there is no such sample");
        assert_ne!(put(sample, 1, &right), [PushOutcome::Refused], "the right bytes");
    }
    let damaged = nodes[0].0.metrics().snapshot().peers.damaged;
    assert_eq!(damaged, 40);
}

#[test]
fn batches_that_wait_while_queued_pushes_expire_are_admitted() {
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for seed in 0..4 {
            // Nodes do not wait for each other, and the caches have no byte to spare: there is
            // often no space yet for a push.
            let mut world = JobWorld::new(2000, 1.0);
            world.job.seed = seed;
            world.job.batch = 4;
            world.together = false;
            world.patience = Duration::from_millis(5);
            // Twice the largest batch; the push queue has space for two samples.
            world.job.staging = Bytes(21 << 10);
            for (rank, seen) in (0..).zip(world.run()) {
                assert_eq!(seen.unwrap().batches, world.expected(rank), "rank {rank}");
            }
        }
        done.send(()).unwrap();
    });
    outcome.recv_timeout(LIMIT).expect("it ends");
}

//! Nodes that disappear for a while and come back, each at its own speed: deferred work is resumed,
//! so every rank gets all of its batches.
//!
//! The network ([`Weather`]) stops nodes and cuts links, in one direction or both, silently or with
//! an error, for a time that a seed decides. `SEED=17 cargo nextest run -p belady-engine --test
//! partitions` runs one seed alone.

mod common;

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use belady_base::splitmix::SplitMix64;
use belady_control::model::Bytes;
use belady_control::sampler::{AccessStream, Order, SampleId, Scheme, StreamConfig};
use belady_data::source::{Source as _, Synthetic};
use belady_engine::metrics::MetricsSnapshot;
use belady_engine::{Delivery, Engine, EngineConfig, JobConfig, PeerPatience, TierConfig};
use belady_peer::memory::MemoryTransport;
use belady_peer::rendezvous::InProcessRendezvous;
use belady_peer::{Cluster, NodeId, PeerError};
use common::intercept::{Call, Intercept, Intercepted};

const NODES: u32 = 4;
/// How long a call waits for its answer, and a consumer for other nodes.
const ANSWER: Duration = Duration::from_millis(300);
const WAIT: Duration = Duration::from_millis(100);
/// No batch takes as long as this, even on a busy machine.
const HANGS: Duration = Duration::from_secs(20);

/// A seeded random generator (splitmix64).
struct Dice(SplitMix64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0.draw()
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(low + self.below(high - low))
    }
}

/// The fate of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Link {
    #[default]
    Whole,
    /// It is lost, and the connection breaks.
    Reset,
    /// It is lost silently.
    Silent,
}

#[derive(Debug)]
struct State {
    stopped: Vec<bool>,
    /// From a to b at a * NODES + b.
    links: Vec<Link>,
    ended: bool,
}

/// The network between the nodes.
#[derive(Debug)]
struct Weather {
    state: Mutex<State>,
    changed: Condvar,
}

impl Weather {
    fn new() -> Self {
        let links = vec![Link::Whole; (NODES * NODES) as usize];
        let state = State { stopped: vec![false; NODES as usize], links, ended: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// A node that is stopped does nothing.
    fn while_stopped(&self, node: NodeId) {
        let mut state = self.state.lock().unwrap();
        while state.stopped[node as usize] {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Passes a message from one node to another; the caller waits until the deadline.
    fn carry(
        &self,
        caller: NodeId,
        from: NodeId,
        to: NodeId,
        until: Instant,
    ) -> Result<(), PeerError> {
        let peer = if caller == from { to } else { from };
        let mut state = self.state.lock().unwrap();
        if state.links[(from * NODES + to) as usize] == Link::Reset {
            let error = std::io::ErrorKind::ConnectionReset.into();
            return Err(PeerError::Closed { peer, error });
        }
        let mut lost = false;
        loop {
            lost |= state.links[(from * NODES + to) as usize] == Link::Silent;
            if !lost && !state.stopped[peer as usize] {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(PeerError::TimedOut { peer, limit: ANSWER });
            }
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Injects one fault after another until the run is over.
    fn blow(&self, dice: &mut Dice) {
        while !self.state.lock().unwrap().ended {
            std::thread::sleep(dice.millis(20, 150));
            let node = dice.below(NODES.into()) as NodeId;
            let other = (node + 1 + dice.below(u64::from(NODES) - 1) as NodeId) % NODES;
            let how = if dice.below(2) == 0 { Link::Reset } else { Link::Silent };
            match dice.below(4) {
                0 => self.change(|state| state.stopped[node as usize] = true),
                1 => self.change(|state| {
                    state.stopped[node as usize] = true;
                    state.stopped[other as usize] = true;
                }),
                2 => self.change(|state| state.links[(node * NODES + other) as usize] = how),
                _ => self.change(|state| {
                    for other in 0..NODES {
                        state.links[(node * NODES + other) as usize] = how;
                        state.links[(other * NODES + node) as usize] = how;
                    }
                }),
            }
            std::thread::sleep(dice.millis(50, 900));
            self.change(|state| {
                state.stopped.fill(false);
                state.links.fill(Link::Whole);
            });
        }
    }
}

/// A node's transport: a request, the peer's work, and its answer.
#[derive(Debug)]
struct Exposed {
    me: NodeId,
    weather: Arc<Weather>,
}

impl Intercept for Exposed {
    fn before(&self, peer: NodeId, _call: Call<'_>, deadline: Instant) -> Result<(), PeerError> {
        self.weather.while_stopped(self.me);
        self.weather.carry(self.me, self.me, peer, deadline)
    }

    fn after(&self, peer: NodeId, deadline: Instant) -> Result<(), PeerError> {
        self.weather.carry(self.me, peer, self.me, deadline)?;
        self.weather.while_stopped(self.me);
        Ok(())
    }
}

/// The steps that ranks have finished, shared by a network that does not fail.
#[derive(Default)]
struct Steps {
    finished: Mutex<([usize; NODES as usize], bool)>,
    changed: Condvar,
}

impl Steps {
    /// Notes that a rank has finished so many steps; waits until all have, or one of them hangs.
    fn finish(&self, rank: u32, steps: usize) {
        let mut state = self.finished.lock().unwrap();
        state.0[rank as usize] = steps;
        self.changed.notify_all();
        while !state.1 && state.0.iter().any(|&other| other < steps) {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn give_up(&self) {
        self.finished.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

struct JobWorld {
    source: Arc<Synthetic>,
    job: JobConfig,
    ram: u64,
    /// The time that training takes for a batch.
    compute: Duration,
    /// Ranks begin each step together, as in training.
    together: Option<Steps>,
}

impl JobWorld {
    fn draw(dice: &mut Dice) -> Self {
        let samples = 400 + dice.below(300) as u32;
        let sizes = (0..samples).map(|k| 1500 + u64::from(k * 7919 % 1000));
        let source = Arc::new(Synthetic::of_sizes(sizes, 7));
        let bytes = source.catalog().sizes().total().0;
        let mut job = JobConfig::new(source.clone());
        job.batch = 4;
        job.epochs = Some(6);
        // A few batches ahead, and a push queue of a quarter of that.
        job.staging = Bytes([40 << 10, 80 << 10, 160 << 10][dice.below(3) as usize]);
        let cached = 80 + dice.below(40);
        let ram = bytes * cached / 100 / u64::from(NODES);
        Self { source, job, ram, compute: dice.millis(1, 4), together: None }
    }

    fn expected(&self, rank: u32) -> Vec<Vec<SampleId>> {
        let stream = AccessStream::new(StreamConfig {
            samples: self.source.catalog().len(),
            ranks: NODES,
            batch: self.job.batch * NODES,
            order: Order::Torch,
            scheme: Scheme::Uniform,
            seed: self.job.seed,
            sampler_drop_last: false,
            drop_last: self.job.drop_last,
        })
        .unwrap();
        let orders = (0..self.job.epochs.unwrap()).map(|epoch| stream.epoch(epoch));
        orders.flat_map(|order| order_of(&order, rank)).collect()
    }

    /// Returns what each rank has seen: its batches, or what it waits for.
    fn run(&self, weather: &Arc<Weather>) -> Vec<Result<MetricsSnapshot, String>> {
        let rendezvous = InProcessRendezvous::new(NODES, Duration::from_mins(1));
        std::thread::scope(|scope| {
            let nodes: Vec<_> = (0..)
                .zip(MemoryTransport::network(NODES))
                .map(|(rank, inner)| {
                    let by = Exposed { me: rank, weather: weather.clone() };
                    let exposed = Intercepted { inner, by };
                    let cluster =
                        Arc::new(Cluster::new(rendezvous.member(rank), Arc::new(exposed)));
                    scope.spawn(move || self.node(rank, &cluster, weather))
                })
                .collect();
            nodes.into_iter().map(|node| node.join().unwrap()).collect()
        })
    }

    fn node(
        &self,
        rank: u32,
        cluster: &Arc<Cluster>,
        weather: &Weather,
    ) -> Result<MetricsSnapshot, String> {
        let engine = Engine::new(EngineConfig {
            threads: Some(2),
            tiers: vec![TierConfig::Ram { capacity: Bytes(self.ram) }],
            peers: Some(cluster.clone()),
            peer_patience: PeerPatience { wait: WAIT, answer: ANSWER },
            ..EngineConfig::default()
        })
        .unwrap();
        let mut loader = engine.start(&self.job).unwrap();
        let monitor = loader.monitor();
        for (number, expected) in self.expected(rank).into_iter().enumerate() {
            let Delivery::Batch(batch) = loader.next_batch_timeout(HANGS).unwrap() else {
                self.together.as_ref().inspect(|steps| steps.give_up());
                return Err(format!(
                    "rank {rank} hangs at batch {number}, and waits for {}",
                    monitor.waiting_for()
                ));
            };
            let right = |sample: belady_engine::Sample<'_>| {
                assert!(self.source.verify(sample.id, sample.bytes()), "bytes of {}", sample.id);
                sample.id
            };
            let got: Vec<SampleId> = batch.iter().map(right).collect();
            assert_eq!(got, expected, "batch {number} of rank {rank}");
            drop(batch);
            std::thread::sleep(self.compute);
            weather.while_stopped(rank);
            if let Some(steps) = &self.together {
                steps.finish(rank, number + 1);
            }
        }
        Ok(engine.metrics().snapshot())
    }
}

fn order_of(order: &belady_control::sampler::EpochOrder, rank: u32) -> Vec<Vec<SampleId>> {
    (0..order.iterations()).map(|at| order.batch(rank, at).collect()).collect()
}

/// Returns the seeds from a first one on, or the one in `SEED`.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    match std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => first..first + count,
    }
}

fn every_rank_ends(seed: u64, together: bool) {
    let mut dice = Dice(SplitMix64::new(seed));
    let mut world = JobWorld::draw(&mut dice);
    world.together = together.then(Steps::default);
    let weather = Arc::new(Weather::new());
    std::thread::scope(|scope| {
        let wind = scope.spawn(|| weather.blow(&mut dice));
        let ended = world.run(&weather);
        weather.change(|state| state.ended = true);
        wind.join().unwrap();
        for rank in ended {
            rank.unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        }
    });
}

#[test]
fn every_node_ends_when_peers_disappear_and_return() {
    for seed in seeds(13, 6) {
        every_rank_ends(seed, false);
    }
}

#[test]
fn ranks_that_train_together_outlast_a_data_network_that_goes_down_and_up() {
    for seed in seeds(40, 4) {
        every_rank_ends(seed, true);
    }
}

//! The virtual world around the policies.
//!
//! Training is bulk-synchronous: in each step every rank consumes its local batch,
//! and the slowest rank ends the step. Ahead of that, each rank's staging ring is
//! filled as far as its capacity reaches. For every batch that enters a ring the
//! world asks the node's policy where each sample comes from, and works out when the
//! batch is ready: the source read runs on the shared service clock
//! ([`clock::SourceClock`]), everything else on stations of fixed rate
//! ([`stations`]). Nothing is scheduled per sample: a batch's demands are summed, so
//! a run costs a few operations a sample and a few events a batch.
//!
//! | module | what it holds |
//! |---|---|
//! | [`clock`] | the source's shared rate in virtual service |
//! | [`machine`] | servers with queues: staging threads, prefetchers |
//! | [`stations`] | devices, links and thread pools |
//! | [`store`] | what every tier really holds |
//! | [`orders`] | the epochs' orders in the window of interest |
//! | [`meter`] | what is measured |

pub mod clock;
pub mod machine;
pub mod meter;
pub mod orders;
pub mod stations;
pub mod store;

use std::collections::VecDeque;
use std::sync::Arc;

use belady_control::Job;
use belady_control::model::{Pipeline, Sharing};
use belady_control::policy::{
    Actions, Event, Load, NodeId, Place, Plan, Policy, RankId, Staging, Threads, TierId,
};
use belady_control::sampler::{EpochOrder, SampleId, Step};

use crate::outcome::Outcome;
use clock::SourceClock;
use machine::{Machine, ServerId, Work};
use meter::{Meter, StepTimes};
use orders::Orders;
use stations::{Cause, Demand, Latest, NodeStations, Rates, device_seconds, seconds};
use store::Store;

/// How far a run has come: steps done and steps in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A run and what a policy did wrong in it, if anything.
#[derive(Debug)]
pub struct Run {
    pub outcome: Outcome,
    /// Empty for a policy that keeps the rules of [`belady_control::policy`].
    pub violations: Vec<String>,
}

/// Runs `plan` on `job` for `epochs` epochs.
pub fn simulate(job: &Arc<Job>, plan: &Arc<dyn Plan>, epochs: u32, progress: Progress<'_>) -> Run {
    World::new(job, plan, epochs).run(progress)
}

/// A local batch on its way through the ring.
#[derive(Debug, Default)]
struct Chunk {
    rank: RankId,
    step: u64,
    samples: Vec<SampleId>,
    /// Copies that may go when the step is done.
    releases: Vec<(NodeId, TierId, SampleId)>,
    bytes: u64,
    source_bytes: u64,
    compute: f64,
    /// What the stations say; the server may take longer.
    ready: Latest,
    loaded: bool,
    /// What the server's part of the work mostly was.
    server_cause: Cause,
}

#[derive(Debug)]
struct Ring {
    node: NodeId,
    server: ServerId,
    local_rank: usize,
    capacity: u64,
    used: u64,
    /// The next step to stage, and its batch if that is known already.
    next: u64,
    waiting: Option<u32>,
    staged: VecDeque<u32>,
}

#[derive(Debug)]
struct Prefetcher {
    node: NodeId,
    tier: TierId,
    server: ServerId,
    busy: bool,
    samples: Vec<SampleId>,
}

struct World {
    job: Arc<Job>,
    plan: Arc<dyn Plan>,
    rates: Rates,
    staging: Staging,
    keeps_order: bool,
    threads: Vec<Threads>,
    policies: Vec<Box<dyn Policy>>,
    actions: Actions,
    store: Store,
    machine: Machine,
    stations: Vec<NodeStations>,
    rings: Vec<Ring>,
    prefetchers: Vec<Prefetcher>,
    /// First server that is a prefetcher's.
    first_prefetcher: ServerId,
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    orders: Orders,
    order: Option<(u32, Arc<EpochOrder>)>,
    begun: u32,
    epochs: u32,
    iterations: u64,
    demand: Demand,
    meter: Meter,
    now: f64,
    /// The epoch being consumed.
    epoch: u32,
}

/// Token of work whose end nobody waits for by chunk.
const PREFETCH: u32 = u32::MAX;
/// Samples of one background fetch: enough to amortise the asking, few enough to
/// keep progress fine-grained.
const PREFETCH_BATCH: usize = 64;

impl World {
    fn new(job: &Arc<Job>, plan: &Arc<dyn Plan>, epochs: u32) -> Self {
        let system = &job.system;
        let rates = Rates::new(job);
        let staging = plan.staging();
        let tier_threads: u32 = system.tiers.iter().map(|tier| tier.threads).sum();
        let clock = SourceClock::new(&system.source, system.nodes, tier_threads);
        let mut machine = Machine::new(clock);
        let threads = plan.threads();
        let mut rings = vec![];
        for rank in 0..system.ranks() {
            let node = system.node_of(rank);
            let local_rank = (rank % system.ranks_per_node) as usize;
            let pooled = threads == Threads::Pooled && staging == Staging::Ahead;
            let server = if pooled && local_rank > 0 {
                rings.last().map_or(0, |ring: &Ring| ring.server)
            } else {
                let count = match staging {
                    Staging::OnDemand => 1.0,
                    _ => rates.threads(&threads, local_rank).0,
                };
                machine.add_server(node, count)
            };
            rings.push(Ring {
                node,
                server,
                local_rank,
                capacity: system.tiers[0].capacity.0 / u64::from(system.ranks_per_node),
                used: 0,
                next: 0,
                waiting: None,
                staged: VecDeque::new(),
            });
        }
        let first_prefetcher = rings.last().map_or(0, |ring| ring.server + 1);
        let mut prefetchers = vec![];
        for node in 0..system.nodes {
            for (tier, spec) in system.tiers.iter().enumerate().skip(1) {
                let server = machine.add_server(node, f64::from(spec.threads));
                prefetchers.push(Prefetcher {
                    node,
                    tier: tier as TierId,
                    server,
                    busy: false,
                    samples: vec![],
                });
            }
        }
        Self {
            rates,
            staging,
            keeps_order: plan.keeps_order(),
            threads: vec![threads; system.nodes as usize],
            policies: (0..system.nodes).map(|node| plan.clone().node(node)).collect(),
            actions: Actions::default(),
            store: Store::new(job),
            machine,
            stations: vec![NodeStations::new(job); system.nodes as usize],
            rings,
            prefetchers,
            first_prefetcher,
            chunks: vec![],
            free: vec![],
            orders: Orders::new(job, epochs),
            order: None,
            begun: 0,
            epochs,
            iterations: u64::from(job.stream.iterations()),
            demand: Demand::default(),
            meter: Meter::new(job, epochs),
            now: 0.0,
            epoch: 0,
            job: job.clone(),
            plan: plan.clone(),
        }
    }

    fn run(mut self, progress: Progress<'_>) -> Run {
        self.preload();
        let steps = u64::from(self.epochs) * self.iterations;
        // One call a percent is enough for any display.
        let report_every = (steps / 100).max(1);
        for step in 0..steps {
            self.epoch = (step / self.iterations) as u32;
            self.wake_prefetchers();
            self.fill_rings(step, steps);
            self.consume(step);
            if (step + 1) % self.iterations == 0 {
                self.meter.epoch_end(self.epoch, self.now);
                self.orders.forget_before(self.epoch + 1);
            }
            if step % report_every == 0 {
                progress(step + 1, steps);
            }
        }
        progress(steps, steps);
        let (opens, stats) = self.plan.startup_ops();
        if let Some(ops) = self.meter.outcome.source_ops_per_epoch.first_mut() {
            ops.open += opens;
            ops.stat += stats;
        }
        Run { outcome: self.meter.finish(self.now), violations: self.store.violations }
    }

    /// Fills the tiers before the first step.
    fn preload(&mut self) {
        let preload = self.plan.preload();
        let tiers = self.job.system.tiers.len();
        for (node, list) in preload.nodes.iter().enumerate() {
            let mut bytes = vec![0.0; tiers];
            for &(sample, tier) in list {
                let size = self.job.sizes.get(sample);
                self.store.put(node as NodeId, tier, sample, size);
                bytes[tier as usize] += size as f64;
                if !preload.free {
                    self.meter.source_read(0, sample, size, true);
                }
            }
            if preload.free {
                continue;
            }
            for (tier, &bytes) in bytes.iter().enumerate().skip(1) {
                if bytes > 0.0 {
                    let server = self.prefetchers[node * (tiers - 1) + tier - 1].server;
                    let threads = self.machine.threads(server);
                    let prepare = match self.rates.pipeline {
                        Pipeline::Serial => bytes * self.rates.prepare / threads,
                        Pipeline::Overlapped => 0.0,
                    };
                    let work =
                        Work { token: Some(PREFETCH), source_bytes: bytes, then_seconds: prepare };
                    self.machine.submit(0.0, server, work);
                }
            }
        }
        while let Some(at) = self.machine.next_event() {
            self.machine.step();
            self.now = at;
        }
        self.meter.preloaded(self.now);
    }

    /// Lets every ring take in batches while it has room, all ranks in turn so that
    /// nobody queues its far future before another's near one.
    fn fill_rings(&mut self, current: u64, steps: u64) {
        let reach = match self.staging {
            Staging::Instant | Staging::OnDemand => current + 1,
            // Less than an epoch ahead: then each sample is in at most one ring, and
            // two orders are enough.
            Staging::Ahead => (current + self.iterations).min(steps),
        };
        loop {
            let mut admitted = false;
            for rank in 0..self.rings.len() {
                if self.rings[rank].next >= reach {
                    continue;
                }
                let chunk = match self.rings[rank].waiting.take() {
                    Some(chunk) => chunk,
                    None => self.draw(rank as RankId),
                };
                let ring = &mut self.rings[rank];
                let bytes = self.chunks[chunk as usize].bytes;
                if ring.used + bytes > ring.capacity && !ring.staged.is_empty() {
                    ring.waiting = Some(chunk);
                    continue;
                }
                ring.next += 1;
                ring.staged.push_back(chunk);
                self.stage(rank, chunk);
                self.rings[rank].used += self.chunks[chunk as usize].bytes;
                admitted = true;
            }
            if !admitted {
                return;
            }
        }
    }

    fn step_of(&self, step: u64) -> Step {
        Step { epoch: (step / self.iterations) as u32, iteration: (step % self.iterations) as u32 }
    }

    /// Takes the next batch of a rank from its access stream.
    fn draw(&mut self, rank: RankId) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk::default());
            self.chunks.len() as u32 - 1
        });
        let number = self.rings[rank as usize].next;
        let step = self.step_of(number);
        if self.order.as_ref().is_none_or(|(epoch, _)| *epoch != step.epoch) {
            self.order = self.orders.get(step.epoch).map(|order| (step.epoch, order));
            if step.epoch == self.begun {
                self.begin_epoch(step.epoch);
            }
        }
        let chunk = &mut self.chunks[index as usize];
        chunk.rank = rank;
        chunk.step = number;
        chunk.samples.clear();
        if let Some((_, order)) = &self.order {
            chunk.samples.extend(order.batch(rank, step.iteration));
        }
        chunk.bytes = chunk.samples.iter().map(|&sample| self.job.sizes.get(sample)).sum();
        index
    }

    fn begin_epoch(&mut self, epoch: u32) {
        self.begun = epoch + 1;
        let next = self.orders.get(epoch + 1);
        if let Some((_, order)) = &self.order {
            self.plan.begin_epoch(epoch, order, next.as_ref());
        }
    }

    /// Asks the policy for a batch and works out when it is ready.
    fn stage(&mut self, rank: usize, index: u32) {
        let node = self.rings[rank].node;
        let mut chunk = std::mem::take(&mut self.chunks[index as usize]);
        chunk.loaded = false;
        chunk.source_bytes = 0;
        chunk.releases.clear();
        chunk.ready = Latest { at: self.now, cause: Cause::Source };
        if self.staging == Staging::Instant {
            chunk.loaded = true;
            chunk.compute = chunk.bytes as f64 / self.rates.compute;
            self.chunks[index as usize] = chunk;
            return;
        }
        let step = self.step_of(chunk.step);
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        let event = Event::Stage { rank: rank as RankId, step, samples: &chunk.samples };
        self.policies[node as usize].on(seconds(self.now), event, &mut actions);
        self.apply_evictions(node, &actions);
        if let Some(threads) = actions.threads.take() {
            self.set_threads(node, threads);
        }
        self.check_order(&mut chunk, &actions.loads);
        self.demand.clear(self.job.system.tiers.len());
        let on_demand = self.staging == Staging::OnDemand;
        let count = actions.loads.len();
        for at in 0..count {
            let (load, served) = self.resolve(rank, step, actions.loads[at], &mut actions);
            self.add_load(node, step, load, served, &mut chunk);
            if on_demand {
                let token = (at + 1 == count).then_some(index);
                let work = self.on_demand_work(token);
                self.machine.submit(self.now, self.rings[rank].server, work);
            }
        }
        if on_demand {
            chunk.loaded = count == 0;
        } else {
            self.schedule(rank, index, &mut chunk);
        }
        chunk.compute = chunk.bytes as f64 / self.rates.compute;
        self.actions = actions;
        self.chunks[index as usize] = chunk;
    }

    fn apply_evictions(&mut self, node: NodeId, actions: &Actions) {
        for evict in &actions.evictions {
            let bytes = self.job.sizes.get(evict.sample);
            self.store.evict(node, evict.tier, evict.sample, bytes);
        }
    }

    /// A policy that keeps the order must load exactly what was asked for; one that
    /// does not changes what the rank gets.
    fn check_order(&mut self, chunk: &mut Chunk, loads: &[Load]) {
        let same = loads.len() == chunk.samples.len()
            && loads.iter().zip(&chunk.samples).all(|(load, &sample)| load.sample == sample);
        if same {
            return;
        }
        if self.keeps_order {
            self.store.violation(format!(
                "rank {} in step {} was given other samples than it asked for",
                chunk.rank, chunk.step
            ));
        }
        chunk.samples.clear();
        chunk.samples.extend(loads.iter().map(|load| load.sample));
        chunk.bytes = chunk.samples.iter().map(|&sample| self.job.sizes.get(sample)).sum();
    }

    /// Finds out whether a load can be had as asked, and where it really comes from:
    /// what waits in a ring to be kept in a tier is served from that ring.
    fn resolve(
        &mut self,
        rank: usize,
        step: Step,
        load: Load,
        actions: &mut Actions,
    ) -> (Load, Place) {
        let here = self.rings[rank].node;
        let sample = load.sample;
        let (node, tier) = match load.from {
            Place::Source => return (load, load.from),
            Place::Local(tier) => (here, tier),
            Place::Peer(peer, tier) => (peer, tier),
        };
        if self.store.holds(node, tier, sample) {
            return (load, load.from);
        }
        if let Some(ring) = self.store.in_ring_of(sample) {
            return (load, if ring == here { Place::Local(0) } else { Place::Peer(ring, 0) });
        }
        if node == here {
            self.store.violation(format!(
                "node {here} in {step:?} read sample {sample} from its tier {tier}, which does not hold it"
            ));
            return (Load::from(sample, Place::Source), Place::Source);
        }
        self.meter.outcome.peer_misses += 1;
        let before = actions.loads.len();
        let event = Event::Missed { rank: rank as RankId, sample, peer: node };
        self.policies[here as usize].on(seconds(self.now), event, actions);
        let answer = (actions.loads.len() > before).then(|| actions.loads.pop()).flatten();
        let answer = answer.filter(|other| {
            other.sample == sample
                && match other.from {
                    Place::Source => true,
                    Place::Local(tier) => self.store.holds(here, tier, sample),
                    Place::Peer(..) => false,
                }
        });
        let load = answer.unwrap_or_else(|| {
            self.store.violation(format!(
                "node {here} had no other place for sample {sample} after a miss"
            ));
            Load::from(sample, Place::Source)
        });
        (load, load.from)
    }

    /// Adds one load to the batch's demands and moves what moves at once.
    fn add_load(&mut self, node: NodeId, step: Step, load: Load, served: Place, chunk: &mut Chunk) {
        let bytes = self.job.sizes.get(load.sample);
        let amount = bytes as f64;
        let physical = self.rates.sharing == Sharing::Aggregate;
        self.demand.total += amount;
        let device = match served {
            Place::Source => {
                self.demand.source += amount;
                chunk.source_bytes += bytes;
                self.meter.staged_from_source(step.epoch, load.sample, bytes);
                None
            }
            Place::Local(tier) => {
                self.demand.local[tier as usize] += amount;
                self.meter.local(bytes);
                Some((node, tier, Cause::Local))
            }
            Place::Peer(peer, tier) => {
                self.demand.peer[tier as usize] += amount;
                self.meter.peer(bytes);
                Some((peer, tier, Cause::Peer))
            }
        };
        if physical && let Some((holder, tier, cause)) = device {
            let device = &mut self.stations[holder as usize].devices[tier as usize];
            let spent = device_seconds(bytes, &self.rates.read, tier);
            chunk.ready.take(device.serve(self.now, spent), cause);
        }
        if load.last_use {
            match load.from {
                Place::Source => {}
                Place::Local(tier) => chunk.releases.push((node, tier, load.sample)),
                Place::Peer(peer, tier) => chunk.releases.push((peer, tier, load.sample)),
            }
        }
        if let Some(tier) = load.keep
            && self.store.put(node, tier, load.sample, bytes)
            && physical
        {
            // Kept on the way: the batch waits for the copy.
            let device = &mut self.stations[node as usize].devices[tier as usize];
            let spent = device_seconds(bytes, &self.rates.write, tier);
            chunk.ready.take(device.serve(self.now, spent), Cause::Local);
        }
        self.store.enter_ring(node, step.epoch, load.sample);
    }

    /// One sample of a consumer that does not read the source ahead: fetch, preprocess,
    /// compute, one after the other. What a tier holds was staged in time.
    fn on_demand_work(&mut self, token: Option<u32>) -> Work {
        let demand = &self.demand;
        let compute = demand.total / self.rates.compute;
        let work = Work {
            token,
            source_bytes: demand.source,
            then_seconds: demand.source * self.rates.prepare + compute,
        };
        self.demand.clear(self.job.system.tiers.len());
        work
    }

    /// Puts a whole batch on the staging threads.
    fn schedule(&mut self, rank: usize, index: u32, chunk: &mut Chunk) {
        let ring = &self.rings[rank];
        let plan = &self.threads[ring.node as usize];
        let (loading, preparing) = self.rates.threads(plan, ring.local_rank);
        let station = if *plan == Threads::Pooled { 0 } else { ring.local_rank };
        let split = matches!(plan, Threads::Split { .. });
        let stations = &mut self.stations[ring.node as usize];
        let local = self.rates.local_seconds(&self.demand);
        let peer = self.rates.peer_seconds(&self.demand);
        let prepare = self.demand.total * self.rates.prepare;
        let inline = self.rates.pipeline == Pipeline::Serial && !split;
        if !inline {
            let station = if split { 0 } else { station };
            let end = stations.preparing[station].serve(self.now, prepare / preparing);
            chunk.ready.take(end, Cause::Preprocess);
        }
        let own = local + peer + if inline { prepare } else { 0.0 };
        let source_seconds = self.demand.source / self.machine.clock.rate();
        let biggest = [
            (source_seconds, Cause::Source),
            (local, Cause::Local),
            (peer, Cause::Peer),
            (if inline { prepare } else { 0.0 }, Cause::Preprocess),
        ]
        .into_iter()
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(Cause::Source, |(_, cause)| cause);
        let work = match self.rates.sharing {
            Sharing::PerThread => {
                chunk.server_cause = biggest;
                Work {
                    token: Some(index),
                    source_bytes: self.demand.source,
                    then_seconds: own / loading,
                }
            }
            Sharing::Aggregate => {
                chunk.server_cause = Cause::Source;
                let spent = (source_seconds + own) / loading;
                chunk.ready.take(stations.loading[station].serve(self.now, spent), biggest);
                let link = self.demand.source / self.rates.link;
                chunk.ready.take(stations.link.serve(self.now, link), Cause::Source);
                let from_peers: f64 = self.demand.peer.iter().sum();
                let network = from_peers / self.rates.network;
                chunk.ready.take(stations.network.serve(self.now, network), Cause::Peer);
                Work { token: Some(index), source_bytes: self.demand.source, then_seconds: 0.0 }
            }
        };
        if self.rates.sharing == Sharing::Aggregate && work.source_bytes == 0.0 {
            chunk.loaded = true;
        } else {
            self.machine.submit(self.now, ring.server, work);
        }
    }

    fn set_threads(&mut self, node: NodeId, threads: Threads) {
        for ring in self.rings.iter().filter(|ring| ring.node == node) {
            let (loading, _) = self.rates.threads(&threads, ring.local_rank);
            self.machine.set_threads(ring.server, loading);
        }
        self.threads[node as usize] = threads;
    }

    /// Runs the machine to its next event.
    fn advance(&mut self) {
        let Some(done) = self.machine.step() else { return };
        if done.token == PREFETCH {
            self.fetched((done.server - self.first_prefetcher) as usize, done.at);
        } else {
            let chunk = &mut self.chunks[done.token as usize];
            chunk.loaded = true;
            let cause = chunk.server_cause;
            chunk.ready.take(done.at, cause);
        }
    }

    /// All ranks consume their batch of `step`; the slowest ends it.
    fn consume(&mut self, step: u64) {
        let mut begin = self.now;
        for rank in 0..self.rings.len() {
            loop {
                let front = self.rings[rank].staged.front().copied();
                match front {
                    Some(chunk) if !self.chunks[chunk as usize].loaded => self.advance(),
                    _ => break,
                }
            }
        }
        let on_demand = self.staging == Staging::OnDemand;
        let mut end = begin;
        let mut compute: f64 = 0.0;
        let (mut longest, mut shortest) = (0.0f64, f64::INFINITY);
        let mut cause = Cause::Source;
        let mut slow = Vec::with_capacity(self.rings.len());
        for ring in &self.rings {
            let Some(&front) = ring.staged.front() else { continue };
            let chunk = &self.chunks[front as usize];
            let (wait, finish) = if on_demand {
                ((chunk.ready.at - begin - chunk.compute).max(0.0), chunk.ready.at.max(begin))
            } else {
                let wait = (chunk.ready.at - begin).max(0.0);
                (wait, begin + wait + chunk.compute)
            };
            longest = longest.max(wait);
            shortest = shortest.min(wait);
            compute = compute.max(chunk.compute);
            if finish > end {
                end = finish;
                cause = chunk.ready.cause;
            }
            slow.push(chunk.source_bytes);
        }
        std::mem::swap(&mut begin, &mut self.now);
        let epoch = self.epoch;
        let times = StepTimes {
            begin,
            end,
            compute,
            longest_wait: longest,
            shortest_wait: if shortest.is_finite() { shortest } else { 0.0 },
            cause,
            slow_bytes: &slow,
        };
        self.meter.step(epoch, &times);
        while self.machine.next_event().is_some_and(|at| at <= end) {
            self.advance();
        }
        self.now = end;
        self.let_go(step);
    }

    /// The step is over: copies that were waiting for it go, the ring frees its
    /// space, and policies decide what to keep.
    fn let_go(&mut self, step: u64) {
        for rank in 0..self.rings.len() {
            let Some(&index) = self.rings[rank].staged.front() else { continue };
            let releases = std::mem::take(&mut self.chunks[index as usize].releases);
            for &(node, tier, sample) in &releases {
                self.store.evict(node, tier, sample, self.job.sizes.get(sample));
            }
            self.chunks[index as usize].releases = releases;
        }
        let at = self.step_of(step);
        let mut actions = std::mem::take(&mut self.actions);
        for rank in 0..self.rings.len() {
            let Some(index) = self.rings[rank].staged.pop_front() else { continue };
            let chunk = std::mem::take(&mut self.chunks[index as usize]);
            let node = self.rings[rank].node;
            self.rings[rank].used -= chunk.bytes;
            if self.staging != Staging::Instant {
                actions.clear();
                let event =
                    Event::Consumed { rank: rank as RankId, step: at, samples: &chunk.samples };
                self.policies[node as usize].on(seconds(self.now), event, &mut actions);
                self.apply_evictions(node, &actions);
                if let Some(threads) = actions.threads.take() {
                    self.set_threads(node, threads);
                }
                for &sample in &chunk.samples {
                    self.store.leave_ring(node, at.epoch, sample);
                }
                self.apply_keeps(node, &actions);
            }
            self.chunks[index as usize] = chunk;
            self.free.push(index);
        }
        self.actions = actions;
    }

    fn apply_keeps(&mut self, node: NodeId, actions: &Actions) {
        let physical = self.rates.sharing == Sharing::Aggregate;
        for keep in &actions.keeps {
            let bytes = self.job.sizes.get(keep.sample);
            if self.store.put(keep.node, keep.tier, keep.sample, bytes) && physical {
                let stations = &mut self.stations[keep.node as usize];
                let spent = device_seconds(bytes, &self.rates.write, keep.tier);
                stations.devices[keep.tier as usize].serve(self.now, spent);
                if keep.node != node {
                    stations.network.serve(self.now, bytes as f64 / self.rates.network);
                }
            }
        }
    }

    fn wake_prefetchers(&mut self) {
        if self.staging == Staging::Instant {
            return;
        }
        for index in 0..self.prefetchers.len() {
            if !self.prefetchers[index].busy {
                self.ask_prefetcher(index, self.now);
            }
        }
    }

    fn ask_prefetcher(&mut self, index: usize, now: f64) {
        let Prefetcher { node, tier, server, .. } = self.prefetchers[index];
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        let event = Event::Idle { tier, limit: PREFETCH_BATCH };
        self.policies[node as usize].on(seconds(now), event, &mut actions);
        self.apply_evictions(node, &actions);
        self.prefetchers[index].busy = !actions.fetches.is_empty();
        if self.prefetchers[index].busy {
            self.demand.clear(self.job.system.tiers.len());
            let mut samples = std::mem::take(&mut self.prefetchers[index].samples);
            samples.clear();
            for fetch in &actions.fetches {
                let bytes = self.job.sizes.get(fetch.sample);
                let amount = bytes as f64;
                match fetch.from {
                    Place::Source => {
                        self.demand.source += amount;
                        self.meter.source_read(self.epoch, fetch.sample, bytes, false);
                    }
                    Place::Local(from) => self.demand.local[from as usize] += amount,
                    Place::Peer(_, from) => self.demand.peer[from as usize] += amount,
                }
                samples.push(fetch.sample);
            }
            let threads = self.machine.threads(server);
            let own =
                self.rates.local_seconds(&self.demand) + self.rates.peer_seconds(&self.demand);
            let work = Work {
                token: Some(PREFETCH),
                source_bytes: self.demand.source,
                then_seconds: own / threads,
            };
            self.prefetchers[index].samples = samples;
            self.machine.submit(now, server, work);
        }
        self.actions = actions;
    }

    /// A background fetch has arrived.
    fn fetched(&mut self, index: usize, now: f64) {
        let Prefetcher { node, tier, .. } = self.prefetchers[index];
        let samples = std::mem::take(&mut self.prefetchers[index].samples);
        let mut actions = std::mem::take(&mut self.actions);
        for &sample in &samples {
            let bytes = self.job.sizes.get(sample);
            if self.store.put(node, tier, sample, bytes) && self.rates.sharing == Sharing::Aggregate
            {
                let device = &mut self.stations[node as usize].devices[tier as usize];
                device.serve(now, device_seconds(bytes, &self.rates.write, tier));
            }
            actions.clear();
            let event = Event::Fetched { tier, sample };
            self.policies[node as usize].on(seconds(now), event, &mut actions);
            self.apply_evictions(node, &actions);
        }
        self.actions = actions;
        self.prefetchers[index].samples = samples;
        self.ask_prefetcher(index, now);
    }
}

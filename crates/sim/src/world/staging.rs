//! Stages a step: asks the policy where each sample comes from, and computes when all are ready.

use belady_control::model::{Pipeline, Sharing};
use belady_control::policy::{
    Actions, Event, Load, LoadFrom, NodeId, RankId, Staging, ThreadAssignment,
};
use belady_control::sampler::{Scheme, Step};

use super::SimWorld;
use super::ring::{StagedStep, StagedStepId};
use super::servers::ServerWork;
use super::stations::{Cause, Latest, StageShare, device_seconds, seconds};

impl SimWorld {
    pub fn stage(&mut self, ring: usize, id: StagedStepId) {
        let node = self.rings[ring].node;
        let mut staged = std::mem::take(&mut self.staged_steps[id as usize]);
        staged.loaded = false;
        staged.awaited = 0;
        staged.releases.clear();
        staged.ready = Latest { at: self.now, cause: Cause::Source };
        let step = self.step_of(staged.step);
        self.demand.clear(self.job.system.tiers.len());
        for part in 0..staged.parts.len() {
            staged.parts[part].source_bytes = 0;
            if self.staging != Staging::Instant {
                self.stage_part(ring, node, step, &mut staged, part, id);
            }
            let part = &mut staged.parts[part];
            let samples = part.samples.len() as u64;
            part.compute = self.job.system.compute.time(samples, part.bytes as f64).0;
        }
        match self.staging {
            Staging::Instant => staged.loaded = true,
            Staging::OnDemand => staged.loaded = staged.parts.iter().all(|p| p.samples.is_empty()),
            Staging::Ahead => self.schedule(ring, id, &mut staged),
        }
        self.staged_steps[id as usize] = staged;
    }

    fn stage_part(
        &mut self,
        ring: usize,
        node: NodeId,
        step: Step,
        staged: &mut StagedStep,
        part: usize,
        id: StagedStepId,
    ) {
        let rank = staged.parts[part].rank;
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        let event = Event::Stage { rank, step, samples: &staged.parts[part].samples };
        self.policies[node as usize].on(seconds(self.now), event, &mut actions);
        self.apply_evictions(node, &actions);
        if let Some(threads) = actions.threads.take() {
            self.set_threads(node, threads);
        }
        self.check_order(staged, part, &actions.loads);
        // All look-ups come before the first decision, so that they overlap.
        let mut held = std::mem::take(&mut self.held);
        held.clear();
        let whole = self.job.stream.config().scheme == Scheme::Whole;
        held.extend(actions.loads.iter().map(|load| match load.from {
            LoadFrom::Source => true,
            // Every ring gets the whole batch.
            LoadFrom::Local(0) | LoadFrom::Peer(_, 0) if whole => true,
            LoadFrom::Local(tier) => self.store.holds(node, tier, load.sample),
            LoadFrom::Peer(peer, tier) => self.store.holds(peer, tier, load.sample),
        }));
        let count = actions.loads.len();
        for (at, &held) in held.iter().enumerate() {
            let load = actions.loads[at];
            let (load, served) = if held {
                (load, load.from)
            } else if self.await_fetch(node, load, id) {
                staged.awaited += 1;
                (load, load.from)
            } else {
                self.find_elsewhere(node, rank, step, load, &mut actions)
            };
            self.add_load(node, step, load, served, staged, part);
            if self.staging == Staging::OnDemand {
                let bytes = self.job.sizes.get(load.sample);
                let work = self.on_demand_work(bytes, (at + 1 == count).then_some(id));
                self.servers.submit(self.now, self.rings[ring].server, work);
            }
        }
        self.held = held;
        self.actions = actions;
    }

    /// Checks that a policy which keeps the order loads exactly the requested samples; any other
    /// policy changes what the rank gets.
    fn check_order(&mut self, staged: &mut StagedStep, part: usize, loads: &[Load]) {
        let part = &mut staged.parts[part];
        let same = loads.len() == part.samples.len()
            && loads.iter().zip(&part.samples).all(|(load, &sample)| load.sample == sample);
        if same {
            return;
        }
        if self.keeps_order {
            self.store.violation(format!(
                "rank {} in step {} was given other samples than its batch's",
                part.rank, staged.step
            ));
        }
        part.samples.clear();
        part.samples.extend(loads.iter().map(|load| load.sample));
        staged.bytes -= part.bytes;
        part.bytes = part.samples.iter().map(|&sample| self.job.sizes.get(sample)).sum();
        staged.bytes += part.bytes;
    }

    /// Whether a load waits for a background fetch into the tier that it names.
    fn await_fetch(&mut self, here: NodeId, load: Load, id: StagedStepId) -> bool {
        let (node, tier) = match load.from {
            LoadFrom::Source => return false,
            LoadFrom::Local(tier) => (here, tier),
            LoadFrom::Peer(peer, tier) => (peer, tier),
        };
        let waits = self.plan.waits_for_fetches() && self.store.rings.find(load.sample).is_none();
        if waits {
            self.awaiting.entry((node, tier, load.sample)).or_default().push(id);
        }
        waits
    }

    /// Finds another location for a sample that the tier does not hold: the ring in which it waits
    /// to be kept, or, after a peer's miss, what the policy answers.
    fn find_elsewhere(
        &mut self,
        here: NodeId,
        rank: RankId,
        step: Step,
        load: Load,
        actions: &mut Actions,
    ) -> (Load, LoadFrom) {
        let sample = load.sample;
        let (node, tier) = match load.from {
            LoadFrom::Source => return (load, load.from),
            LoadFrom::Local(tier) => (here, tier),
            LoadFrom::Peer(peer, tier) => (peer, tier),
        };
        if let Some(ring) = self.store.rings.find(sample) {
            return (load, if ring == here { LoadFrom::Local(0) } else { LoadFrom::Peer(ring, 0) });
        }
        if node == here {
            self.store.violation(format!(
                "node {here} in {step:?} read sample {sample} from its tier {tier}, which does not \
                 hold it"
            ));
            return (Load::from_source(sample), LoadFrom::Source);
        }
        self.meter.outcome.peer_misses += 1;
        let before = actions.loads.len();
        let event = Event::Missed { rank, sample, peer: node };
        self.policies[here as usize].on(seconds(self.now), event, actions);
        let answer = (actions.loads.len() > before).then(|| actions.loads.pop()).flatten();
        let answer = answer.filter(|other| {
            other.sample == sample
                && match other.from {
                    LoadFrom::Source => true,
                    LoadFrom::Local(tier) => self.store.holds(here, tier, sample),
                    LoadFrom::Peer(..) => false,
                }
        });
        let load = answer.unwrap_or_else(|| {
            self.store.violation(format!(
                "node {here} had no other location for sample {sample} after a miss"
            ));
            Load::from_source(sample)
        });
        (load, load.from)
    }

    /// Adds one load to the batch's demands, and applies its effects on tiers and rings.
    fn add_load(
        &mut self,
        node: NodeId,
        step: Step,
        load: Load,
        served: LoadFrom,
        staged: &mut StagedStep,
        part: usize,
    ) {
        let bytes = self.job.sizes.get(load.sample);
        let amount = bytes as f64;
        let physical = self.rates.sharing == Sharing::Aggregate;
        self.job.system.preprocess.add(&mut self.demand.work, bytes);
        let device = match served {
            LoadFrom::Source => {
                self.demand.source += amount;
                staged.parts[part].source_bytes += bytes;
                self.meter.staged_from_source(step.epoch, load.sample, bytes);
                None
            }
            LoadFrom::Local(tier) => {
                self.demand.local[tier as usize] += amount;
                self.meter.local(bytes);
                Some((node, tier, Cause::Local))
            }
            LoadFrom::Peer(peer, tier) => {
                self.demand.peer[tier as usize] += amount;
                self.meter.peer(bytes);
                Some((peer, tier, Cause::Peer))
            }
        };
        if physical && let Some((holder, tier, cause)) = device {
            let device = &mut self.stations[holder as usize].devices[tier as usize];
            let spent = device_seconds(bytes, &self.rates.read, tier);
            staged.ready.take(device.serve(self.now, spent), cause);
        }
        if load.last_use {
            match load.from {
                LoadFrom::Source => {}
                LoadFrom::Local(tier) => staged.releases.push((node, tier, load.sample)),
                LoadFrom::Peer(peer, tier) => staged.releases.push((peer, tier, load.sample)),
            }
        }
        if let Some(tier) = load.keep
            && self.store.put(node, tier, load.sample, bytes)
            && physical
        {
            // The batch waits for the copy.
            let device = &mut self.stations[node as usize].devices[tier as usize];
            let spent = device_seconds(bytes, &self.rates.write, tier);
            staged.ready.take(device.serve(self.now, spent), Cause::Local);
        }
        if self.ring_matters(step) {
            self.store.rings.enter(node, step.epoch, load.sample);
        }
    }

    /// Returns the work of one sample that is read on demand: fetch, preprocess, compute, one after
    /// the other, with one thread a rank. Samples in a tier were staged in time.
    fn on_demand_work(&mut self, bytes: u64, token: Option<u32>) -> ServerWork {
        let system = &self.job.system;
        let demand = &mut self.demand;
        if demand.source == 0.0 {
            demand.work.clear();
        }
        let pools = self.rates.ranks_per_node;
        let alone = StageShare { loading: 1.0, preparing: 1.0, pools, both: true };
        let preparing = alone.preparing_time(system, &demand.work);
        let work = ServerWork {
            token,
            source_bytes: demand.source,
            then_seconds: preparing + system.compute.time(1, bytes as f64).0,
        };
        demand.clear(system.tiers.len());
        work
    }

    /// Submits a whole step to the staging threads.
    fn schedule(&mut self, ring: usize, id: StagedStepId, staged: &mut StagedStep) {
        let system = &self.job.system;
        let ring = &self.rings[ring];
        let local_rank = (ring.ranks.start % system.ranks_per_node) as usize;
        let share = self.rates.threads(&self.threads[ring.node as usize], local_rank);
        let stations = &mut self.stations[ring.node as usize];
        let work = &self.demand.work;
        let local = self.rates.local_seconds(&self.demand);
        let peer = self.rates.peer_seconds(&self.demand);
        let inline = self.rates.pipeline == Pipeline::Serial && share.both;
        let preparing = share.preparing_time(system, work);
        if !inline {
            let station = if share.both { local_rank } else { 0 };
            let end = stations.preparing[station].serve(self.now, preparing);
            staged.ready.take(end, Cause::Preprocess);
        }
        // How long the loading threads take, with what they prepare.
        let spent = |loading: f64| {
            if inline { share.pool_time(system, work, loading) } else { loading / share.loading }
        };
        let source_seconds = self.demand.source / self.servers.clock.rate();
        let biggest = [
            (source_seconds, Cause::Source),
            (local, Cause::Local),
            (peer, Cause::Peer),
            (if inline { preparing * share.loading } else { 0.0 }, Cause::Preprocess),
        ]
        .into_iter()
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(Cause::Source, |(_, cause)| cause);
        let work = match self.rates.sharing {
            Sharing::PerThread => {
                staged.server_cause = biggest;
                ServerWork {
                    token: Some(id),
                    source_bytes: self.demand.source,
                    then_seconds: spent(local + peer),
                }
            }
            Sharing::Aggregate => {
                staged.server_cause = Cause::Source;
                let spent = spent(source_seconds + local + peer);
                staged.ready.take(stations.loading[local_rank].serve(self.now, spent), biggest);
                let from_peers: f64 = self.demand.peer.iter().sum();
                let network = from_peers / self.rates.network;
                staged.ready.take(stations.network.serve(self.now, network), Cause::Peer);
                ServerWork { token: Some(id), source_bytes: self.demand.source, then_seconds: 0.0 }
            }
        };
        if self.rates.sharing == Sharing::Aggregate && work.source_bytes == 0.0 {
            staged.loaded = true;
        } else {
            self.servers.submit(self.now, ring.server, work);
        }
    }

    pub fn set_threads(&mut self, node: NodeId, threads: ThreadAssignment) {
        for ring in self.rings.iter().filter(|ring| ring.node == node) {
            let local_rank = (ring.ranks.start % self.job.system.ranks_per_node) as usize;
            self.servers.set_threads(ring.server, self.rates.threads(&threads, local_rank).loading);
        }
        self.threads[node as usize] = threads;
    }
}

//! Staging a parcel: asking the policy where each sample comes from, and working out
//! when all of it is ready.

use belady_control::model::{Pipeline, Sharing};
use belady_control::policy::{Actions, Event, Load, NodeId, Place, RankId, Staging, Threads};
use belady_control::sampler::{Scheme, Step};

use super::World;
use super::machine::Work;
use super::ring::{Parcel, ParcelId};
use super::stations::{Cause, Latest, device_seconds, seconds};

impl World {
    pub fn stage(&mut self, ring: usize, id: ParcelId) {
        let node = self.rings[ring].node;
        let mut parcel = std::mem::take(&mut self.parcels[id as usize]);
        parcel.loaded = false;
        parcel.releases.clear();
        parcel.ready = Latest { at: self.now, cause: Cause::Source };
        let step = self.step_of(parcel.step);
        self.demand.clear(self.job.system.tiers.len());
        for part in 0..parcel.parts.len() {
            parcel.parts[part].source_bytes = 0;
            if self.staging != Staging::Instant {
                self.stage_part(ring, node, step, &mut parcel, part, id);
            }
            let part = &mut parcel.parts[part];
            part.compute = part.bytes as f64 / self.rates.compute;
        }
        match self.staging {
            Staging::Instant => parcel.loaded = true,
            Staging::OnDemand => parcel.loaded = parcel.parts.iter().all(|p| p.samples.is_empty()),
            Staging::Ahead => self.schedule(ring, id, &mut parcel),
        }
        self.parcels[id as usize] = parcel;
    }

    fn stage_part(
        &mut self,
        ring: usize,
        node: NodeId,
        step: Step,
        parcel: &mut Parcel,
        part: usize,
        id: ParcelId,
    ) {
        let rank = parcel.parts[part].rank;
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        let event = Event::Stage { rank, step, samples: &parcel.parts[part].samples };
        self.policies[node as usize].on(seconds(self.now), event, &mut actions);
        self.apply_evictions(node, &actions);
        if let Some(threads) = actions.threads.take() {
            self.set_threads(node, threads);
        }
        self.check_order(parcel, part, &actions.loads);
        // All look-ups before the first decision, so that they overlap.
        let mut held = std::mem::take(&mut self.held);
        held.clear();
        let whole = self.job.stream.config().scheme == Scheme::Whole;
        held.extend(actions.loads.iter().map(|load| match load.from {
            Place::Source => true,
            // Every ring gets the whole batch.
            Place::Local(0) | Place::Peer(_, 0) if whole => true,
            Place::Local(tier) => self.store.holds(node, tier, load.sample),
            Place::Peer(peer, tier) => self.store.holds(peer, tier, load.sample),
        }));
        let count = actions.loads.len();
        for (at, &held) in held.iter().enumerate() {
            let load = actions.loads[at];
            let (load, served) = if held {
                (load, load.from)
            } else {
                self.find_elsewhere(node, rank, step, load, &mut actions)
            };
            self.add_load(node, step, load, served, parcel, part);
            if self.staging == Staging::OnDemand {
                let work = self.on_demand_work((at + 1 == count).then_some(id));
                self.machine.submit(self.now, self.rings[ring].server, work);
            }
        }
        self.held = held;
        self.actions = actions;
    }

    /// A policy that keeps the order must load exactly what was asked for; one that
    /// does not changes what the rank gets.
    fn check_order(&mut self, parcel: &mut Parcel, part: usize, loads: &[Load]) {
        let part = &mut parcel.parts[part];
        let same = loads.len() == part.samples.len()
            && loads.iter().zip(&part.samples).all(|(load, &sample)| load.sample == sample);
        if same {
            return;
        }
        if self.keeps_order {
            self.store.violation(format!(
                "rank {} in step {} was given other samples than it asked for",
                part.rank, parcel.step
            ));
        }
        part.samples.clear();
        part.samples.extend(loads.iter().map(|load| load.sample));
        parcel.bytes -= part.bytes;
        part.bytes = part.samples.iter().map(|&sample| self.job.sizes.get(sample)).sum();
        parcel.bytes += part.bytes;
    }

    /// The tier does not hold what was asked of it: what waits in a ring to be kept there
    /// is served from that ring, a peer that has nothing is a miss.
    fn find_elsewhere(
        &mut self,
        here: NodeId,
        rank: RankId,
        step: Step,
        load: Load,
        actions: &mut Actions,
    ) -> (Load, Place) {
        let sample = load.sample;
        let (node, tier) = match load.from {
            Place::Source => return (load, load.from),
            Place::Local(tier) => (here, tier),
            Place::Peer(peer, tier) => (peer, tier),
        };
        if let Some(ring) = self.store.rings.find(sample) {
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
        let event = Event::Missed { rank, sample, peer: node };
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
    fn add_load(
        &mut self,
        node: NodeId,
        step: Step,
        load: Load,
        served: Place,
        parcel: &mut Parcel,
        part: usize,
    ) {
        let bytes = self.job.sizes.get(load.sample);
        let amount = bytes as f64;
        let physical = self.rates.sharing == Sharing::Aggregate;
        self.demand.total += amount;
        let device = match served {
            Place::Source => {
                self.demand.source += amount;
                parcel.parts[part].source_bytes += bytes;
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
            parcel.ready.take(device.serve(self.now, spent), cause);
        }
        if load.last_use {
            match load.from {
                Place::Source => {}
                Place::Local(tier) => parcel.releases.push((node, tier, load.sample)),
                Place::Peer(peer, tier) => parcel.releases.push((peer, tier, load.sample)),
            }
        }
        if let Some(tier) = load.keep
            && self.store.put(node, tier, load.sample, bytes)
            && physical
        {
            // Kept on the way: the batch waits for the copy.
            let device = &mut self.stations[node as usize].devices[tier as usize];
            let spent = device_seconds(bytes, &self.rates.write, tier);
            parcel.ready.take(device.serve(self.now, spent), Cause::Local);
        }
        if self.ring_matters(step) {
            self.store.rings.enter(node, step.epoch, load.sample);
        }
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

    /// Puts a whole parcel on the staging threads.
    fn schedule(&mut self, ring: usize, id: ParcelId, parcel: &mut Parcel) {
        let ring = &self.rings[ring];
        let local_rank = (ring.ranks.start % self.job.system.ranks_per_node) as usize;
        let plan = &self.threads[ring.node as usize];
        let (loading, preparing) = self.rates.threads(plan, local_rank);
        let station = local_rank;
        let split = matches!(plan, Threads::Split { .. });
        let stations = &mut self.stations[ring.node as usize];
        let local = self.rates.local_seconds(&self.demand);
        let peer = self.rates.peer_seconds(&self.demand);
        let prepare = self.demand.total * self.rates.prepare;
        let inline = self.rates.pipeline == Pipeline::Serial && !split;
        if !inline {
            let station = if split { 0 } else { station };
            let end = stations.preparing[station].serve(self.now, prepare / preparing);
            parcel.ready.take(end, Cause::Preprocess);
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
                parcel.server_cause = biggest;
                Work {
                    token: Some(id),
                    source_bytes: self.demand.source,
                    then_seconds: own / loading,
                }
            }
            Sharing::Aggregate => {
                parcel.server_cause = Cause::Source;
                let spent = (source_seconds + own) / loading;
                parcel.ready.take(stations.loading[station].serve(self.now, spent), biggest);
                let from_peers: f64 = self.demand.peer.iter().sum();
                let network = from_peers / self.rates.network;
                parcel.ready.take(stations.network.serve(self.now, network), Cause::Peer);
                Work { token: Some(id), source_bytes: self.demand.source, then_seconds: 0.0 }
            }
        };
        if self.rates.sharing == Sharing::Aggregate && work.source_bytes == 0.0 {
            parcel.loaded = true;
        } else {
            self.machine.submit(self.now, ring.server, work);
        }
    }

    pub fn set_threads(&mut self, node: NodeId, threads: Threads) {
        for ring in self.rings.iter().filter(|ring| ring.node == node) {
            let local_rank = (ring.ranks.start % self.job.system.ranks_per_node) as usize;
            let (loading, _) = self.rates.threads(&threads, local_rank);
            self.machine.set_threads(ring.server, loading);
        }
        self.threads[node as usize] = threads;
    }
}

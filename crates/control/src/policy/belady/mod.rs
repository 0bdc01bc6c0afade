//! `belady`: reads the least from the source, evenly.
//!
//! *Knows* the orders of this epoch and the next, and of some after it where these decide; all
//! sizes and all capacities.
//!
//! *Decides*, once an epoch and for all nodes at once, which samples are held for the next and
//! where ([`transition`], [`placement`]). Every sample counts once; free space may hold copies
//! ([`copies`]) and what later epochs use ([`spares`], [`later`]). Where the choice is free, it is
//! made so that every rank reads the same bytes from the source at every iteration of the next
//! epoch, and every iteration of this one keeps as much as it evicts ([`choice`]). Where it is
//! not, what is used soonest is held ([`soonest`]). A sample in memory moves to the node that
//! uses it next if that has space, else stays, else goes to the node with most space; a sample on
//! disk stays. Prefetchers read a part of the first epoch where that makes it shorter ([`ahead`]),
//! and nodes with little to read for themselves read for others ([`relays`]).
//!
//! docs/policies.md proves that this reads the least.
//!
//! *Costs* a few passes over the samples an epoch, and in memory an order and a spot a
//! sample for each epoch at hand, and a bit a sample and node where copies are kept.
//!
//! All of this is a pure function of the job in logical time: a holder evicts a sample when the
//! step that uses it is over, and only then is its space given away. So all nodes compute the
//! same spots without exchanging messages.

mod ahead;
mod choice;
mod copies;
mod fetches;
mod later;
mod pace;
mod placement;
mod prefetch;
mod relays;
mod soonest;
mod space;
mod spares;
mod state;
mod tracked;
mod transition;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use self::copies::SpareCopies;
use self::fetches::ReadAhead;
use self::later::Uses;
use self::prefetch::NodeFetches;
use self::relays::Relays;
use self::state::{Decision, EpochOrders, Transition};
use super::balance::ThreadBalancer;
use super::{
    Actions, Event, Evict, Keep, Load, LoadFrom, NodeId, Policy, PolicyPlan, RankId,
    ThreadAssignment, TierId, Unsupported,
};
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::{EpochOrder, SampleId, Scheme};

/// A place in a cache: `node * tiers + tier`, or 0 for nowhere (tier 0 is the ring).
type Spot = u16;
const NOWHERE: Spot = 0;

#[derive(Debug)]
pub struct Belady {
    job: Arc<Job>,
    epochs: Mutex<HashMap<u32, EpochDecisions>>,
    memory: Mutex<RunMemory>,
    /// By the uses of the first epoch.
    relays: OnceLock<Relays>,
    /// The first epoch that began, and what prefetchers fetch in it.
    first: OnceLock<(u32, Arc<ReadAhead>)>,
}

/// State that is kept from epoch to epoch.
#[derive(Debug, Default)]
struct RunMemory {
    copies: SpareCopies,
    /// Only where later orders are not known.
    uses: Uses,
}

/// The decisions that concern one epoch.
#[derive(Clone, Debug, Default)]
struct EpochDecisions {
    /// Where each sample waits for this epoch: the decision of the epoch before.
    coming: Arc<Decision>,
    /// Where each sample waits for the next epoch: this epoch's decision.
    leaving: Arc<Decision>,
}

pub fn plan(job: &Arc<Job>) -> Result<Arc<dyn PolicyPlan>, Unsupported> {
    let spots = job.system.nodes as usize * job.system.tiers.len();
    if spots > usize::from(Spot::MAX) {
        return Err(Unsupported(format!(
            "belady plans for at most {} nodes with {} tiers",
            usize::from(Spot::MAX) / job.system.tiers.len(),
            job.system.tiers.len()
        )));
    }
    Ok(Arc::new(Belady::new(job.clone())))
}

impl Belady {
    fn new(job: Arc<Job>) -> Self {
        Self {
            job,
            epochs: Mutex::default(),
            memory: Mutex::default(),
            relays: OnceLock::new(),
            first: OnceLock::new(),
        }
    }

    fn epoch(&self, epoch: u32) -> EpochDecisions {
        self.lock().get(&epoch).cloned().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, EpochDecisions>> {
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PolicyPlan for Belady {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(BeladyNode {
            node,
            tiers: self.job.system.tiers.len() as Spot,
            whole: self.job.stream.config().scheme == Scheme::Whole,
            epoch: None,
            at: EpochDecisions::default(),
            found: vec![],
            readers: vec![],
            fetches: NodeFetches::new(&self.job, node),
            balancer: ThreadBalancer::default(),
            plan: self,
        })
    }

    fn threads(&self) -> ThreadAssignment {
        ThreadAssignment::Pooled
    }

    fn waits_for_fetches(&self) -> bool {
        true
    }

    fn begin_epoch(&self, epoch: u32, order: &Arc<EpochOrder>, next: Option<&Arc<EpochOrder>>) {
        let coming = self.epoch(epoch).coming;
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let RunMemory { copies, uses } = &mut *memory;
        if !self.job.stream.ahead() {
            uses.count(self.job.sizes.len(), order.samples().iter().copied());
        }
        let orders = EpochOrders { epoch, this: order, next: next.map(AsRef::as_ref), uses };
        let relays = self.relays.get_or_init(|| Relays::of(&self.job, order));
        let transition = Transition::new(&self.job, orders, &coming, copies, relays);
        let leaving = Arc::new(transition.run());
        self.first.get_or_init(|| (epoch, leaving.ahead.clone()));
        let mut epochs = self.lock();
        // This one may be begun while the one before is staged and the one before that
        // is consumed.
        epochs.retain(|&old, _| old + 3 > epoch);
        epochs.insert(epoch, EpochDecisions { coming, leaving: leaving.clone() });
        epochs.insert(epoch + 1, EpochDecisions { coming: leaving, leaving: Arc::default() });
    }
}

struct BeladyNode {
    node: NodeId,
    tiers: Spot,
    whole: bool,
    plan: Arc<Belady>,
    /// The epoch that `at` speaks of.
    epoch: Option<u32>,
    at: EpochDecisions,
    /// Of the batch at hand: the spots in both; kept for its allocation.
    found: Vec<(Spot, Spot)>,
    /// Likewise: the rank that loads each sample.
    readers: Vec<RankId>,
    /// What its prefetchers fetch.
    fetches: NodeFetches,
    balancer: ThreadBalancer,
}

impl BeladyNode {
    fn turn_to(&mut self, epoch: u32) {
        if self.epoch != Some(epoch) {
            self.epoch = Some(epoch);
            self.at = self.plan.epoch(epoch);
        }
    }

    fn place(&self, spot: Spot) -> LoadFrom {
        let (node, tier) = (NodeId::from(spot / self.tiers), (spot % self.tiers) as TierId);
        if node == self.node { LoadFrom::Local(tier) } else { LoadFrom::Peer(node, tier) }
    }

    /// Looks up where each sample is for this use and where it is after it, all at once so that
    /// the look-ups overlap.
    fn look_up(&mut self, samples: &[SampleId], iteration: u32, rank: RankId) {
        self.found.clear();
        let EpochDecisions { coming, leaving } = &self.at;
        let spots = |&sample: &SampleId| (coming.spots.get(sample), leaving.spots.get(sample));
        self.found.extend(samples.iter().map(spots));
        if !leaving.ahead.is_empty() {
            for (found, &sample) in self.found.iter_mut().zip(samples) {
                if let Some(spot) = leaving.ahead.spot(sample) {
                    found.0 = spot;
                }
            }
        }
        if leaving.tracked.is_empty() {
            return;
        }
        // One rank stands for all in the plan.
        let rank = if self.whole { 0 } else { rank };
        for (at, &sample) in samples.iter().enumerate() {
            if let Some(using) = leaving.tracked.find(sample, (iteration, rank)) {
                // A batch that names a sample twice moves it once.
                let again = samples[..at].contains(&sample);
                self.found[at] = (using.from, if again { using.from } else { using.to });
            }
        }
    }

    /// The rank that loads each sample of a batch. Where all ranks have the same batch, each
    /// loads a part of it, equally much from the source, and takes the rest out of the others'
    /// rings.
    fn find_readers(&mut self, rank: RankId, iteration: u32) {
        let ranks = self.plan.job.system.ranks();
        self.readers.clear();
        if !self.whole {
            self.readers.resize(self.found.len(), rank);
            return;
        }
        let (mut slow, mut fast) = (iteration, iteration);
        self.readers.extend(self.found.iter().map(|&(spot, _)| {
            let turn = if spot == NOWHERE { &mut slow } else { &mut fast };
            *turn += 1;
            *turn % ranks
        }));
    }

    fn stage(&self, rank: RankId, samples: &[SampleId], actions: &mut Actions) {
        for ((&sample, &(spot, to)), &reader) in samples.iter().zip(&self.found).zip(&self.readers)
        {
            if reader != rank {
                let node = self.plan.job.system.node_of(reader);
                let from =
                    if node == self.node { LoadFrom::Local(0) } else { LoadFrom::Peer(node, 0) };
                actions.loads.push(Load::from(sample, from));
                continue;
            }
            let load = if spot == NOWHERE {
                Load::from(sample, LoadFrom::Source)
            } else {
                let Decision { left_behind, ahead, .. } = &*self.at.leaving;
                // A relay evicts what it has fetched itself.
                let stays = left_behind.contains(sample) || ahead.spot(sample).is_some();
                let last_use = to != spot && !stays;
                Load { sample, from: self.place(spot), last_use, keep: None }
            };
            actions.loads.push(load);
        }
    }

    /// Evicts copies and spare samples when a step is over, with the batch of the node's first
    /// rank.
    fn drop_spares(&self, rank: RankId, iteration: u32, actions: &mut Actions) {
        if rank.is_multiple_of(self.plan.job.system.ranks_per_node)
            && let Some(gone) = self.at.leaving.evictions.get(&(self.node, iteration))
        {
            actions.evictions.extend(gone.iter().map(|&(sample, tier)| Evict { sample, tier }));
        }
    }

    /// Returns the next samples that a tier's prefetcher reads ahead, at most as many as a rank's
    /// batch has, as staging does: a larger fetch would arrive later as a whole.
    fn fetch_ahead(&mut self, tier: TierId, limit: usize, actions: &mut Actions) {
        // Nothing is staged before the first epoch is planned.
        if let Some((epoch, ahead)) = self.plan.first.get() {
            self.fetches.begin(*epoch, ahead);
        }
        let config = self.plan.job.stream.config();
        let batch = (config.batch / config.ranks).max(1) as usize;
        let space = self.plan.relays.get().map_or(0, |relays| relays.space(self.node as usize));
        self.fetches.next(tier, limit.min(batch), space, actions);
    }

    fn consumed(&self, rank: RankId, samples: &[SampleId], actions: &mut Actions) {
        for ((&sample, &(spot, to)), &reader) in samples.iter().zip(&self.found).zip(&self.readers)
        {
            if reader != rank {
                continue;
            }
            let there = self.at.leaving.there_already.contains(sample);
            if to != NOWHERE && to != spot && !there {
                let (node, tier) = (NodeId::from(to / self.tiers), (to % self.tiers) as TierId);
                actions.keeps.push(Keep { sample, node, tier });
            }
        }
    }
}

impl Policy for BeladyNode {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { rank, step, samples } => {
                self.turn_to(step.epoch);
                self.fetches.begin(step.epoch, &self.at.leaving.ahead);
                self.look_up(samples, step.iteration, rank);
                self.find_readers(rank, step.iteration);
                self.stage(rank, samples, actions);
            }
            Event::Consumed { rank, step, samples } => {
                self.turn_to(step.epoch);
                self.look_up(samples, step.iteration, rank);
                self.find_readers(rank, step.iteration);
                self.drop_spares(rank, step.iteration, actions);
                self.fetches.end_step(step, actions);
                self.consumed(rank, samples, actions);
            }
            // A holder that died or lost its cache: the source always has it.
            Event::Missed { sample, .. } => {
                actions.loads.push(Load::from(sample, LoadFrom::Source));
            }
            Event::Idle { tier, limit } => self.fetch_ahead(tier, limit, actions),
            Event::Measured(now) => actions.threads = self.balancer.measured(now),
            Event::Fetched { tier, sample } => self.fetches.fetched(tier, sample, actions),
        }
    }
}

#[cfg(test)]
mod tests;

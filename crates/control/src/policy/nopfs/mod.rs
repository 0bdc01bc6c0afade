//! `nopfs`: the policy of NoPFS (section 5) and HDMLP (section 3.2.2).
//!
//! *Knows* the access streams of all nodes over the whole run.
//!
//! *Decides* once, before the run: each node puts the samples it reads most often into its fastest
//! tier, the next ones into the next tier, until its storage is full. Prefetchers fill the tiers in
//! the order of first access. Staging reads in access order from the location that the model says
//! is fastest, and caches samples that a prefetcher has not reached yet. Nodes choose
//! independently, so several cache the same sample while others are cached on no node.
//!
//! Of a run whose end is not known the first [`LOOK_AHEAD`] epochs are counted; of a run whose
//! orders come epoch by epoch, the two that are known when it begins.
//!
//! *Costs* a pass over the run's orders before the first step. Whether a peer already has a sample
//! is estimated from the node's own progress; a wrong estimate is counted (`peer_misses`), and the
//! sample is read from another location.

mod placement;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use rayon::prelude::*;

use super::{
    Actions, Availability, Event, Evict, Fetch, FixedDuties, Load, LoadFrom, NodeId, Policy,
    PolicyPlan, ThreadAssignment, TierId, Unsupported,
};
use crate::access::{drive, epochs_ahead};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::nopfs::{local_rate, peer_rate, source_rate};
use crate::model::{Rate, Readers, Seconds};
use crate::sampler::{EpochOrder, SampleId};
use placement::{NodeAccesses, NodePlacement, NopfsPlacement};

#[derive(Clone, Copy, Debug)]
pub struct NopfsOptions {
    /// Fill tiers in the order of first access rather than of frequency.
    pub in_order: bool,
    /// Drop a sample after this node's last read of it.
    pub cleanup_read: bool,
    pub availability: Availability,
    /// Of the threads that stage.
    pub duties: Option<FixedDuties>,
}

/// Epochs counted where their number is not known: enough to tell what a node reads often from what
/// it reads seldom, and a second's work for a million samples.
const LOOK_AHEAD: u32 = 16;

#[derive(Debug)]
pub struct Nopfs {
    job: Arc<Job>,
    options: NopfsOptions,
    /// Made before the run, or when its first epoch begins.
    placement: OnceLock<Arc<NopfsPlacement>>,
    /// Fastest per-thread rates, worst case of all nodes reading the source.
    source_rate: Rate,
    threads: ThreadAssignment,
}

pub fn plan(job: &Arc<Job>, options: NopfsOptions) -> Result<Arc<dyn PolicyPlan>, Unsupported> {
    let known = job.epochs.is_some() && job.stream.ahead();
    if options.cleanup_read && !known {
        return Err(Unsupported(
            "`cleanup_read` needs the last read of every sample: give the number of epochs and an \
             order that is known ahead, or leave `cleanup_read` out"
                .into(),
        ));
    }
    if job.system.nodes as usize * job.system.tiers.len() > usize::from(u16::MAX) {
        return Err(Unsupported("nopfs supports at most 65535 nodes times tiers".into()));
    }
    let threads = FixedDuties::assignment(options.duties, job)?;
    let placement = OnceLock::new();
    if job.stream.ahead() {
        let epochs = job.epochs.map_or_else(|| epochs_ahead(None, 0, LOOK_AHEAD), |end| 0..end);
        let see = |counts: &mut [NodeAccesses]| {
            drive(&job.stream, epochs.clone(), counts, |accesses, _, order| {
                accesses.see_epoch(job, order);
            });
        };
        placement.get_or_init(|| Arc::new(NopfsPlacement::new(job, options, see)));
    }
    let system = &job.system;
    let readers = match system.source.readers {
        Readers::Nodes => system.nodes,
        Readers::Threads => {
            let loading = options.duties.map(|duties| duties.loading * system.ranks_per_node);
            system.nodes.saturating_mul(loading.unwrap_or(system.staging_threads()))
        }
    };
    let source_rate = source_rate(system, readers);
    Ok(Arc::new(Nopfs { job: job.clone(), options, placement, source_rate, threads }))
}

impl PolicyPlan for Nopfs {
    fn threads(&self) -> ThreadAssignment {
        self.threads.clone()
    }

    fn holders(&self, sample: SampleId) -> Vec<NodeId> {
        let Some(placement) = self.placement.get() else { return vec![] };
        let holds = |plan: &NodePlacement| plan.planned.iter().any(|tier| tier.contains(sample));
        let nodes = (0..).zip(&placement.nodes).filter(|(_, plan)| holds(plan));
        nodes.map(|(node, _)| node).collect()
    }

    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        let tiers = self.job.system.tiers.len();
        // Before the first epoch nothing is known of orders that come epoch by epoch.
        let nothing = || Arc::new(NopfsPlacement::new(&self.job, self.options, |_| {}));
        let placement = self.placement.get_or_init(nothing).clone();
        let own = placement.nodes[node as usize].clone();
        Box::new(NopfsNode {
            node,
            held: (0..tiers)
                .map(|tier| {
                    if own.lists[tier].is_empty() {
                        Bits::default()
                    } else {
                        Bits::new(self.job.sizes.len())
                    }
                })
                .collect(),
            asked: vec![0; tiers],
            arrived: vec![0; tiers],
            reads: own.reads.clone(),
            arriving: vec![],
            found: vec![],
            own,
            placement,
            plan: self,
        })
    }

    fn begin_epoch(&self, _epoch: u32, order: &Arc<EpochOrder>, next: Option<&Arc<EpochOrder>>) {
        self.placement.get_or_init(|| {
            let see = |counts: &mut [NodeAccesses]| {
                counts.par_iter_mut().for_each(|accesses| {
                    for order in std::iter::once(order).chain(next) {
                        accesses.see_epoch(&self.job, order);
                    }
                });
            };
            Arc::new(NopfsPlacement::new(&self.job, self.options, see))
        });
    }
}

struct NopfsNode {
    node: NodeId,
    plan: Arc<Nopfs>,
    placement: Arc<NopfsPlacement>,
    own: Arc<NodePlacement>,
    /// By tier.
    held: Vec<Bits>,
    /// By tier: the prefetcher's position in its list.
    asked: Vec<usize>,
    /// By tier: how much of its list has arrived.
    arrived: Vec<usize>,
    /// Reads left by sample; empty unless `cleanup_read`.
    reads: Vec<u16>,
    /// Samples of the batch being staged that will be held once they have arrived.
    arriving: Vec<SampleId>,
    /// Where the batch being staged is held, and by which peer; reused for its allocation.
    found: Vec<(TierId, u16)>,
}

impl NopfsNode {
    fn held_in(&self, sample: SampleId) -> Option<TierId> {
        Some(self.held_tier(sample)).filter(|&tier| tier > 0)
    }

    /// Returns the tier that holds the sample, 0 for none. No branch depends on memory, so that a
    /// batch's look-ups overlap.
    #[inline]
    fn held_tier(&self, sample: SampleId) -> TierId {
        let mut found = 0;
        for (tier, held) in self.held.iter().enumerate() {
            found |= tier as TierId * TierId::from(held.contains(sample));
        }
        found
    }

    fn planned_in(&self, sample: SampleId) -> Option<TierId> {
        (1..self.held.len())
            .find(|&tier| self.own.planned[tier].contains(sample))
            .map(|t| t as TierId)
    }

    /// Returns the peer that probably holds the sample.
    fn peer(&self, sample: SampleId, holder: u16) -> Option<(NodeId, TierId)> {
        let holder = usize::from(holder);
        let tiers = self.held.len();
        let (node, tier) = (holder / tiers, holder % tiers);
        if holder == 0 || node == self.node as usize {
            return None;
        }
        let believed = match self.plan.options.availability {
            Availability::Known => true,
            // Nodes prefetch at about the same speed: what this one has passed, others have too.
            // A tier that this node does not use holds little on other nodes.
            Availability::Heuristic => {
                let offset = self.placement.offset[sample as usize] as usize;
                self.own.lists[tier].len() == self.arrived[tier] || self.arrived[tier] > offset
            }
        };
        believed.then_some((node as NodeId, tier as TierId))
    }

    /// Returns the fastest location of the sample (HDMLP, eq. 3.12).
    fn fastest(&self, sample: SampleId, local: Option<TierId>, holder: u16) -> LoadFrom {
        let system = &self.plan.job.system;
        let mut best = (self.plan.source_rate, LoadFrom::Source);
        if let Some((node, tier)) = self.peer(sample, holder) {
            let peer = peer_rate(system, usize::from(tier));
            if peer > best.0 {
                best = (peer, LoadFrom::Peer(node, tier));
            }
        }
        if let Some(tier) = local
            && local_rate(system, usize::from(tier)) >= best.0
        {
            best.1 = LoadFrom::Local(tier);
        }
        best.1
    }

    fn load(&mut self, sample: SampleId, held: TierId, holder: u16) -> Load {
        let local = Some(held).filter(|&tier| tier > 0);
        let from = self.fastest(sample, local, holder);
        let keep = if local.is_none() { self.planned_in(sample) } else { None };
        if let Some(tier) = keep {
            self.held[usize::from(tier)].insert(sample);
            self.arriving.push(sample);
        }
        Load { sample, from, last_use: false, keep }
    }

    /// Moves `arrived` past what the tier already holds.
    fn advance(&mut self, tier: usize) {
        let list = &self.own.lists[tier];
        let arrived = &mut self.arrived[tier];
        while let Some(&sample) = list.get(*arrived)
            && (self.held[tier].contains(sample) || self.reads.get(sample as usize) == Some(&0))
        {
            *arrived += 1;
        }
    }
}

impl Policy for NopfsNode {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { samples, .. } => {
                self.arriving.clear();
                let mut found = std::mem::take(&mut self.found);
                found.clear();
                let holders = &self.placement.holder;
                found.extend(samples.iter().map(|&k| (self.held_tier(k), holders[k as usize])));
                for (&sample, &(held, holder)) in samples.iter().zip(&found) {
                    let load = self.load(sample, held, holder);
                    actions.loads.push(load);
                }
                self.found = found;
            }
            Event::Consumed { samples, .. } => {
                if self.plan.options.cleanup_read {
                    for &sample in samples {
                        let left = &mut self.reads[sample as usize];
                        *left = left.saturating_sub(1);
                        if *left == 0
                            && let Some(tier) = self.held_in(sample)
                        {
                            self.held[usize::from(tier)].remove(sample);
                            actions.evictions.push(Evict { sample, tier });
                        }
                    }
                }
            }
            Event::Idle { tier, limit } => {
                let at = usize::from(tier);
                self.advance(at);
                while actions.fetches.len() < limit
                    && let Some(&sample) = self.own.lists[at].get(self.asked[at])
                {
                    self.asked[at] += 1;
                    let wanted = self.reads.is_empty() || self.reads[sample as usize] > 0;
                    if wanted && !self.held[at].contains(sample) {
                        actions.fetches.push(Fetch { sample });
                    }
                }
            }
            Event::Fetched { tier, sample } => {
                self.held[usize::from(tier)].insert(sample);
                self.advance(usize::from(tier));
            }
            Event::Measured(_) => {}
            Event::Missed { sample, .. } => {
                let held = self.held_in(sample);
                let arriving = self.arriving.contains(&sample);
                let from = match held {
                    Some(tier) if !arriving => LoadFrom::Local(tier),
                    _ => LoadFrom::Source,
                };
                let keep = held.filter(|_| arriving);
                let load = Load { sample, from, last_use: false, keep };
                actions.loads.push(load);
            }
        }
    }
}

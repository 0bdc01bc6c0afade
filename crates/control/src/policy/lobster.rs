//! `lobster`: a node-local cache shared by co-located ranks, a distributed cache of
//! all nodes, eviction by reuse distance, and threads that follow the load.
//!
//! Knows the orders of this epoch and the next, hence what every node uses again and
//! when. From that each process works out, in logical time, what every node's cache
//! holds before each step ([`contents`]); nobody is asked. Samples are staged in
//! access order from the local cache, from the node that holds them, or from the
//! source, and stay cached after use as the eviction policy says. In every step the
//! node's threads are dealt to its ranks by where their next batches come from
//! ([`threads`], the paper's Algorithm 1). Costs about S − N·D source bytes an epoch;
//! which rank pays for them is left to chance, which is what the threads make up for.
//!
//! Its two parts can be switched off, as in the paper's ablation. Without `eviction`
//! the cache takes in what is read and drops what was used longest ago; without
//! `threads` duties are fixed as DALI fixes them, on which the paper's runtime is built
//! and with which its ablation compares.

mod contents;
mod threads;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::holdings::Holdings;
use super::staging;
use super::{Actions, Event, Evict, Keep, Load, NodeId, Place, Plan, Policy, Threads};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::{EpochOrder, SampleId, Step};
use contents::{Contents, EpochPlan, Holder};
use threads::Assigner;

/// DALI's default, as the paper gives it (section 5.1).
const DALI_LOADING_THREADS: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub threads: bool,
    pub eviction: bool,
    pub tau: Seconds,
}

#[derive(Debug)]
pub struct Lobster {
    job: Arc<Job>,
    options: Options,
    contents: Mutex<Contents>,
    /// The epochs that are being consumed, staged and made ready.
    plans: Mutex<VecDeque<Arc<EpochPlan>>>,
}

impl Lobster {
    pub fn new(job: &Arc<Job>, options: Options) -> Self {
        let contents = Mutex::new(Contents::new(job, options.eviction));
        Self { job: job.clone(), options, contents, plans: Mutex::default() }
    }

    fn epoch(&self, epoch: u32) -> Option<Arc<EpochPlan>> {
        // Plans are pushed whole: a poisoned lock still guards complete ones.
        let plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.iter().find(|plan| plan.epoch == epoch).cloned()
    }
}

impl Plan for Lobster {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        let assigner =
            self.options.threads.then(|| Assigner::new(&self.job, self.options.tau)).flatten();
        Box::new(Node {
            id: node,
            held: Holdings::new(&self.job),
            ring: Bits::new(self.job.sizes.len()),
            plans: [None, None],
            cleaned: None,
            assigned: None,
            assigner,
            plan: self,
        })
    }

    fn begin_epoch(&self, epoch: u32, order: &Arc<EpochOrder>, next: Option<&Arc<EpochOrder>>) {
        let plan = {
            let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::new(contents.epoch(epoch, order, next.map(AsRef::as_ref)))
        };
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if plans.len() == 3 {
            plans.pop_front();
        }
        plans.push_back(plan);
    }

    fn threads(&self) -> Threads {
        let fixed = staging::Ahead::new(&self.job, Some(DALI_LOADING_THREADS));
        match fixed {
            Ok(dali) if !self.options.threads => dali.threads(),
            _ => Threads::PerRank,
        }
    }
}

struct Node {
    id: NodeId,
    held: Holdings,
    /// What stands in this node's ring.
    ring: Bits,
    /// The plans of even and odd epochs.
    plans: [Option<Arc<EpochPlan>>; 2],
    /// The last step whose evictions were carried out.
    cleaned: Option<Step>,
    /// The last step whose threads were assigned.
    assigned: Option<Step>,
    assigner: Option<Assigner>,
    plan: Arc<Lobster>,
}

impl Node {
    fn epoch(&mut self, epoch: u32) -> Option<Arc<EpochPlan>> {
        let slot = &mut self.plans[epoch as usize % 2];
        if slot.as_ref().is_none_or(|plan| plan.epoch != epoch) {
            *slot = self.plan.epoch(epoch);
        }
        slot.clone()
    }

    fn place(&self, holder: Holder, sample: SampleId) -> Place {
        match holder.get() {
            None => Place::Source,
            Some((node, tier)) if node == self.id => match self.held.tier_of(sample) {
                Some(tier) => Place::Local(tier),
                // Planned, and on its way through the ring.
                None if self.ring.contains(sample) => Place::Local(tier),
                // Planned, but another rank here has not even staged it yet.
                None => Place::Source,
            },
            Some((node, tier)) => Place::Peer(node, tier),
        }
    }

    fn stage(&mut self, rank: u32, step: Step, samples: &[SampleId], actions: &mut Actions) {
        let Some(plan) = self.epoch(step.epoch) else {
            actions.loads.extend(samples.iter().map(|&k| Load::from(k, Place::Source)));
            return;
        };
        if self.assigned < Some(step)
            && let Some(assigner) = &mut self.assigner
        {
            self.assigned = Some(step);
            actions.threads = assigner.assign(&self.plan.job, self.id, step, &plan);
        }
        let holders = plan.holders(rank, step.iteration);
        for (&sample, &holder) in samples.iter().zip(holders) {
            actions.loads.push(Load::from(sample, self.place(holder, sample)));
        }
        for &sample in samples {
            self.ring.insert(sample);
        }
    }

    fn consumed(&mut self, rank: u32, step: Step, samples: &[SampleId], actions: &mut Actions) {
        let Some(plan) = self.epoch(step.epoch) else { return };
        let sizes = &self.plan.job.sizes;
        // All of a step's evictions come first: its keeps need the room.
        if self.cleaned != Some(step) {
            self.cleaned = Some(step);
            for &(sample, tier) in plan.evictions(self.id, step.iteration) {
                self.held.remove(tier, sample, sizes.get(sample));
                actions.evictions.push(Evict { sample, tier });
            }
        }
        let keeps = plan.keeps(rank, step.iteration);
        for (&sample, &tier) in samples.iter().zip(keeps) {
            self.ring.remove(sample);
            if tier != 0 {
                self.held.put(tier, sample, sizes.get(sample));
                actions.keeps.push(Keep { sample, node: self.id, tier });
            }
        }
    }
}

impl Policy for Node {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { rank, step, samples } => self.stage(rank, step, samples, actions),
            Event::Consumed { rank, step, samples } => self.consumed(rank, step, samples, actions),
            Event::Missed { sample, .. } => actions.loads.push(Load::from(sample, Place::Source)),
            Event::Idle { .. } | Event::Fetched { .. } => {}
        }
    }
}

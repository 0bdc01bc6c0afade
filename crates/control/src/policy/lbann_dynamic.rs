//! `lbann-dynamic`: LBANN's distributed data store, filled during the first epoch.
//!
//! Knows, for every sample, who reads it first: that node keeps it in RAM, or the
//! next one with room if its own RAM is full. The whole dataset has to fit the RAM
//! of all nodes together. The first epoch reads everything from the source, later
//! ones from local RAM or the owner's; a sample that earlier epochs dropped is
//! acquired when it is first read. Costs one read of S, spread over the first
//! epoch, and then the network.
//!
//! Owners are decided in logical time (whose turn comes first in the order), so all
//! nodes agree; the table is made once per process, 4 bytes a sample.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::lbann_preload::must_fit;
use super::{Actions, Event, Keep, Load, NodeId, Place, Plan, Policy, TierId, Unsupported};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::{EpochOrder, SampleId, Scheme, Step};

const RAM: TierId = 1;
/// No epoch has read the sample yet, or no node had room for it.
const NOBODY: u32 = u32::MAX;
/// Later epochs share a number: a first read that late only costs a missed peer.
const LAST_EPOCH: u32 = 0xfffe;

#[derive(Debug)]
pub struct LbannDynamic {
    job: Arc<Job>,
    /// `epoch << 16 | node`: who acquires the sample, and when. Written by
    /// `begin_epoch` only, for samples that no event has spoken of.
    owners: Vec<AtomicU32>,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    /// Free RAM by node.
    free: Vec<u64>,
    epochs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    node: NodeId,
    epoch: u32,
}

impl LbannDynamic {
    pub fn new(job: &Arc<Job>) -> Result<Self, Unsupported> {
        must_fit(job)?;
        let ram = job.system.tiers.get(RAM as usize);
        let free = |node| ram.map_or(0, |tier| tier.capacity_of(node).0);
        let free = (0..job.system.nodes).map(free).collect();
        Ok(Self {
            job: job.clone(),
            owners: (0..job.sizes.len()).map(|_| AtomicU32::new(NOBODY)).collect(),
            progress: Mutex::new(Progress { free, epochs: 0 }),
        })
    }

    #[inline]
    fn owner(&self, sample: SampleId) -> Option<Owner> {
        let packed = self.owners[sample as usize].load(Relaxed);
        (packed != NOBODY).then_some(Owner { node: packed & 0xffff, epoch: packed >> 16 })
    }

    /// Gives every sample that `order` is the first to read an owner.
    fn acquire(&self, free: &mut [u64], epoch: u32, order: &EpochOrder) {
        let whole = self.job.stream.config().scheme == Scheme::Whole;
        let nodes = free.len();
        for (position, &sample) in order.samples().iter().enumerate() {
            if self.owners[sample as usize].load(Relaxed) != NOBODY {
                continue;
            }
            let Some(slot) = order.slot(position as u32) else { break };
            let reader = if whole {
                // All nodes read it at once: take turns.
                position % nodes
            } else {
                self.job.system.node_of(slot.rank) as usize
            };
            let bytes = self.job.sizes.get(sample);
            let node = (0..nodes).map(|at| (reader + at) % nodes).find(|&node| free[node] >= bytes);
            if let Some(node) = node {
                free[node] -= bytes;
                let packed = epoch.min(LAST_EPOCH) << 16 | node as u32;
                self.owners[sample as usize].store(packed, Relaxed);
            }
        }
    }
}

impl Plan for LbannDynamic {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(Store {
            node,
            staged: Bits::new(self.job.sizes.len()),
            consumed: None,
            plan: self,
        })
    }

    fn begin_epoch(&self, epoch: u32, order: &Arc<EpochOrder>, _next: Option<&Arc<EpochOrder>>) {
        // A poisoned lock means another test thread died; the table is still whole.
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        if epoch >= progress.epochs {
            progress.epochs = epoch + 1;
            self.acquire(&mut progress.free, epoch, order);
        }
    }
}

#[derive(Debug)]
struct Store {
    node: NodeId,
    /// Own samples that passed through this node's ring: held, or about to be.
    staged: Bits,
    /// The latest step that everybody has finished.
    consumed: Option<Step>,
    plan: Arc<LbannDynamic>,
}

impl Store {
    fn load(&self, step: Step, sample: SampleId) -> Load {
        let Some(owner) = self.plan.owner(sample) else {
            return Load::from(sample, Place::Source);
        };
        if owner.node == self.node {
            // Sent by a reader that had no room: it arrives before its epoch ends, and
            // an epoch has ended for all when a step of the next one is consumed.
            let sent = self.consumed.is_some_and(|at| at.epoch > owner.epoch);
            if sent || self.staged.contains(sample) {
                return Load::from(sample, Place::Local(RAM));
            }
        } else if owner.epoch < step.epoch {
            return Load::from(sample, Place::Peer(owner.node, RAM));
        }
        Load::from(sample, Place::Source)
    }

    /// What this epoch is the first to read stays with its owner. A second reader of
    /// the same epoch (padding) sends what is there already, which costs nothing.
    fn keep(&self, step: Step, samples: &[SampleId], actions: &mut Actions) {
        let everyone_reads = self.plan.job.stream.config().scheme == Scheme::Whole;
        for &sample in samples {
            if let Some(owner) = self.plan.owner(sample)
                && owner.epoch == step.epoch.min(LAST_EPOCH)
                && (owner.node == self.node || !everyone_reads)
            {
                actions.keeps.push(Keep { sample, node: owner.node, tier: RAM });
            }
        }
    }
}

impl Policy for Store {
    fn on(&mut self, _now: Seconds, event: Event<'_>, actions: &mut Actions) {
        match event {
            Event::Stage { step, samples, .. } => {
                for &sample in samples {
                    let load = self.load(step, sample);
                    actions.loads.push(load);
                }
                for &sample in samples {
                    if self.plan.owner(sample).is_some_and(|owner| owner.node == self.node) {
                        self.staged.insert(sample);
                    }
                }
            }
            Event::Consumed { step, samples, .. } => {
                self.keep(step, samples, actions);
                self.consumed = Some(step);
            }
            Event::Missed { sample, .. } => actions.loads.push(Load::from(sample, Place::Source)),
            Event::Idle { .. } | Event::Fetched { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{Driver, job};
    use crate::sampler::{AccessStream, Order, StreamConfig};

    fn with_orders(job: &mut Job, scheme: Scheme, lists: Vec<Vec<SampleId>>) {
        let order = Order::Given(Arc::new(lists));
        let config = job.stream.config().clone();
        let config = StreamConfig { order, scheme, drop_last: true, ..config };
        job.stream = AccessStream::new(config).unwrap();
    }

    fn keep(sample: SampleId, node: NodeId) -> Keep {
        Keep { sample, node, tier: RAM }
    }

    #[test]
    fn a_sample_that_was_sent_is_there_once_its_epoch_is_over_for_all() {
        let mut job = job(8, 2, 1, &[100]);
        job.sizes = crate::Sizes::from_bytes(vec![60, 10, 60, 10, 10, 10, 10, 10]);
        let plan = begun(job, 3);
        // Node 0 has no room for 2 and sends it to node 1, where no rank has staged it.
        for (consumed, from) in [((0, 1), Place::Source), ((1, 0), Place::Local(RAM))] {
            let mut owner = Driver::new(&plan, 1);
            owner.consumed(1, consumed, &[]);
            assert_eq!(owner.stage(1, (1, 1), &[2])[0].from, from);
        }
    }

    #[test]
    fn within_its_first_epoch_a_sample_is_read_from_the_source_by_all() {
        let plan = begun(job(8, 2, 1, &[40]), 2);
        let mut node = Driver::new(&plan, 0);
        assert_eq!(node.stage(0, (0, 1), &[1])[0].from, Place::Source);
        assert_eq!(node.stage(0, (1, 0), &[1])[0].from, Place::Peer(1, RAM));
    }

    #[test]
    fn where_all_read_everything_nodes_take_turns_to_keep() {
        let mut job = job(8, 2, 1, &[40]);
        with_orders(&mut job, Scheme::Whole, vec![vec![3, 1, 0, 2, 4, 5, 6, 7]]);
        let plan = begun(job, 1);
        let samples = [3, 1, 0, 2];
        for (node, mine) in [(0, [3, 0]), (1, [1, 2])] {
            let mut driver = Driver::new(&plan, node);
            let keeps = &driver.consumed(node, (0, 0), &samples).keeps;
            assert_eq!(*keeps, mine.map(|sample| keep(sample, node)));
        }
    }

    #[test]
    fn what_a_later_epoch_is_the_first_to_read_is_kept_then() {
        let mut job = job(6, 2, 1, &[40]);
        // One batch an epoch: 4 and 5 are dropped at first.
        with_orders(
            &mut job,
            Scheme::Uniform,
            vec![vec![0, 1, 2, 3, 4, 5], vec![4, 5, 0, 1, 2, 3]],
        );
        let plan = begun(job, 2);
        let mut node = Driver::new(&plan, 0);
        assert_eq!(node.consumed(0, (0, 0), &[0, 2]).keeps, [keep(0, 0), keep(2, 0)]);
        assert_eq!(node.stage(0, (1, 0), &[4])[0].from, Place::Source);
        assert_eq!(node.consumed(0, (1, 0), &[4, 0]).keeps, [keep(4, 0)]);
        assert_eq!(node.stage(0, (1, 0), &[5])[0].from, Place::Source);
        assert_eq!(node.stage(0, (2, 0), &[5])[0].from, Place::Peer(1, RAM));
    }

    fn begun(job: Job, epochs: u32) -> Arc<dyn Plan> {
        let job = Arc::new(job);
        let plan = Arc::new(LbannDynamic::new(&job).unwrap());
        for epoch in 0..epochs {
            plan.begin_epoch(epoch, &Arc::new(job.stream.epoch(epoch)), None);
        }
        plan
    }

    #[test]
    fn the_first_reader_keeps_a_sample_and_serves_it_later() {
        // Sequential order: node 0 reads 0, 2, node 1 reads 1, 3 in the first step.
        let plan = begun(job(8, 2, 1, &[40]), 2);
        let mut node = Driver::new(&plan, 0);
        assert_eq!(node.stage(0, (0, 0), &[0, 2])[0].from, Place::Source);
        let keeps = node.consumed(0, (0, 0), &[0, 2]).keeps.clone();
        assert_eq!(keeps, [0, 2].map(|sample| Keep { sample, node: 0, tier: RAM }));
        let later = node.stage(0, (1, 0), &[0, 1]);
        assert_eq!([later[0].from, later[1].from], [Place::Local(RAM), Place::Peer(1, RAM)]);
    }

    #[test]
    fn a_full_reader_sends_to_the_next_node_with_room() {
        let mut job = job(4, 2, 1, &[100]);
        job.sizes = crate::Sizes::from_bytes(vec![60, 10, 60, 10]);
        let plan = begun(job, 2);
        let mut reader = Driver::new(&plan, 0);
        let keeps = reader.consumed(0, (0, 0), &[0, 2]).keeps.clone();
        assert_eq!(keeps[1], Keep { sample: 2, node: 1, tier: RAM });
        // The owner cannot know that it has arrived before the epoch is over.
        let mut owner = Driver::new(&plan, 1);
        assert_eq!(owner.stage(1, (1, 0), &[2])[0].from, Place::Source);
        owner.consumed(1, (1, 0), &[2]);
        assert_eq!(owner.stage(1, (2, 0), &[2])[0].from, Place::Local(RAM));
    }
}

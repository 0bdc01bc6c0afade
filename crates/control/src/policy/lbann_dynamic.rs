//! `lbann-dynamic`: LBANN's distributed data store, filled during the first epoch.
//!
//! Knows, for every sample, which node reads it first: that node keeps it in RAM, or the next one
//! with free space. The whole dataset has to fit the RAM of all nodes together. The first epoch
//! reads everything from the source, later ones from local RAM or the owner's; a sample that
//! earlier epochs dropped is acquired when it is first read. Costs one read of S, spread over the
//! first epoch, and then the network.
//!
//! Owners are decided in logical time (the first read in the order), so all nodes agree. The table
//! is made once per process and takes 4 bytes a sample.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::lbann_preload::must_fit;
use super::{
    Actions, Event, Keep, Load, LoadFrom, NodeId, Policy, PolicyPlan, TierId, Unsupported,
};
use crate::bits::Bits;
use crate::job::Job;
use crate::model::Seconds;
use crate::sampler::{EpochOrder, SampleId, Scheme, Step};

const RAM: TierId = 1;
/// No epoch has read the sample yet, or no node had space for it.
const NO_OWNER: u32 = u32::MAX;
/// Later epochs share a number: a first read that late only costs a missed peer.
const LAST_EPOCH: u32 = 0xfffe;

#[derive(Debug)]
pub struct LbannDynamic {
    job: Arc<Job>,
    /// `epoch << 16 | node`: when the sample is acquired, and by which node. Written by
    /// `begin_epoch` only, for samples of which there was no event yet.
    owners: Vec<AtomicU32>,
    progress: Mutex<FillProgress>,
}

#[derive(Debug)]
struct FillProgress {
    /// Free RAM by node.
    free: Vec<u64>,
    epochs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SampleOwner {
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
            owners: (0..job.sizes.len()).map(|_| AtomicU32::new(NO_OWNER)).collect(),
            progress: Mutex::new(FillProgress { free, epochs: 0 }),
        })
    }

    #[inline]
    fn owner(&self, sample: SampleId) -> Option<SampleOwner> {
        let packed = self.owners[sample as usize].load(Relaxed);
        (packed != NO_OWNER).then_some(SampleOwner { node: packed & 0xffff, epoch: packed >> 16 })
    }

    /// Gives every sample that `order` is the first to read an owner.
    fn acquire(&self, free: &mut [u64], epoch: u32, order: &EpochOrder) {
        let whole = self.job.stream.config().scheme == Scheme::Whole;
        let nodes = free.len();
        for (position, &sample) in order.samples().iter().enumerate() {
            if self.owners[sample as usize].load(Relaxed) != NO_OWNER {
                continue;
            }
            let Some(slot) = order.slot(position as u32) else { break };
            let reader = if whole {
                // All nodes read it in the same step: each keeps its share.
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

impl PolicyPlan for LbannDynamic {
    fn node(self: Arc<Self>, node: NodeId) -> Box<dyn Policy> {
        Box::new(LbannNode {
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
struct LbannNode {
    node: NodeId,
    /// Own samples that passed through this node's ring: held, or held soon.
    staged: Bits,
    /// The latest step that all ranks have finished.
    consumed: Option<Step>,
    plan: Arc<LbannDynamic>,
}

impl LbannNode {
    fn load(&self, step: Step, sample: SampleId) -> Load {
        let Some(owner) = self.plan.owner(sample) else {
            return Load::from_source(sample);
        };
        if owner.node == self.node {
            // Sent by a reader without space: it arrives before its epoch ends, and an epoch has
            // ended for all when a step of the next one is consumed.
            let sent = self.consumed.is_some_and(|at| at.epoch > owner.epoch);
            if sent || self.staged.contains(sample) {
                return Load::from(sample, LoadFrom::Local(RAM));
            }
        } else if owner.epoch < step.epoch {
            return Load::from(sample, LoadFrom::Peer(owner.node, RAM));
        }
        Load::from_source(sample)
    }

    /// The owner keeps what this epoch is the first to read. A second reader of the same epoch
    /// (padding) sends what the owner holds already, which costs nothing.
    fn keep(&self, step: Step, samples: &[SampleId], actions: &mut Actions) {
        let all_nodes_read = self.plan.job.stream.config().scheme == Scheme::Whole;
        for &sample in samples {
            if let Some(owner) = self.plan.owner(sample)
                && owner.epoch == step.epoch.min(LAST_EPOCH)
                && (owner.node == self.node || !all_nodes_read)
            {
                actions.keeps.push(Keep { sample, node: owner.node, tier: RAM });
            }
        }
    }
}

impl Policy for LbannNode {
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
            Event::Missed { sample, .. } => actions.loads.push(Load::from_source(sample)),
            Event::Idle { .. } | Event::Fetched { .. } | Event::Measured(_) => {}
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
    fn a_sent_sample_is_local_once_its_epoch_is_over_for_all() {
        let mut job = job(8, 2, 1, &[100]);
        job.sizes = crate::Sizes::from_bytes(vec![60, 10, 60, 10, 10, 10, 10, 10]);
        let plan = begun(job, 3);
        // Node 0 has no space for 2 and sends it to node 1, where no rank has staged it.
        for (consumed, from) in [((0, 1), LoadFrom::Source), ((1, 0), LoadFrom::Local(RAM))] {
            let mut owner = Driver::new(&plan, 1);
            owner.consumed(1, consumed, &[]);
            assert_eq!(owner.stage(1, (1, 1), &[2])[0].from, from);
        }
    }

    #[test]
    fn within_its_first_epoch_a_sample_is_read_from_the_source_by_all() {
        let plan = begun(job(8, 2, 1, &[40]), 2);
        let mut node = Driver::new(&plan, 0);
        assert_eq!(node.stage(0, (0, 1), &[1])[0].from, LoadFrom::Source);
        assert_eq!(node.stage(0, (1, 0), &[1])[0].from, LoadFrom::Peer(1, RAM));
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
        assert_eq!(node.stage(0, (1, 0), &[4])[0].from, LoadFrom::Source);
        assert_eq!(node.consumed(0, (1, 0), &[4, 0]).keeps, [keep(4, 0)]);
        assert_eq!(node.stage(0, (1, 0), &[5])[0].from, LoadFrom::Source);
        assert_eq!(node.stage(0, (2, 0), &[5])[0].from, LoadFrom::Peer(1, RAM));
    }

    fn begun(job: Job, epochs: u32) -> Arc<dyn PolicyPlan> {
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
        assert_eq!(node.stage(0, (0, 0), &[0, 2])[0].from, LoadFrom::Source);
        let keeps = node.consumed(0, (0, 0), &[0, 2]).keeps.clone();
        assert_eq!(keeps, [0, 2].map(|sample| Keep { sample, node: 0, tier: RAM }));
        let later = node.stage(0, (1, 0), &[0, 1]);
        assert_eq!([later[0].from, later[1].from], [LoadFrom::Local(RAM), LoadFrom::Peer(1, RAM)]);
    }

    #[test]
    fn a_full_reader_sends_to_the_next_node_with_space() {
        let mut job = job(4, 2, 1, &[100]);
        job.sizes = crate::Sizes::from_bytes(vec![60, 10, 60, 10]);
        let plan = begun(job, 2);
        let mut reader = Driver::new(&plan, 0);
        let keeps = reader.consumed(0, (0, 0), &[0, 2]).keeps.clone();
        assert_eq!(keeps[1], Keep { sample: 2, node: 1, tier: RAM });
        // The owner cannot know that it has arrived before the epoch is over.
        let mut owner = Driver::new(&plan, 1);
        assert_eq!(owner.stage(1, (1, 0), &[2])[0].from, LoadFrom::Source);
        owner.consumed(1, (1, 0), &[2]);
        assert_eq!(owner.stage(1, (2, 0), &[2])[0].from, LoadFrom::Local(RAM));
    }
}

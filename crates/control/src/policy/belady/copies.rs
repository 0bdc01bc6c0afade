//! SpareCopies left behind: duplicates with what coverage leaves over.
//!
//! When a sample in memory moves to its next user, the old copy may stay while there is
//! space. No plan counts on it. If that node is the next user once more, its copy becomes
//! the one that counts, and nothing has to be sent. When coverage needs the space, the
//! oldest copies go.

use std::collections::VecDeque;

use crate::bits::Bits;
use crate::job::Job;
use crate::policy::NodeId;
use crate::sampler::SampleId;

/// All copies are in tier 1: a slower tier is no faster than a peer's memory.
#[derive(Debug, Default)]
pub struct SpareCopies {
    nodes: Vec<NodeCopies>,
}

#[derive(Clone, Debug, Default)]
struct NodeCopies {
    held: Bits,
    /// May still name samples that are no longer copies.
    oldest: VecDeque<SampleId>,
    count: usize,
    bytes: u64,
}

impl NodeCopies {
    /// Keeps the latest entry of each copy; amortised over as many that were left.
    fn forget_promoted(&mut self) {
        let mut live = self.held.clone();
        let mut kept: VecDeque<SampleId> =
            self.oldest.drain(..).rev().filter(|&sample| live.remove(sample)).collect();
        kept.make_contiguous().reverse();
        self.oldest = kept;
    }
}

impl SpareCopies {
    fn node(&mut self, node: NodeId, samples: u32) -> &mut NodeCopies {
        let at = node as usize;
        if self.nodes.len() <= at {
            self.nodes.resize(at + 1, NodeCopies::default());
        }
        if self.nodes[at].held.is_unallocated() {
            self.nodes[at].held = Bits::new(samples);
        }
        &mut self.nodes[at]
    }

    pub fn bytes(&self, node: NodeId) -> u64 {
        self.nodes.get(node as usize).map_or(0, |copies| copies.bytes)
    }

    /// What moves away from `node` leaves a copy there.
    pub fn leave(&mut self, job: &Job, node: NodeId, sample: SampleId) {
        let copies = self.node(node, job.sizes.len());
        if copies.held.insert(sample) {
            copies.oldest.push_back(sample);
            copies.count += 1;
            copies.bytes += job.sizes.get(sample);
            if copies.oldest.len() > 2 * copies.count + 64 {
                copies.forget_promoted();
            }
        }
    }

    pub fn any(&self) -> bool {
        !self.nodes.is_empty()
    }

    pub fn has(&self, node: NodeId, sample: SampleId) -> bool {
        self.nodes.get(node as usize).is_some_and(|copies| copies.held.contains(sample))
    }

    /// The copy on `node` becomes the one that counts.
    pub fn promote(&mut self, job: &Job, node: NodeId, sample: SampleId) {
        if let Some(copies) = self.nodes.get_mut(node as usize)
            && copies.held.remove(sample)
        {
            copies.count -= 1;
            copies.bytes -= job.sizes.get(sample);
        }
    }

    /// The oldest copy on `node` goes.
    pub fn drop_oldest(&mut self, job: &Job, node: NodeId) -> Option<SampleId> {
        let copies = self.nodes.get_mut(node as usize)?;
        while let Some(sample) = copies.oldest.pop_front() {
            if copies.held.remove(sample) {
                copies.count -= 1;
                copies.bytes -= job.sizes.get(sample);
                return Some(sample);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::job;

    #[test]
    fn the_queue_is_as_long_as_what_is_held_and_the_oldest_copies_go_first() {
        let job = job(20, 2, 1, &[1000]);
        let mut copies = SpareCopies::default();
        assert!(!copies.any());
        for round in 0..60 {
            // Seven of eight are promoted again each time.
            for sample in 0..8 {
                copies.leave(&job, 1, sample);
                let node = &copies.nodes[1];
                assert!(
                    node.oldest.len() <= 2 * node.count + 65,
                    "{} in {round}",
                    node.oldest.len()
                );
                assert_eq!((node.count, node.bytes), (node.held.count(), 10 * node.count as u64));
            }
            for sample in 0..7 {
                copies.promote(&job, 1, sample);
            }
        }
        assert!(copies.nodes[1].oldest.len() < 75, "{}", copies.nodes[1].oldest.len());
        for sample in [13, 15, 14] {
            copies.leave(&job, 1, sample);
        }
        copies.promote(&job, 1, 15);
        copies.leave(&job, 1, 15);
        assert_eq!((copies.any(), copies.bytes(0), copies.bytes(1)), (true, 0, 40));
        let gone = [(); 5].map(|()| copies.drop_oldest(&job, 1));
        // An entry of the first time still counts for 15.
        assert_eq!(gone, [Some(7), Some(13), Some(15), Some(14), None]);
        assert_eq!((copies.bytes(1), copies.nodes[1].count), (0, 0));
    }
}

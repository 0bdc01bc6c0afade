//! What the tiers of all nodes hold. Policies' actions are checked against it.

use std::collections::HashMap;

use belady_control::Job;
use belady_control::bits::Bits;
use belady_control::policy::{NodeId, TierId};
use belady_control::sampler::SampleId;

#[derive(Debug, Default)]
struct StoredTier {
    held: Bits,
    used: u64,
    capacity: u64,
}

#[derive(Debug)]
pub struct TierStore {
    samples: u32,
    tiers: usize,
    /// `[node * tiers + tier]`; tier 0 stays empty.
    stored: Vec<StoredTier>,
    /// What the rings hold.
    pub rings: RingIndex,
    /// Actions that could not be carried out. Empty for a correct policy.
    pub violations: Vec<String>,
}

impl TierStore {
    pub fn new(job: &Job) -> Self {
        let tiers = job.system.tiers.len();
        let stored = (0..job.system.nodes as usize * tiers)
            .map(|index| StoredTier {
                capacity: job.system.tiers[index % tiers].capacity_of((index / tiers) as u32).0,
                ..StoredTier::default()
            })
            .collect();
        Self {
            samples: job.sizes.len(),
            tiers,
            stored,
            rings: RingIndex::new(job.sizes.len()),
            violations: vec![],
        }
    }

    fn stored_tier(&mut self, node: NodeId, tier: TierId) -> &mut StoredTier {
        &mut self.stored[node as usize * self.tiers + tier as usize]
    }

    pub fn holds(&self, node: NodeId, tier: TierId, sample: SampleId) -> bool {
        self.stored[node as usize * self.tiers + tier as usize].held.contains(sample)
    }

    /// Puts a sample into a tier; returns whether it was new there.
    pub fn put(&mut self, node: NodeId, tier: TierId, sample: SampleId, bytes: u64) -> bool {
        let samples = self.samples;
        let stored_tier = self.stored_tier(node, tier);
        if stored_tier.held.contains(sample) {
            return false;
        }
        if stored_tier.held.is_unallocated() {
            stored_tier.held = Bits::new(samples);
        }
        if stored_tier.used + bytes > stored_tier.capacity || tier == 0 {
            let (used, capacity) = (stored_tier.used, stored_tier.capacity);
            self.violation(format!(
                "node {node} put sample {sample} of {bytes} B into tier {tier} with {used} of \
                 {capacity} B used"
            ));
            return false;
        }
        stored_tier.used += bytes;
        stored_tier.held.insert(sample)
    }

    pub fn evict(&mut self, node: NodeId, tier: TierId, sample: SampleId, bytes: u64) {
        let stored_tier = self.stored_tier(node, tier);
        if stored_tier.held.contains(sample) {
            stored_tier.used -= bytes;
            stored_tier.held.remove(sample);
        } else {
            self.violation(format!(
                "node {node} evicted sample {sample} from tier {tier}, which does not hold it"
            ));
        }
    }

    pub fn violation(&mut self, what: String) {
        // A broken policy would fill the memory with messages.
        if self.violations.len() < 100 {
            self.violations.push(what);
        }
    }
}

/// Which node has staged a sample and not consumed it.
///
/// At most two epochs are in the rings at a time, so an epoch's parity tells them apart.
#[derive(Debug)]
pub struct RingIndex {
    /// By parity of the epoch: one past the node, 0 for none.
    staged: [Vec<u16>; 2],
    /// Further nodes, where padding or the whole-batch scheme gives a sample to several.
    more: HashMap<(SampleId, usize), Vec<u16>>,
}

impl RingIndex {
    fn new(samples: u32) -> Self {
        let empty = vec![0; samples as usize];
        Self { staged: [empty.clone(), empty], more: HashMap::new() }
    }

    /// Returns a node whose ring holds the sample.
    pub fn find(&self, sample: SampleId) -> Option<NodeId> {
        let staged = self.staged.iter().map(|staged| staged[sample as usize]);
        staged.max()?.checked_sub(1).map(NodeId::from)
    }

    pub fn enter(&mut self, node: NodeId, epoch: u32, sample: SampleId) {
        let parity = (epoch % 2) as usize;
        match &mut self.staged[parity][sample as usize] {
            slot @ 0 => *slot = node as u16 + 1,
            _ => self.more.entry((sample, parity)).or_default().push(node as u16 + 1),
        }
    }

    pub fn leave(&mut self, node: NodeId, epoch: u32, sample: SampleId) {
        let parity = (epoch % 2) as usize;
        let slot = &mut self.staged[parity][sample as usize];
        let entry = node as u16 + 1;
        let others = if self.more.is_empty() { None } else { self.more.get_mut(&(sample, parity)) };
        let Some(others) = others else {
            if *slot == entry {
                *slot = 0;
            }
            return;
        };
        if *slot == entry {
            *slot = others.pop().unwrap_or(0);
        } else if let Some(at) = others.iter().position(|&other| other == entry) {
            others.swap_remove(at);
        }
        if others.is_empty() {
            self.more.remove(&(sample, parity));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_an_epoch_behind_does_not_hide_an_earlier_staging_node() {
        let mut rings = RingIndex::new(1);
        rings.enter(2, 2, 0);
        rings.enter(0, 1, 0);
        rings.leave(0, 1, 0);
        assert_eq!(rings.find(0), Some(2));
        rings.enter(2, 2, 0);
        rings.leave(2, 2, 0);
        assert_eq!(rings.find(0), Some(2));
        rings.leave(2, 2, 0);
        assert_eq!((rings.find(0), rings.more.len()), (None, 0));
    }
}

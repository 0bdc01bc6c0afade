//! What the tiers of all nodes really hold: the truth that policies' actions are
//! checked against.

use std::collections::HashMap;

use belady_control::Job;
use belady_control::bits::Bits;
use belady_control::policy::{NodeId, TierId};
use belady_control::sampler::SampleId;

#[derive(Debug, Default)]
struct Shelf {
    held: Bits,
    used: u64,
    capacity: u64,
}

#[derive(Debug)]
pub struct Store {
    samples: u32,
    tiers: usize,
    /// `[node * tiers + tier]`; tier 0 stays empty.
    shelves: Vec<Shelf>,
    /// What stands in the rings.
    pub rings: RingIndex,
    /// What a policy asked for and could not have. Empty for a correct policy.
    pub violations: Vec<String>,
}

impl Store {
    pub fn new(job: &Job) -> Self {
        let tiers = job.system.tiers.len();
        let shelves = (0..job.system.nodes as usize * tiers)
            .map(|index| Shelf {
                capacity: job.system.tiers[index % tiers].capacity_of((index / tiers) as u32).0,
                ..Shelf::default()
            })
            .collect();
        Self {
            samples: job.sizes.len(),
            tiers,
            shelves,
            rings: RingIndex::new(job.sizes.len()),
            violations: vec![],
        }
    }

    fn shelf(&mut self, node: NodeId, tier: TierId) -> &mut Shelf {
        &mut self.shelves[node as usize * self.tiers + tier as usize]
    }

    pub fn holds(&self, node: NodeId, tier: TierId, sample: SampleId) -> bool {
        self.shelves[node as usize * self.tiers + tier as usize].held.contains(sample)
    }

    /// Whether it was new there.
    pub fn put(&mut self, node: NodeId, tier: TierId, sample: SampleId, bytes: u64) -> bool {
        let samples = self.samples;
        let shelf = self.shelf(node, tier);
        if shelf.held.contains(sample) {
            return false;
        }
        if shelf.held.is_unallocated() {
            shelf.held = Bits::new(samples);
        }
        if shelf.used + bytes > shelf.capacity || tier == 0 {
            let (used, capacity) = (shelf.used, shelf.capacity);
            self.violation(format!(
                "node {node} put sample {sample} of {bytes} B into tier {tier} with {used} of {capacity} B used"
            ));
            return false;
        }
        shelf.used += bytes;
        shelf.held.insert(sample)
    }

    pub fn evict(&mut self, node: NodeId, tier: TierId, sample: SampleId, bytes: u64) {
        let shelf = self.shelf(node, tier);
        if shelf.held.contains(sample) {
            shelf.used -= bytes;
            shelf.held.remove(sample);
        } else {
            self.violation(format!(
                "node {node} evicted sample {sample} from tier {tier}, which does not hold it"
            ));
        }
    }

    pub fn violation(&mut self, what: String) {
        // A broken policy would fill the memory with complaints.
        if self.violations.len() < 100 {
            self.violations.push(what);
        }
    }
}

/// Who has staged a sample and not consumed it.
///
/// At most two epochs are in the rings at a time, so an epoch's parity tells them apart.
#[derive(Debug)]
pub struct RingIndex {
    /// By parity of the epoch: one past the node, 0 for nobody.
    staged: [Vec<u16>; 2],
    /// Further nodes, where padding or the whole-batch scheme gives a sample to several.
    more: HashMap<(SampleId, usize), Vec<u16>>,
}

impl RingIndex {
    fn new(samples: u32) -> Self {
        let empty = vec![0; samples as usize];
        Self { staged: [empty.clone(), empty], more: HashMap::new() }
    }

    /// A node in whose ring the sample is.
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
    fn a_rank_that_lags_an_epoch_behind_does_not_hide_who_staged_earlier() {
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

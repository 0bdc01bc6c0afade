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
    /// Who staged a sample and has not consumed it: twice one past the node, plus the
    /// epoch's parity; 0 for nobody.
    ring: Vec<u16>,
    /// Further rings in which a sample stands: of the next epoch near an epoch's end,
    /// of other ranks where padding or the whole-batch scheme gives it to several.
    more: HashMap<SampleId, Vec<u16>>,
    /// What a policy asked for and could not have. Empty for a correct policy.
    pub violations: Vec<String>,
}

impl Store {
    pub fn new(job: &Job) -> Self {
        let tiers = job.system.tiers.len();
        let shelves = (0..job.system.nodes as usize * tiers)
            .map(|index| Shelf {
                capacity: job.system.tiers[index % tiers].capacity.0,
                ..Shelf::default()
            })
            .collect();
        Self {
            samples: job.sizes.len(),
            tiers,
            shelves,
            ring: vec![0; job.sizes.len() as usize],
            more: HashMap::new(),
            violations: vec![],
        }
    }

    fn shelf(&mut self, node: NodeId, tier: TierId) -> &mut Shelf {
        &mut self.shelves[node as usize * self.tiers + tier as usize]
    }

    pub fn holds(&self, node: NodeId, tier: TierId, sample: SampleId) -> bool {
        self.shelves[node as usize * self.tiers + tier as usize].held.contains(sample)
    }

    /// A node in whose ring the sample is.
    pub fn in_ring_of(&self, sample: SampleId) -> Option<NodeId> {
        (self.ring[sample as usize] / 2).checked_sub(1).map(NodeId::from)
    }

    pub fn enter_ring(&mut self, node: NodeId, epoch: u32, sample: SampleId) {
        match &mut self.ring[sample as usize] {
            slot @ 0 => *slot = ring_entry(node, epoch),
            _ => self.more.entry(sample).or_default().push(ring_entry(node, epoch)),
        }
    }

    pub fn leave_ring(&mut self, node: NodeId, epoch: u32, sample: SampleId) {
        let entry = ring_entry(node, epoch);
        let slot = &mut self.ring[sample as usize];
        let others = if self.more.is_empty() { None } else { self.more.get_mut(&sample) };
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
            self.more.remove(&sample);
        }
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

    #[cfg(test)]
    pub fn used(&self, node: NodeId, tier: TierId) -> u64 {
        self.shelves[node as usize * self.tiers + tier as usize].used
    }
}

fn ring_entry(node: NodeId, epoch: u32) -> u16 {
    ((node + 1) * 2 + epoch % 2) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_lags_an_epoch_behind_does_not_hide_who_staged_earlier() {
        let mut store = Store {
            samples: 1,
            tiers: 1,
            shelves: vec![],
            ring: vec![0],
            more: HashMap::new(),
            violations: vec![],
        };
        store.enter_ring(2, 2, 0);
        store.enter_ring(0, 1, 0);
        store.leave_ring(0, 1, 0);
        assert_eq!(store.in_ring_of(0), Some(2));
        store.enter_ring(2, 2, 0);
        store.leave_ring(2, 2, 0);
        assert_eq!(store.in_ring_of(0), Some(2));
        store.leave_ring(2, 2, 0);
        assert_eq!((store.in_ring_of(0), store.more.len()), (None, 0));
    }
}

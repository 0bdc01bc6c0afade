//! What the tiers of all nodes really hold: the truth that policies' actions are
//! checked against.

use belady_control::Job;
use belady_control::policy::{NodeId, TierId};
use belady_control::sampler::SampleId;

/// A set of samples, one bit each, allocated with its first member.
#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn contains(&self, sample: SampleId) -> bool {
        self.0.get(sample as usize / 64).is_some_and(|word| word >> (sample % 64) & 1 == 1)
    }

    fn set(&mut self, sample: SampleId, samples: u32, value: bool) {
        if self.0.is_empty() {
            self.0 = vec![0; (samples as usize).div_ceil(64)];
        }
        let word = &mut self.0[sample as usize / 64];
        let bit = 1 << (sample % 64);
        if value {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }
}

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
    /// One past the node in whose ring a sample is, 0 when in none.
    ring: Vec<u16>,
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
            violations: vec![],
        }
    }

    fn shelf(&mut self, node: NodeId, tier: TierId) -> &mut Shelf {
        &mut self.shelves[node as usize * self.tiers + tier as usize]
    }

    pub fn holds(&self, node: NodeId, tier: TierId, sample: SampleId) -> bool {
        self.shelves[node as usize * self.tiers + tier as usize].held.contains(sample)
    }

    /// Held in the tier, or on its way there through the node's ring.
    pub fn has(&self, node: NodeId, tier: TierId, sample: SampleId) -> bool {
        self.holds(node, tier, sample) || self.ring[sample as usize] == node as u16 + 1
    }

    pub fn enter_ring(&mut self, node: NodeId, sample: SampleId) {
        self.ring[sample as usize] = node as u16 + 1;
    }

    pub fn leave_ring(&mut self, node: NodeId, sample: SampleId) {
        let slot = &mut self.ring[sample as usize];
        if *slot == node as u16 + 1 {
            *slot = 0;
        }
    }

    /// Whether it was new there.
    pub fn put(&mut self, node: NodeId, tier: TierId, sample: SampleId, bytes: u64) -> bool {
        let samples = self.samples;
        let shelf = self.shelf(node, tier);
        if shelf.held.contains(sample) {
            return false;
        }
        if shelf.used + bytes > shelf.capacity || tier == 0 {
            let (used, capacity) = (shelf.used, shelf.capacity);
            self.violation(format!(
                "node {node} put sample {sample} of {bytes} B into tier {tier} with {used} of {capacity} B used"
            ));
            return false;
        }
        shelf.used += bytes;
        shelf.held.set(sample, samples, true);
        true
    }

    pub fn evict(&mut self, node: NodeId, tier: TierId, sample: SampleId, bytes: u64) {
        let samples = self.samples;
        let shelf = self.shelf(node, tier);
        if shelf.held.contains(sample) {
            shelf.used -= bytes;
            shelf.held.set(sample, samples, false);
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

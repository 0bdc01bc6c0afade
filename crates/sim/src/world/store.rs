//! What the tiers of all nodes really hold: the truth that policies' actions are
//! checked against.

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
    /// Who staged a sample last and has not consumed it: twice one past the node, plus
    /// the epoch's parity; 0 for nobody. Near an epoch's end a sample may stand in the
    /// rings of two epochs.
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

    /// The node in whose ring the sample is.
    pub fn in_ring_of(&self, sample: SampleId) -> Option<NodeId> {
        (self.ring[sample as usize] / 2).checked_sub(1).map(NodeId::from)
    }

    pub fn enter_ring(&mut self, node: NodeId, epoch: u32, sample: SampleId) {
        self.ring[sample as usize] = ring_entry(node, epoch);
    }

    pub fn leave_ring(&mut self, node: NodeId, epoch: u32, sample: SampleId) {
        let slot = &mut self.ring[sample as usize];
        if *slot == ring_entry(node, epoch) {
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

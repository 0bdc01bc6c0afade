//! The state of a transition from one epoch to the next: what is held, what is free, and what is
//! decided so far.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::copies::SpareCopies;
use super::fetches::ReadAhead;
use super::later::{LaterUses, Uses};
use super::relays::Relays;
use super::space::usable;
use super::spares::Spares;
use super::tracked::Tracked;
use super::{NOWHERE, Spot};
use crate::bits::Bits;
use crate::job::Job;
use crate::packed::Packed;
use crate::policy::{NodeId, RankId, TierId};
use crate::sampler::{EpochOrder, Order, SampleId, Scheme};

/// What one epoch's end leaves for the next.
#[derive(Debug, Default)]
pub struct Decision {
    /// Where each sample waits for the next epoch; empty without one.
    pub spots: Packed,
    /// This epoch's.
    pub tracked: Tracked,
    /// Samples that move on but leave a copy where they were.
    pub left_behind: Bits,
    /// Samples that need not be sent to their new spot: it has a copy.
    pub there_already: Bits,
    /// What prefetchers fetch in this epoch.
    pub ahead: Arc<ReadAhead>,
    /// Copies and spare samples that go, by node and iteration of this epoch.
    pub evictions: HashMap<(NodeId, u32), Vec<(SampleId, TierId)>>,
    /// By rank: by how many bytes its reads from the source trail the rank with the most when the
    /// next epoch begins, as a number of 0 or less, limited by its ring.
    pub behind: Vec<f64>,
}

/// Works out where the samples of the next epoch wait for it.
pub struct Transition<'a> {
    pub job: &'a Job,
    pub order: &'a EpochOrder,
    pub next: Option<&'a EpochOrder>,
    /// Where this epoch's samples are.
    pub spots: &'a Packed,
    pub tiers: usize,
    /// Ranks whose batches differ: one alone stands for all when each gets the whole.
    pub ranks: u32,
    /// Whether this epoch uses every sample, and whether the next does.
    pub all_used: (bool, bool),
    /// Whether there is space for all samples.
    pub all_fit: bool,
    /// Bytes left by spot; tier 0 has none.
    pub free: Vec<u64>,
    /// The same over all nodes, by tier.
    pub free_in_tier: Vec<u64>,
    /// By tier: what holds samples over all nodes, and of it what is held through this epoch
    /// for the next.
    pub capacity: Vec<u64>,
    pub staying: Vec<u64>,
    /// Samples that are held and that neither this epoch nor the next uses.
    pub spares: Spares,
    /// Looked up where it matters: each of its epochs costs an order.
    pub later: LaterUses,
    epoch: u32,
    uses_so_far: &'a Uses,
    /// By iteration: bytes that must be free when it begins, so that all that is chosen finds
    /// space from then on.
    pub reserved: Vec<i64>,
    /// As [`Decision::behind`].
    pub behind: Vec<f64>,
    /// Nodes that read for others, through space in which nothing is held.
    pub relays: &'a Relays,
    pub copies: &'a mut SpareCopies,
    pub decision: Decision,
}

/// The epochs at hand.
#[derive(Clone, Copy)]
pub struct EpochOrders<'a> {
    pub epoch: u32,
    pub this: &'a EpochOrder,
    pub next: Option<&'a EpochOrder>,
    /// Of the epochs so far.
    pub uses: &'a Uses,
}

impl<'a> Transition<'a> {
    pub fn new(
        job: &'a Job,
        orders: EpochOrders<'a>,
        coming: &'a Decision,
        copies: &'a mut SpareCopies,
        relays: &'a Relays,
    ) -> Self {
        let spots = &coming.spots;
        let system = &job.system;
        let tiers = system.tiers.len();
        let mut space: Vec<u64> =
            (0..system.nodes as usize * tiers).map(|spot| usable(job, spot)).collect();
        if tiers > 1 {
            for node in 0..system.nodes as usize {
                space[node * tiers + 1] -= relays.space(node);
            }
        }
        let in_tiers =
            |space: &[u64]| (0..tiers).map(|t| space.iter().skip(t).step_by(tiers).sum()).collect();
        let capacity: Vec<u64> = in_tiers(&space);
        for sample in 0..if spots.is_empty() { 0 } else { job.sizes.len() } {
            let spot = spots.get(sample);
            if spot != NOWHERE {
                space[usize::from(spot)] -= job.sizes.get(sample);
            }
        }
        if tiers > 1 {
            for node in 0..system.nodes {
                space[node as usize * tiers + 1] -= copies.bytes(node);
            }
        }
        let ranks = match job.stream.config().scheme {
            Scheme::Whole => 1,
            _ => system.ranks(),
        };
        let mut transition = Self {
            job,
            order: orders.this,
            next: orders.next,
            spots,
            tiers,
            ranks,
            all_used: (true, true),
            all_fit: capacity.iter().sum::<u64>() >= job.sizes.total().0,
            free_in_tier: in_tiers(&space),
            staying: vec![0; tiers],
            spares: Spares::new(space.len()),
            capacity,
            free: space,
            later: LaterUses::default(),
            epoch: orders.epoch,
            uses_so_far: orders.uses,
            reserved: vec![],
            behind: source_lag(job, orders.this, ranks, spots, &coming.behind),
            relays,
            copies,
            decision: Decision::default(),
        };
        transition.all_used.0 = transition.uses_all(orders.this);
        transition.all_used.1 = orders.next.is_none_or(|next| transition.uses_all(next));
        transition
    }

    /// What a tier has for the candidates.
    pub fn open_space(&self, tier: usize) -> u64 {
        self.capacity[tier] - self.staying[tier]
    }

    /// Finds out when samples are used that the next epoch leaves out.
    pub fn look_beyond(&mut self) {
        self.later = LaterUses::beyond(self.job, self.epoch, self.uses_so_far);
    }

    /// Whether an order uses every sample.
    fn uses_all(&self, order: &EpochOrder) -> bool {
        let samples = self.job.sizes.len();
        let enough = order.samples().len() >= samples as usize;
        enough && (!self.own_order() || self.used(order).count() == samples as usize)
    }

    /// The samples that an order uses.
    pub fn used(&self, order: &EpochOrder) -> Bits {
        let mut used = Bits::new(self.job.sizes.len());
        for &sample in order.samples() {
            used.insert(sample);
        }
        used
    }

    /// Whether the order is the user's own, which may repeat samples and leave some out.
    pub fn own_order(&self) -> bool {
        matches!(self.job.stream.config().order, Order::Given(_) | Order::Provided(_))
    }

    /// The samples of a batch, each once: the user's own order may repeat them there.
    pub fn uses(&self, rank: RankId, iteration: u32) -> impl Iterator<Item = SampleId> + use<'a> {
        let repeats = !self.decision.tracked.is_empty();
        let mut seen = HashSet::new();
        self.order.batch(rank, iteration).filter(move |&sample| !repeats || seen.insert(sample))
    }

    pub fn spot(&self, sample: SampleId) -> Spot {
        self.spots.get(sample)
    }

    pub fn find_repeated(&self) -> Tracked {
        let samples = self.job.sizes.len() as usize;
        if !self.own_order() && self.order.samples().len() <= samples {
            // A permutation or part of one.
            return Tracked::default();
        }
        Tracked::repeated(self.job.sizes.len(), self.order.iterations(), |see| {
            for iteration in 0..self.order.iterations() {
                for rank in 0..self.ranks {
                    for sample in self.order.batch(rank, iteration) {
                        see(iteration, rank, sample);
                    }
                }
            }
        })
    }

    pub fn next_users(&self) -> Users {
        let Some(next) = self.next else { return Users::default() };
        let nodes = self.job.system.nodes;
        let mut users = Packed::new(self.job.sizes.len(), nodes as u16);
        for iteration in (0..next.iterations()).rev() {
            for rank in (0..self.ranks).rev() {
                let node = self.job.system.node_of(rank) as u16;
                for sample in next.batch(rank, iteration) {
                    users.set(sample, node + 1);
                }
            }
        }
        Users(users)
    }

    /// The sample goes when the iteration is over, and its space is free.
    pub fn evict(&mut self, spot: usize, sample: SampleId, iteration: u32) {
        self.release(spot as Spot, self.job.sizes.get(sample));
        let node = (spot / self.tiers) as NodeId;
        let tier = (spot % self.tiers) as TierId;
        self.decision.evictions.entry((node, iteration)).or_default().push((sample, tier));
    }

    pub fn release(&mut self, spot: Spot, size: u64) {
        self.free[usize::from(spot)] += size;
        self.free_in_tier[usize::from(spot) % self.tiers] += size;
    }
}

/// The node that uses each sample first in the next epoch, if any does.
#[derive(Debug, Default)]
pub struct Users(Packed);

impl Users {
    #[inline]
    pub fn get(&self, sample: SampleId) -> Option<NodeId> {
        NodeId::from(self.0.get(sample)).checked_sub(1)
    }
}

/// Returns by how many bytes read from the source each rank trails the one with the most when an
/// epoch ends. Where compute is slower than the source, rings are full by then and no rank does.
fn source_lag(
    job: &Job,
    order: &EpochOrder,
    ranks: u32,
    spots: &Packed,
    behind: &[f64],
) -> Vec<f64> {
    let mut slow = vec![0.0; ranks as usize];
    let (mut total, mut uses) = (0.0, 0);
    for iteration in 0..order.iterations() {
        for rank in 0..ranks {
            for sample in order.batch(rank, iteration) {
                let size = job.sizes.get(sample) as f64;
                total += size;
                uses += 1;
                if spots.get(sample) == NOWHERE {
                    slow[rank as usize] += size;
                }
            }
        }
    }
    let system = &job.system;
    let read: f64 = slow.iter().sum();
    let reading = read / system.source.throughput.at(system.nodes).0;
    let computing = system.compute.time(uses, total).0 / f64::from(ranks);
    if reading < computing {
        return vec![0.0; ranks as usize];
    }
    for (rank, slow) in slow.iter_mut().enumerate() {
        *slow += behind.get(rank).copied().unwrap_or(0.0);
    }
    // None is further ahead than its ring allows.
    let most = slow.iter().copied().fold(0.0, f64::max);
    let ahead = ring_of(job) * read / total.max(1.0);
    for slow in &mut slow {
        *slow = (*slow - most).max(-ahead);
    }
    slow
}

/// Bytes of a rank's part of the staging buffer.
pub fn ring_of(job: &Job) -> f64 {
    job.system.tiers[0].capacity.0 as f64 / f64::from(job.system.ranks_per_node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Bytes, Rate};
    use crate::policy::testing::job;

    #[test]
    fn a_rank_trails_by_what_it_has_read_less_at_most_by_its_ring() {
        // Two ranks use 200 bytes each; the second finds five samples of ten bytes in a cache.
        let mut job = job(40, 2, 1, &[100]);
        let order = job.stream.epoch(0);
        let mut spots = Packed::new(40, 3);
        for sample in (0..5).flat_map(|iteration| order.batch(1, iteration).take(1)) {
            spots.set(sample, 1);
        }
        let lag = |job: &Job, behind: &[f64]| source_lag(job, &order, 2, &spots, behind);
        assert_eq!(lag(&job, &[]), [0.0, -50.0]);
        assert_eq!(lag(&job, &[-30.0, 0.0]), [0.0, -20.0], "of the epoch before it trails less");
        assert_eq!(lag(&job, &[-80.0, 0.0]), [-30.0, 0.0]);
        // Of 400 bytes in a ring, 350 come from the source.
        job.system.tiers[0].capacity = Bytes(40);
        assert_eq!(lag(&job, &[]), [0.0, -35.0]);
        job.system.ranks_per_node = 2;
        job.system.nodes = 1;
        assert_eq!(lag(&job, &[]), [0.0, -17.5], "two ranks share a ring");
        // Reading takes 3.5 s, and computing as long at 57 bytes a second.
        job.system.compute = Rate(58.0).into();
        assert_eq!(lag(&job, &[]), [0.0, -17.5]);
        job.system.compute = Rate(57.0).into();
        assert_eq!(lag(&job, &[]), [0.0, 0.0], "rings are full");
    }
}

//! From one epoch to the next: who holds what, worked out in logical time.

use std::collections::{HashMap, HashSet};

use super::copies::Copies;
use super::repeats::Repeats;
use super::wishes::Wishes;
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
    pub repeats: Repeats,
    /// Samples that move on but leave a copy where they were.
    pub left_behind: Bits,
    /// Samples that need not be sent to their new spot: it has a copy.
    pub there_already: Bits,
    /// Copies that go, by node and iteration of this epoch; all from tier 1.
    pub evictions: HashMap<(NodeId, u32), Vec<SampleId>>,
    /// By node: how many bytes more than the mean it has read from the source when the
    /// next epoch begins, as far as that still makes it late.
    pub behind: Vec<f64>,
}

/// Works out where the samples of the next epoch wait for it.
pub struct Transition<'a> {
    pub job: &'a Job,
    pub order: &'a EpochOrder,
    pub next: Option<&'a EpochOrder>,
    /// Where this epoch's samples are.
    spots: &'a Packed,
    pub tiers: usize,
    /// Ranks whose batches differ: one alone stands for all when each gets the whole.
    pub ranks: u32,
    /// Bytes left by spot; tier 0 has none.
    room: Vec<u64>,
    /// The same over all nodes, by tier.
    room_in_tier: Vec<u64>,
    /// As [`Decision::behind`].
    pub behind: Vec<f64>,
    copies: &'a mut Copies,
    pub decision: Decision,
}

impl<'a> Transition<'a> {
    pub fn new(
        job: &'a Job,
        order: &'a EpochOrder,
        next: Option<&'a EpochOrder>,
        coming: &'a Decision,
        copies: &'a mut Copies,
    ) -> Self {
        let spots = &coming.spots;
        let system = &job.system;
        let tiers = system.tiers.len();
        let mut room: Vec<u64> = (0..system.nodes as usize * tiers)
            .map(|spot| (spot / tiers, spot % tiers))
            .map(|(node, tier)| match tier {
                0 => 0,
                _ => system.tiers[tier].capacity_of(node as u32).0,
            })
            .collect();
        for sample in 0..if spots.is_empty() { 0 } else { job.sizes.len() } {
            let spot = spots.get(sample);
            if spot != NOWHERE {
                room[usize::from(spot)] -= job.sizes.get(sample);
            }
        }
        if tiers > 1 {
            for node in 0..system.nodes {
                room[node as usize * tiers + 1] -= copies.bytes(node);
            }
        }
        let room_in_tier =
            (0..tiers).map(|tier| room.iter().skip(tier).step_by(tiers).sum()).collect();
        let ranks = match job.stream.config().scheme {
            Scheme::Whole => 1,
            _ => system.ranks(),
        };
        let behind = source_lag(job, order, ranks, spots, &coming.behind);
        let decision = Decision::default();
        Self { job, order, next, spots, tiers, ranks, room, room_in_tier, behind, copies, decision }
    }

    pub fn run(mut self) -> Decision {
        self.decision.repeats = self.find_repeats();
        let next_node = self.next_users();
        let Wishes { tier: wish, fits } = self.wishes(&next_node);
        if self.next.is_some() {
            let spots = self.room.len() as Spot;
            self.decision.spots = Packed::new(self.job.sizes.len(), spots - 1);
        }
        if fits || self.copies.any() {
            self.decision.left_behind = Bits::new(self.job.sizes.len());
            self.decision.there_already = Bits::new(self.job.sizes.len());
        }
        // Places of the two walks among the candidates, in the order of this epoch.
        let (mut released, mut kept) = (0, 0);
        for iteration in 0..self.order.iterations() {
            for rank in 0..self.ranks {
                for sample in self.uses(rank, iteration) {
                    if self.decision.repeats.is_last(sample, iteration, rank) {
                        let user = next_node.get(sample);
                        let tier = if user.is_some() { wish[released] } else { 0 };
                        released += usize::from(user.is_some());
                        self.let_go(sample, iteration, tier, user, fits);
                    }
                }
            }
            for rank in 0..self.ranks {
                let node = self.job.system.node_of(rank);
                for sample in self.uses(rank, iteration) {
                    self.bridge(sample, iteration, rank, node);
                    if !self.decision.repeats.is_last(sample, iteration, rank) {
                        continue;
                    }
                    let Some(user) = next_node.get(sample) else { continue };
                    let tier = wish[kept];
                    kept += 1;
                    if tier != 0 && self.decision.spots.get(sample) == NOWHERE {
                        let spot = self.settle(sample, iteration, tier, user, node);
                        self.decision.spots.set(sample, spot);
                    }
                }
            }
        }
        self.decision.behind = self.behind;
        self.decision
    }

    /// The samples of a batch, each once: the user's own order may repeat them there.
    pub fn uses(&self, rank: RankId, iteration: u32) -> impl Iterator<Item = SampleId> + use<'a> {
        let repeats = !self.decision.repeats.samples.is_empty();
        let mut seen = HashSet::new();
        self.order.batch(rank, iteration).filter(move |&sample| !repeats || seen.insert(sample))
    }

    /// The sample has been used for the last time in this epoch: it stays where it is, or
    /// its place is free, or a copy is left there.
    fn let_go(
        &mut self,
        sample: SampleId,
        iteration: u32,
        tier: TierId,
        user: Option<NodeId>,
        fits: bool,
    ) {
        let mut spot = self.spot(sample);
        if spot == NOWHERE {
            let repeat = self.decision.repeats.get(sample, iteration);
            spot = repeat.map_or(NOWHERE, |repeat| repeat.waits_at);
        }
        if spot == NOWHERE {
            return;
        }
        if tier != 0 && self.stays(spot, tier, user) {
            self.decision.spots.set(sample, spot);
        } else if fits && tier == 1 && usize::from(spot) % self.tiers == 1 {
            let node = NodeId::from(spot) / self.tiers as NodeId;
            self.copies.leave(self.job, node, sample);
            self.decision.left_behind.insert(sample);
        } else {
            let size = self.job.sizes.get(sample);
            self.release(spot, size);
        }
    }

    /// A sample that this epoch uses again later waits for that on the node that has it.
    fn bridge(&mut self, sample: SampleId, iteration: u32, rank: RankId, node: NodeId) {
        if let Some(repeat) = self.decision.repeats.get(sample, iteration)
            && (iteration, rank) == repeat.first
            && iteration < repeat.last.0
            && self.spot(sample) == NOWHERE
        {
            let spot = self.find_room(sample, iteration, 1, node, node);
            self.decision.repeats.samples.entry(sample).and_modify(|r| r.waits_at = spot);
        }
    }

    /// A spot for a sample that the next epoch uses on `user` and that `has` has now.
    fn settle(
        &mut self,
        sample: SampleId,
        iteration: u32,
        tier: TierId,
        user: NodeId,
        has: NodeId,
    ) -> Spot {
        if tier == 1 && self.copies.has(user, sample) {
            self.copies.promote(self.job, user, sample);
            self.decision.there_already.insert(sample);
            return (user as usize * self.tiers + 1) as Spot;
        }
        if tier == 1 {
            let spot = user as usize * self.tiers + 1;
            let size = self.job.sizes.get(sample);
            while self.room[spot] < size
                && let Some(copy) = self.copies.drop_oldest(self.job, user)
            {
                self.release(spot as Spot, self.job.sizes.get(copy));
                self.decision.evictions.entry((user, iteration)).or_default().push(copy);
            }
        }
        let spot = self.find_room(sample, iteration, tier, user, has);
        if spot != NOWHERE || self.copies_in_the_way(sample).is_none() {
            return spot;
        }
        // Coverage comes before copies, wherever they are.
        while let Some(node) = self.copies_in_the_way(sample) {
            let Some(copy) = self.copies.drop_oldest(self.job, node) else { break };
            let at = (node as usize * self.tiers + 1) as Spot;
            self.release(at, self.job.sizes.get(copy));
            self.decision.evictions.entry((node, iteration)).or_default().push(copy);
        }
        self.find_room(sample, iteration, tier, user, has)
    }

    /// A node whose copies take the room that the sample needs.
    fn copies_in_the_way(&self, sample: SampleId) -> Option<NodeId> {
        if !self.copies.any() {
            return None;
        }
        let size = self.job.sizes.get(sample);
        (0..self.job.system.nodes).find(|&node| {
            let room = self.room.get(node as usize * self.tiers + 1).copied().unwrap_or(0);
            let copies = self.copies.bytes(node);
            copies > 0 && room < size && room + copies >= size
        })
    }

    pub fn spot(&self, sample: SampleId) -> Spot {
        self.spots.get(sample)
    }

    /// A disk copy stays where it is: moving it would wear the disk for nothing. A
    /// copy in memory follows its next user.
    fn stays(&self, spot: Spot, wish: TierId, user: Option<NodeId>) -> bool {
        let tier = usize::from(spot) % self.tiers;
        let node = (usize::from(spot) / self.tiers) as NodeId;
        tier == usize::from(wish) && (tier > 1 || user == Some(node))
    }

    fn release(&mut self, spot: Spot, size: u64) {
        self.room[usize::from(spot)] += size;
        self.room_in_tier[usize::from(spot) % self.tiers] += size;
    }

    /// A spot for the sample: in the wished tier of its next user, of the node that has
    /// it now, of whoever has most room; then the same in the other tiers.
    fn find_room(
        &mut self,
        sample: SampleId,
        iteration: u32,
        wish: TierId,
        user: NodeId,
        has: NodeId,
    ) -> Spot {
        let size = self.job.sizes.get(sample);
        let others = (1..self.tiers).filter(|&tier| tier != usize::from(wish));
        for tier in std::iter::once(usize::from(wish)).chain(others) {
            if tier >= self.tiers || self.room_in_tier[tier] < size {
                continue;
            }
            let at = |node: NodeId| node as usize * self.tiers + tier;
            let spot = [at(user), at(has)].into_iter().find(|&spot| self.room[spot] >= size);
            let spot = spot.or_else(|| {
                (tier..self.room.len())
                    .step_by(self.tiers)
                    .max_by_key(|&spot| self.room[spot])
                    .filter(|&spot| self.room[spot] >= size)
            });
            if let Some(spot) = spot {
                let node = (spot / self.tiers) as NodeId;
                if tier == 1 && self.copies.has(node, sample) {
                    // Its room is taken already; keeping it once more does no harm.
                    self.copies.promote(self.job, node, sample);
                } else {
                    self.room[spot] -= size;
                    self.room_in_tier[tier] -= size;
                    if tier == 1
                        && let Some(going) = self.decision.evictions.get_mut(&(node, iteration))
                    {
                        // Its own copy was to make the room: it stays instead.
                        going.retain(|&copy| copy != sample);
                    }
                }
                return spot as Spot;
            }
        }
        NOWHERE
    }

    fn find_repeats(&self) -> Repeats {
        let config = self.job.stream.config();
        let own = matches!(config.order, Order::Given(_) | Order::Provided(_));
        if !own && self.order.samples().len() <= config.samples as usize {
            // A permutation or part of one.
            return Repeats::default();
        }
        Repeats::find(self.job.sizes.len(), self.order.iterations(), |see| {
            for iteration in 0..self.order.iterations() {
                for rank in 0..self.ranks {
                    for sample in self.order.batch(rank, iteration) {
                        see(iteration, rank, sample);
                    }
                }
            }
        })
    }

    fn next_users(&self) -> Users {
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

/// How far each node is behind the others, in bytes read from the source, when an epoch
/// ends. Where compute or anything else but the source sets the pace, rings are full by
/// then and nobody is.
fn source_lag(
    job: &Job,
    order: &EpochOrder,
    ranks: u32,
    spots: &Packed,
    behind: &[f64],
) -> Vec<f64> {
    let system = &job.system;
    let nodes = if ranks == 1 { 1 } else { system.nodes as usize };
    let mut slow = vec![0.0; nodes];
    let mut total = 0.0;
    for iteration in 0..order.iterations() {
        for rank in 0..ranks {
            let node = system.node_of(rank) as usize % nodes;
            for sample in order.batch(rank, iteration) {
                let size = job.sizes.get(sample) as f64;
                total += size;
                if spots.get(sample) == NOWHERE {
                    slow[node] += size;
                }
            }
        }
    }
    let read: f64 = slow.iter().sum();
    let reading = read / system.source.throughput.at(system.nodes).0;
    let computing = total / (f64::from(ranks) * system.compute.0);
    if reading < computing {
        return vec![0.0; nodes];
    }
    let mean = read / nodes as f64;
    for (node, slow) in slow.iter_mut().enumerate() {
        *slow += behind.get(node).copied().unwrap_or(0.0) - mean;
    }
    slow
}

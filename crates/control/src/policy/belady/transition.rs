//! From one epoch to the next: who holds what, worked out in logical time.

use std::collections::{HashMap, HashSet};

use super::choice::Choice;
use super::copies::Copies;
use super::later::{Later, NEXT, Uses};
use super::room::usable;
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
    /// Copies and spare samples that go, by node and iteration of this epoch.
    pub evictions: HashMap<(NodeId, u32), Vec<(SampleId, TierId)>>,
    /// By rank: how many bytes fewer than another it has read from the source when the next
    /// epoch begins, less than nothing, as far as that lets it be ahead.
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
    /// Whether this epoch uses every sample, and whether the next does.
    pub all_used: (bool, bool),
    /// Whether there is room for all samples.
    all_fit: bool,
    /// Bytes left by spot; tier 0 has none.
    pub room: Vec<u64>,
    /// The same over all nodes, by tier.
    pub room_in_tier: Vec<u64>,
    /// By tier: what holds samples over all nodes, and of it what is held through this epoch
    /// for the next.
    pub capacity: Vec<u64>,
    staying: Vec<u64>,
    /// Samples that are held and that neither this epoch nor the next uses.
    pub spares: Spares,
    /// Looked up where it matters: each of its epochs costs an order.
    pub later: Later,
    epoch: u32,
    uses_so_far: &'a Uses,
    /// By iteration: bytes that must be free when it begins, so that all that is chosen finds
    /// room from then on.
    reserved: Vec<i64>,
    /// As [`Decision::behind`].
    pub behind: Vec<f64>,
    pub copies: &'a mut Copies,
    pub decision: Decision,
}

/// The epochs at hand.
#[derive(Clone, Copy)]
pub struct Orders<'a> {
    pub epoch: u32,
    pub this: &'a EpochOrder,
    pub next: Option<&'a EpochOrder>,
    /// Of the epochs so far.
    pub uses: &'a Uses,
}

impl<'a> Transition<'a> {
    pub fn new(
        job: &'a Job,
        orders: Orders<'a>,
        coming: &'a Decision,
        copies: &'a mut Copies,
    ) -> Self {
        let spots = &coming.spots;
        let system = &job.system;
        let tiers = system.tiers.len();
        let mut room: Vec<u64> =
            (0..system.nodes as usize * tiers).map(|spot| usable(job, spot)).collect();
        let in_tiers =
            |room: &[u64]| (0..tiers).map(|t| room.iter().skip(t).step_by(tiers).sum()).collect();
        let capacity: Vec<u64> = in_tiers(&room);
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
            room_in_tier: in_tiers(&room),
            staying: vec![0; tiers],
            spares: Spares::new(room.len()),
            capacity,
            room,
            later: Later::default(),
            epoch: orders.epoch,
            uses_so_far: orders.uses,
            reserved: vec![],
            behind: source_lag(job, orders.this, ranks, spots, &coming.behind),
            copies,
            decision: Decision::default(),
        };
        transition.all_used.0 = transition.uses_all(orders.this);
        transition.all_used.1 = orders.next.is_none_or(|next| transition.uses_all(next));
        transition
    }

    pub fn run(mut self) -> Decision {
        self.decision.tracked = self.find_repeated();
        let next_node = self.next_users();
        if self.soonest_first(&next_node) {
            return self.run_soonest(&next_node);
        }
        self.track_held();
        if self.next.is_some() {
            let spots = self.room.len() as Spot;
            self.decision.spots = Packed::new(self.job.sizes.len(), spots - 1);
            self.stay(&next_node);
        }
        let Choice { tier: wish, fits } = self.choose(&next_node);
        self.reserved = self.reserve(&next_node, &wish);
        // Copies are for room that no sample of any epoch needs.
        let copies = fits && self.all_fit;
        if copies || self.copies.any() {
            self.decision.left_behind = Bits::new(self.job.sizes.len());
            self.decision.there_already = Bits::new(self.job.sizes.len());
        }
        // Places of the two walks among the candidates, in the order of this epoch.
        let (mut released, mut kept) = (0, 0);
        for iteration in 0..self.order.iterations() {
            for rank in 0..self.ranks {
                for sample in self.uses(rank, iteration) {
                    if self.decision.tracked.is_last(sample, iteration, rank) {
                        let user = next_node.get(sample);
                        let tier = if user.is_some() { wish[released] } else { 0 };
                        released += usize::from(user.is_some());
                        self.let_go(sample, iteration, tier, user, copies);
                    }
                }
            }
            for rank in 0..self.ranks {
                let node = self.job.system.node_of(rank);
                for sample in self.uses(rank, iteration) {
                    self.bridge(sample, iteration, rank, node);
                    if !self.decision.tracked.is_last(sample, iteration, rank) {
                        continue;
                    }
                    let Some(user) = next_node.get(sample) else {
                        self.keep_for_later(sample, iteration, node);
                        continue;
                    };
                    let tier = wish[kept];
                    kept += 1;
                    if tier != 0 && self.decision.spots.get(sample) == NOWHERE {
                        let spot = self.settle(sample, iteration, tier, user, node, NEXT);
                        self.decision.spots.set(sample, spot);
                    }
                }
            }
            self.keep_more(iteration, &next_node);
        }
        self.decision.behind = std::mem::take(&mut self.behind);
        self.finish()
    }

    /// Where tracked samples go from their last use is known at the end.
    pub fn finish(mut self) -> Decision {
        let Decision { spots, tracked, .. } = &mut self.decision;
        for (sample, uses) in tracked.samples() {
            if let Some(last) = uses.last_mut() {
                last.to = spots.get(sample);
            }
        }
        self.decision
    }

    /// Whether Belady's rule step by step reads less than an even choice could.
    fn soonest_first(&mut self, users: &Users) -> bool {
        if self.tiers == 1 || self.all_fit {
            return false;
        }
        let all_once = self.all_used == (true, true) && self.decision.tracked.is_empty();
        !all_once && (self.waits_within_epoch() || self.later_epochs_decide(users))
    }

    /// What is held at the epoch's start stays there from use to use.
    fn track_held(&mut self) {
        for (sample, uses) in self.decision.tracked.samples() {
            let spot = self.spots.get(sample);
            for using in uses {
                (using.from, using.to) = (spot, spot);
            }
        }
    }

    /// What a tier has for the candidates.
    pub fn open_room(&self, tier: usize) -> u64 {
        self.capacity[tier] - self.staying[tier]
    }

    /// What this epoch leaves out stays where it is: for the next epoch, or, if that leaves it
    /// out as well, while the room is not needed.
    fn stay(&mut self, users: &Users) {
        if self.spots.is_empty() || self.all_used.0 {
            return;
        }
        let used = self.used(self.order);
        let spare = |sample| {
            self.spot(sample) != NOWHERE && !used.contains(sample) && users.get(sample).is_none()
        };
        if (0..self.job.sizes.len()).any(spare) {
            self.look_beyond();
        }
        for sample in 0..self.job.sizes.len() {
            let spot = self.spot(sample);
            if spot == NOWHERE || used.contains(sample) {
                continue;
            }
            let size = self.job.sizes.get(sample);
            self.decision.spots.set(sample, spot);
            if users.get(sample).is_some() {
                self.staying[usize::from(spot) % self.tiers] += size;
            } else {
                self.spares.add(spot, self.later.wait(sample), sample, size);
            }
        }
        self.spares.sort();
    }

    /// Keeps what the next epoch does not use, where there is room for all samples.
    fn keep_for_later(&mut self, sample: SampleId, iteration: u32, node: NodeId) {
        if self.all_fit && self.next.is_some() && self.decision.spots.get(sample) == NOWHERE {
            let spot = self.settle(sample, iteration, 1, node, node, NEXT + 1);
            self.decision.spots.set(sample, spot);
        }
    }

    /// Keeps more of what an iteration has used, if what is chosen leaves room.
    fn keep_more(&mut self, iteration: u32, users: &Users) {
        let reserved = self.reserved[iteration as usize + 1];
        let free = |of: &Self| of.room_in_tier.iter().sum::<u64>().cast_signed();
        for rank in 0..self.ranks {
            if self.next.is_none() || free(self) <= reserved {
                return;
            }
            let node = self.job.system.node_of(rank);
            for sample in self.uses(rank, iteration) {
                let Some(user) = users.get(sample) else { continue };
                let last = self.decision.tracked.is_last(sample, iteration, rank);
                let fits = free(self) - self.job.sizes.get(sample).cast_signed() >= reserved;
                if last && fits && self.decision.spots.get(sample) == NOWHERE {
                    let spot = self.settle(sample, iteration, 1, user, node, NEXT);
                    self.decision.spots.set(sample, spot);
                }
            }
        }
    }

    /// Finds out when samples are used that the next epoch leaves out.
    pub fn look_beyond(&mut self) {
        self.later = Later::beyond(self.job, self.epoch, self.uses_so_far);
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

    /// The sample has been used for the last time in this epoch: it stays where it is, or
    /// its place is free, or a copy is left there.
    fn let_go(
        &mut self,
        sample: SampleId,
        iteration: u32,
        tier: TierId,
        user: Option<NodeId>,
        copies: bool,
    ) {
        let mut spot = self.spot(sample);
        if spot == NOWHERE {
            let span = self.decision.tracked.span(sample, iteration);
            spot = span.map_or(NOWHERE, |(_, last)| last.from);
        }
        if spot == NOWHERE {
            return;
        }
        let size = self.job.sizes.get(sample);
        let for_later = user.is_none() && self.all_fit && self.next.is_some();
        if for_later || (tier != 0 && self.stays(spot, tier, user)) {
            self.decision.spots.set(sample, spot);
        } else if copies && tier == 1 && usize::from(spot) % self.tiers == 1 {
            let node = NodeId::from(spot) / self.tiers as NodeId;
            self.copies.leave(self.job, node, sample);
            self.decision.left_behind.insert(sample);
        } else {
            self.release(spot, size);
        }
    }

    /// A sample that this epoch uses again later waits for that on the node that has it.
    fn bridge(&mut self, sample: SampleId, iteration: u32, rank: RankId, node: NodeId) {
        let Some((first, _)) = self.decision.tracked.span(sample, iteration) else { return };
        if first.at != (iteration, rank) || self.spot(sample) != NOWHERE {
            return;
        }
        let spot = self.settle(sample, iteration, 1, node, node, NEXT);
        let Some(uses) = self.decision.tracked.get_mut(sample) else { return };
        let later = uses.partition_point(|using| using.at.0 == iteration);
        uses[later - 1].to = spot;
        for using in &mut uses[later..] {
            (using.from, using.to) = (spot, spot);
        }
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

    fn find_repeated(&self) -> Tracked {
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

/// How far each rank is behind the others, in bytes read from the source, when an epoch
/// ends. Where compute or anything else but the source sets the pace, rings are full by
/// then and nobody is.
fn source_lag(
    job: &Job,
    order: &EpochOrder,
    ranks: u32,
    spots: &Packed,
    behind: &[f64],
) -> Vec<f64> {
    let mut slow = vec![0.0; ranks as usize];
    let mut total = 0.0;
    for iteration in 0..order.iterations() {
        for rank in 0..ranks {
            for sample in order.batch(rank, iteration) {
                let size = job.sizes.get(sample) as f64;
                total += size;
                if spots.get(sample) == NOWHERE {
                    slow[rank as usize] += size;
                }
            }
        }
    }
    let system = &job.system;
    let read: f64 = slow.iter().sum();
    let reading = read / system.source.throughput.at(system.nodes).0;
    let computing = total / (f64::from(ranks) * system.compute.0);
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

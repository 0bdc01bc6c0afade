//! Where samples find room: in which tier of which node, and what goes for them.

use super::later::Wait;
use super::transition::{Transition, Users};
use super::{NOWHERE, Spot};
use crate::job::{Job, Sizes};
use crate::policy::{NodeId, TierId};
use crate::sampler::SampleId;

/// By how many samples what is held may waver around an even line. It was seen to be half of
/// that with 400,000 samples.
const WAVER: u64 = 32;

impl Transition<'_> {
    /// By iteration: bytes that must be free when it begins. Each lets go of what it used, and
    /// keeps what is chosen of it.
    pub fn reserve(&self, users: &Users, wish: &[TierId]) -> Vec<i64> {
        let iterations = self.order.iterations();
        let mut reserved = vec![0; iterations as usize + 1];
        let mut place = 0;
        for iteration in 0..iterations {
            let net = &mut reserved[iteration as usize];
            for rank in 0..self.ranks {
                for sample in self.uses(rank, iteration) {
                    let size = self.job.sizes.get(sample).cast_signed();
                    let span = self.decision.tracked.span(sample, iteration);
                    let held = self.spot(sample) != NOWHERE;
                    if !held && span.is_some_and(|(first, _)| first.at == (iteration, rank)) {
                        *net += size;
                    }
                    if !self.decision.tracked.is_last(sample, iteration, rank) {
                        continue;
                    }
                    if held || span.is_some() {
                        *net -= size;
                    }
                    if users.get(sample).is_some() {
                        if wish[place] != 0 {
                            *net += size;
                        }
                        place += 1;
                    }
                }
            }
        }
        let margin = self.margin().cast_signed();
        let mut after = 0;
        for net in reserved.iter_mut().rev() {
            after = (after + *net).max(0);
            *net = after;
        }
        for bytes in &mut reserved {
            *bytes += margin;
        }
        reserved
    }

    /// Room that is left free by the choice, so that all that is chosen finds room: what is held
    /// wavers by some samples around an even line, and sizes that differ leave a rest in each
    /// spot that is too small for the next sample. At most a thousandth of all room.
    pub fn margin(&self) -> u64 {
        let mean = self.job.sizes.total().0 / u64::from(self.job.sizes.len().max(1));
        let spots = (0..self.room.len()).filter(|&spot| usable(self.job, spot) > 0).count() as u64;
        let rests = if matches!(self.job.sizes, Sizes::Equal { .. }) { 0 } else { 2 * spots };
        let room: u64 = self.capacity.iter().sum();
        (mean * (WAVER + rests)).min(room / 1000)
    }

    /// A spot for a sample that `user` uses next, after `wait`, and that `has` has now.
    pub fn settle(
        &mut self,
        sample: SampleId,
        iteration: u32,
        tier: TierId,
        user: NodeId,
        has: NodeId,
        wait: Wait,
    ) -> Spot {
        if self.tiers == 1 {
            return NOWHERE;
        }
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
                self.evict(spot, copy, iteration);
            }
        }
        let spot = self.find_room(sample, iteration, tier, user, has);
        if spot != NOWHERE {
            return spot;
        }
        // Coverage comes before copies, and before what is used later, wherever they are.
        let mut made = false;
        while let Some(node) = self.copies_in_the_way(sample) {
            let Some(copy) = self.copies.drop_oldest(self.job, node) else { break };
            self.evict(node as usize * self.tiers + 1, copy, iteration);
            made = true;
        }
        if !made && !self.evict_spares(sample, iteration, tier, user, wait) {
            return NOWHERE;
        }
        self.find_room(sample, iteration, tier, user, has)
    }

    /// The sample goes when the iteration is over, and its room is free.
    pub fn evict(&mut self, spot: usize, sample: SampleId, iteration: u32) {
        self.release(spot as Spot, self.job.sizes.get(sample));
        let node = (spot / self.tiers) as NodeId;
        let tier = (spot % self.tiers) as TierId;
        self.decision.evictions.entry((node, iteration)).or_default().push((sample, tier));
    }

    /// Makes room for a sample by what waits longer than it; false where there is none.
    fn evict_spares(
        &mut self,
        sample: SampleId,
        iteration: u32,
        tier: TierId,
        user: NodeId,
        wait: Wait,
    ) -> bool {
        let size = self.job.sizes.get(sample);
        if self.spares.total() == 0 {
            return false;
        }
        let wished = user as usize * self.tiers + usize::from(tier);
        let all = (0..self.room.len()).filter(|spot| spot % self.tiers > 0);
        let spots: Vec<usize> = std::iter::once(wished).chain(all).collect();
        for spot in spots {
            if self.room[spot] + self.spares.bytes(spot) < size {
                continue;
            }
            while self.room[spot] < size {
                let sizes = &self.job.sizes;
                let Some(spare) = self.spares.take(spot, wait, |sample| sizes.get(sample)) else {
                    break;
                };
                self.decision.spots.set(spare, NOWHERE);
                self.evict(spot, spare, iteration);
            }
            if self.room[spot] >= size {
                return true;
            }
        }
        false
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

    pub fn release(&mut self, spot: Spot, size: u64) {
        self.room[usize::from(spot)] += size;
        self.room_in_tier[usize::from(spot) % self.tiers] += size;
    }

    /// A spot for the sample: in the wished tier of its next user, of the node that has
    /// it now, of the node with most room; then the same in the other tiers.
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
                        going.retain(|&(copy, at)| copy != sample || at != 1);
                    }
                }
                return spot as Spot;
            }
        }
        NOWHERE
    }
}

/// Bytes of a spot that can hold samples: where all are equally large, whole ones.
pub fn usable(job: &Job, spot: usize) -> u64 {
    let tiers = job.system.tiers.len();
    let (node, tier) = ((spot / tiers) as u32, spot % tiers);
    let capacity = job.system.tiers[tier].capacity_of(node).0;
    match job.sizes {
        _ if tier == 0 => 0,
        Sizes::Equal { bytes, .. } if bytes > 0 => capacity / bytes * bytes,
        _ => capacity,
    }
}

//! Where samples find space: in which tier of which node, and what is evicted for them.

use std::cmp::Reverse;

use super::later::Wait;
use super::space::usable;
use super::state::{Transition, Users};
use super::{NOWHERE, Spot};
use crate::job::Sizes;
use crate::policy::{NodeId, TierId};
use crate::sampler::SampleId;

/// By how many samples the held bytes may deviate from an even line. With 400,000 samples half of
/// that was measured.
const WAVER: u64 = 32;

impl Transition<'_> {
    /// By iteration: bytes that must be free when it begins. Each evicts what it used, and
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

    /// Space that is left free by the choice, so that all that is chosen finds space: what is held
    /// deviates by some samples from an even line, and sizes that differ leave a rest in each
    /// spot that is too small for the next sample. At most a thousandth of all space.
    pub fn margin(&self) -> u64 {
        let mean = self.job.sizes.total().0 / u64::from(self.job.sizes.len().max(1));
        let spots = (0..self.free.len()).filter(|&spot| usable(self.job, spot) > 0).count() as u64;
        let rests = if matches!(self.job.sizes, Sizes::Equal { .. }) { 0 } else { 2 * spots };
        let space: u64 = self.capacity.iter().sum();
        (mean * (WAVER + rests)).min(space / 1000)
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
            while self.free[spot] < size
                && let Some(copy) = self.copies.drop_oldest(self.job, user)
            {
                self.evict(spot, copy, iteration);
            }
        }
        let spot = self.find_space(sample, iteration, tier, user, has);
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
        self.find_space(sample, iteration, tier, user, has)
    }

    /// Finds space for samples that an iteration keeps and that found none: by moving another one
    /// of them to a node that has space for it, or by placing all of them anew. `kept` has all of
    /// them with the tiers that they were chosen for.
    pub fn make_way(&mut self, kept: &[(SampleId, TierId)]) {
        // Copies and spare samples that made space are gone already.
        if self.copies.any() || self.spares.total() > 0 {
            return;
        }
        for &(sample, _) in kept {
            if self.decision.spots.get(sample) == NOWHERE
                && let Some((other, to)) = self.find_move(kept, self.job.sizes.get(sample))
            {
                let spot = self.take_back(other);
                self.put(other, to);
                self.put(sample, spot);
            }
        }
        let left_out = self.left_out(kept);
        if left_out > 0 {
            self.repack(kept, left_out);
        }
    }

    /// Places the samples that an iteration keeps once more: the largest first, each where it
    /// leaves the least space. Goes back to where they were unless fewer bytes are left out.
    fn repack(&mut self, kept: &[(SampleId, TierId)], left_out: u64) {
        let old: Vec<Spot> = kept.iter().map(|&(sample, _)| self.take_back(sample)).collect();
        let mut by_size = kept.to_vec();
        by_size.sort_by_key(|&(sample, _)| Reverse(self.job.sizes.get(sample)));
        for &(sample, tier) in &by_size {
            let spot = self.tightest(self.job.sizes.get(sample), tier);
            self.put(sample, spot);
        }
        if self.left_out(kept) >= left_out {
            for &(sample, _) in kept {
                self.take_back(sample);
            }
            for (&(sample, _), &spot) in kept.iter().zip(&old) {
                self.put(sample, spot);
            }
        }
    }

    /// Bytes of those samples that have no spot for the next epoch.
    fn left_out(&self, samples: &[(SampleId, TierId)]) -> u64 {
        let out = samples.iter().filter(|&&(k, _)| self.decision.spots.get(k) == NOWHERE);
        out.map(|&(sample, _)| self.job.sizes.get(sample)).sum()
    }

    /// The spot with the least space that is enough: in the wished tier, else in another.
    fn tightest(&self, size: u64, wish: TierId) -> Spot {
        let others = (1..self.tiers).filter(|&tier| tier != usize::from(wish));
        let spot = std::iter::once(usize::from(wish)).chain(others).find_map(|tier| {
            let spots = (tier..self.free.len()).step_by(self.tiers);
            spots.filter(|&spot| self.free[spot] >= size).min_by_key(|&spot| self.free[spot])
        });
        spot.map_or(NOWHERE, |spot| spot as Spot)
    }

    /// The smallest of the samples that were kept just now whose move to another spot makes space
    /// for `size` more, and that spot.
    fn find_move(&self, kept: &[(SampleId, TierId)], size: u64) -> Option<(SampleId, Spot)> {
        let mut best: Option<(u64, SampleId, Spot)> = None;
        for &(other, _) in kept {
            let spot = usize::from(self.decision.spots.get(other));
            let moved = self.job.sizes.get(other);
            let enough = spot != usize::from(NOWHERE) && self.free[spot] + moved >= size;
            if !enough || best.is_some_and(|(least, ..)| least <= moved) {
                continue;
            }
            let others = (spot % self.tiers..self.free.len()).step_by(self.tiers);
            let fits = others.filter(|&to| to != spot && self.free[to] >= moved);
            if let Some(to) = fits.min_by_key(|&to| self.free[to]) {
                best = Some((moved, other, to as Spot));
            }
        }
        best.map(|(_, other, to)| (other, to))
    }

    /// Frees the spot that a sample was given in this iteration, and returns it.
    fn take_back(&mut self, sample: SampleId) -> Spot {
        let spot = self.decision.spots.get(sample);
        if spot != NOWHERE {
            self.release(spot, self.job.sizes.get(sample));
            self.decision.spots.set(sample, NOWHERE);
        }
        spot
    }

    fn put(&mut self, sample: SampleId, spot: Spot) {
        if spot != NOWHERE {
            let size = self.job.sizes.get(sample);
            self.free[usize::from(spot)] -= size;
            self.free_in_tier[usize::from(spot) % self.tiers] -= size;
            self.decision.spots.set(sample, spot);
        }
    }

    /// Makes space for a sample by what waits longer than it; false where there is none.
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
        for spot in std::iter::once(wished).chain(0..self.free.len()) {
            if self.free[spot] + self.spares.bytes(spot) < size {
                continue;
            }
            while self.free[spot] < size {
                let sizes = &self.job.sizes;
                let Some(spare) = self.spares.take(spot, wait, |sample| sizes.get(sample)) else {
                    break;
                };
                self.decision.spots.set(spare, NOWHERE);
                self.evict(spot, spare, iteration);
            }
            if self.free[spot] >= size {
                return true;
            }
        }
        false
    }

    /// A node whose copies take the space that the sample needs.
    fn copies_in_the_way(&self, sample: SampleId) -> Option<NodeId> {
        if !self.copies.any() {
            return None;
        }
        let size = self.job.sizes.get(sample);
        (0..self.job.system.nodes).find(|&node| {
            let space = self.free.get(node as usize * self.tiers + 1).copied().unwrap_or(0);
            let copies = self.copies.bytes(node);
            copies > 0 && space < size && space + copies >= size
        })
    }

    /// A spot for the sample: in the wished tier of its next user, of the node that has
    /// it now, of the node with most space; then the same in the other tiers.
    fn find_space(
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
            if self.free_in_tier[tier] < size {
                continue;
            }
            let at = |node: NodeId| node as usize * self.tiers + tier;
            let spot = [at(user), at(has)].into_iter().find(|&spot| self.free[spot] >= size);
            let spot = spot.or_else(|| {
                (tier..self.free.len())
                    .step_by(self.tiers)
                    .max_by_key(|&spot| self.free[spot])
                    .filter(|&spot| self.free[spot] >= size)
            });
            if let Some(spot) = spot {
                let node = (spot / self.tiers) as NodeId;
                if tier == 1 && self.copies.has(node, sample) {
                    // Its space is taken already; keeping it once more does no harm.
                    self.copies.promote(self.job, node, sample);
                } else {
                    self.free[spot] -= size;
                    self.free_in_tier[tier] -= size;
                    if tier == 1
                        && let Some(going) = self.decision.evictions.get_mut(&(node, iteration))
                    {
                        // Its own copy was to make the space: it stays instead.
                        going.retain(|&(copy, at)| copy != sample || at != 1);
                    }
                }
                return spot as Spot;
            }
        }
        NOWHERE
    }
}

#[cfg(test)]
mod tests {
    use super::super::copies::SpareCopies;
    use super::super::later::Uses;
    use super::super::relays::Relays;
    use super::super::state::{Decision, EpochOrders};
    use super::*;
    use crate::job::Job;
    use crate::model::Bytes;
    use crate::policy::testing::job;

    fn margin(job: &Job) -> u64 {
        let (this, uses, coming) = (&job.stream.epoch(0), &Uses::default(), &Decision::default());
        let orders = EpochOrders { epoch: 0, this, next: None, uses };
        let (mut copies, relays) = (SpareCopies::default(), Relays::default());
        Transition::new(job, orders, coming, &mut copies, &relays).margin()
    }

    #[test]
    fn some_samples_are_left_free_and_two_in_each_spot_where_sizes_differ() {
        let mut job = job(100, 2, 1, &[1_000_000, 2_000_000]);
        assert_eq!(margin(&job), 320, "32 samples of ten bytes");
        job.sizes = Sizes::from_bytes([9, 11].repeat(50));
        assert_eq!(margin(&job), 400, "and two in each of four spots");
        job.system.tiers[1].capacity = Bytes(0);
        assert_eq!(margin(&job), 360, "two spots have space");
        job.system.tiers[2].capacity = Bytes(100_000);
        assert_eq!(margin(&job), 200, "a thousandth of all space");
    }
}

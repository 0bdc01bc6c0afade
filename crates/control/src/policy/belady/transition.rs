//! From one epoch to the next: which node holds what, computed in logical time.

use std::sync::Arc;

use super::choice::TierChoice;
use super::later::NEXT;
use super::state::{Decision, Transition, Users};
use super::{NOWHERE, Spot};
use crate::bits::Bits;
use crate::packed::Packed;
use crate::policy::{NodeId, RankId, TierId};
use crate::sampler::SampleId;

impl Transition<'_> {
    pub fn run(mut self) -> Decision {
        self.decision.tracked = self.find_repeated();
        let next_node = self.next_users();
        if self.soonest_first(&next_node) {
            return self.run_soonest(&next_node);
        }
        self.track_held();
        if self.next.is_some() {
            let spots = self.free.len() as Spot;
            self.decision.spots = Packed::new(self.job.sizes.len(), spots - 1);
            self.stay(&next_node);
        }
        let TierChoice { tier: wish, fits } = self.choose(&next_node);
        self.reserved = self.reserve(&next_node, &wish);
        // Copies are for space that no sample of any epoch needs.
        let copies = fits && self.all_fit;
        if copies || self.copies.any() {
            self.decision.left_behind = Bits::new(self.job.sizes.len());
            self.decision.there_already = Bits::new(self.job.sizes.len());
        }
        // Places of the two walks among the candidates, in the order of this epoch.
        let (mut released, mut kept) = (0, 0);
        let mut just_kept = vec![];
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
                        just_kept.push((sample, tier));
                    }
                }
            }
            self.make_way(&just_kept);
            just_kept.clear();
            self.keep_more(iteration, &next_node);
        }
        self.decision.behind = std::mem::take(&mut self.behind);
        self.decision.ahead = Arc::new(self.read_ahead());
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
        // The last epoch leaves nothing to decide.
        let later_decide = self.next.is_some() && self.later_epochs_decide(users);
        !all_once && (later_decide || self.waits_within_epoch())
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

    /// What this epoch leaves out stays where it is: for the next epoch, or, if that leaves it
    /// out as well, while the space is not needed.
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

    /// Keeps what the next epoch does not use, where there is space for all samples.
    fn keep_for_later(&mut self, sample: SampleId, iteration: u32, node: NodeId) {
        if self.all_fit && self.next.is_some() && self.decision.spots.get(sample) == NOWHERE {
            let spot = self.settle(sample, iteration, 1, node, node, NEXT + 1);
            self.decision.spots.set(sample, spot);
        }
    }

    /// Keeps more of what an iteration has used, if what is chosen leaves space.
    fn keep_more(&mut self, iteration: u32, users: &Users) {
        let reserved = self.reserved[iteration as usize + 1];
        let free = |of: &Self| of.free_in_tier.iter().sum::<u64>().cast_signed();
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

    /// A disk copy stays where it is: moving it would wear the disk for nothing. A
    /// copy in memory follows its next user.
    fn stays(&self, spot: Spot, wish: TierId, user: Option<NodeId>) -> bool {
        let tier = usize::from(spot) % self.tiers;
        let node = (usize::from(spot) / self.tiers) as NodeId;
        tier == usize::from(wish) && (tier > 1 || user == Some(node))
    }
}

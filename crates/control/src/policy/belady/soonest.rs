//! Belady's rule, step by step: what is used soonest is held.
//!
//! Where an epoch draws samples with replacement, or where the samples of both epochs fit and
//! space is left for those of later ones, a free choice among the samples of the next epoch is not
//! what decides about bytes: a short wait takes less space than a long one, and two short waits
//! may follow each other in the place of a long one. Keeping what is used soonest then reads
//! least, whatever the order. It leaves to chance which rank reads what from the source.

use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::later::{NEVER, NEXT};
use super::state::{Decision, Transition, Users};
use super::{NOWHERE, Spot};
use crate::bits::Bits;
use crate::packed::Packed;
use crate::policy::RankId;
use crate::sampler::{EpochOrder, SampleId};

/// The iteration of a sample's next use, counted on from this epoch into those that follow.
type Time = u32;

/// One iteration's use of a sample, by all of its ranks.
#[derive(Clone, Copy, Debug)]
struct StepUse {
    sample: SampleId,
    /// The last rank that uses it.
    rank: RankId,
    next: Time,
}

/// Samples of larger sizes may need the space of several; beyond that the newcomer is not kept.
const MOST_EVICTED: usize = 16;

/// What is held at a time of the walk.
struct HeldSamples {
    spots: Packed,
    /// The latest next use is on top. Entries of uses that are over stay at the bottom: a sample
    /// that goes before its next use takes its entry with it.
    latest: BinaryHeap<(Time, SampleId)>,
    /// What this epoch has used so far.
    used: Bits,
}

impl HeldSamples {
    fn put(&mut self, sample: SampleId, spot: Spot, next: Time) {
        self.spots.set(sample, spot);
        self.latest.push((next, sample));
    }

    /// The sample that is used last of all, if that is later than `time`, which is to come.
    fn take_latest(&mut self, time: Time) -> Option<(SampleId, Spot)> {
        let latest = self.latest.peek_mut().filter(|latest| latest.0 > time)?;
        let (_, sample) = PeekMut::pop(latest);
        let spot = self.spots.get(sample);
        self.spots.set(sample, NOWHERE);
        Some((sample, spot))
    }
}

impl Transition<'_> {
    pub fn run_soonest(mut self, users: &Users) -> Decision {
        if self.next.is_some() {
            self.look_beyond();
        }
        let steps = self.step_uses();
        let mut held = self.held_at_start();
        for (iteration, uses) in (0..).zip(&steps) {
            for using in uses {
                self.use_held(*using, iteration, &mut held);
            }
            for using in uses {
                if held.spots.get(using.sample) == NOWHERE {
                    self.keep_sooner(*using, iteration, users, &mut held);
                }
            }
        }
        if self.next.is_some() {
            self.decision.spots = held.spots;
        }
        self.decision.behind = std::mem::take(&mut self.behind);
        self.finish()
    }

    /// By sample: the first iteration that uses it, `NEVER` if none does.
    fn first_uses(&self, order: &EpochOrder) -> Vec<Time> {
        let mut first = vec![NEVER; self.job.sizes.len() as usize];
        for iteration in (0..order.iterations()).rev() {
            for rank in 0..self.ranks {
                for sample in order.batch(rank, iteration) {
                    first[sample as usize] = iteration;
                }
            }
        }
        first
    }

    /// When each sample is used first after this epoch.
    fn after_this_epoch(&self) -> Vec<Time> {
        let Some(next) = self.next else { return vec![NEVER; self.job.sizes.len() as usize] };
        let begins = self.order.iterations();
        let ends = begins + next.iterations();
        let mut times = self.first_uses(next);
        for (sample, time) in (0..).zip(&mut times) {
            *time = match (*time, self.later.wait(sample)) {
                (NEVER, NEVER) => NEVER,
                (NEVER, wait) => ends.saturating_add(wait),
                (iteration, _) => begins + iteration,
            };
        }
        times
    }

    /// The uses of this epoch by iteration, each with its next.
    fn step_uses(&self) -> Vec<Vec<StepUse>> {
        let mut next_use = self.after_this_epoch();
        let mut steps: Vec<Vec<StepUse>> = vec![];
        let mut seen = vec![u32::MAX; self.job.sizes.len() as usize];
        for iteration in (0..self.order.iterations()).rev() {
            let mut step = vec![];
            for rank in (0..self.ranks).rev() {
                for sample in self.order.batch(rank, iteration) {
                    if std::mem::replace(&mut seen[sample as usize], iteration) != iteration {
                        let next = std::mem::replace(&mut next_use[sample as usize], iteration);
                        step.push(StepUse { sample, rank, next });
                    }
                }
            }
            step.reverse();
            steps.push(step);
        }
        steps.reverse();
        steps
    }

    fn held_at_start(&self) -> HeldSamples {
        let samples = self.job.sizes.len();
        let after = self.after_this_epoch();
        let first = self.first_uses(self.order);
        let spots = self.free.len() as Spot;
        let mut held = HeldSamples {
            spots: Packed::new(samples, spots - 1),
            latest: BinaryHeap::new(),
            used: Bits::new(samples),
        };
        for sample in 0..samples {
            if self.spot(sample) != NOWHERE {
                let next = first[sample as usize].min(after[sample as usize]);
                held.put(sample, self.spot(sample), next);
            }
        }
        held
    }

    /// Notes where a sample is used from. What is held stays until something that is used
    /// sooner needs its space.
    fn use_held(&mut self, using: StepUse, iteration: u32, held: &mut HeldSamples) {
        let StepUse { sample, rank, next } = using;
        let spot = held.spots.get(sample);
        held.used.insert(sample);
        let stays = if next == NEVER { NOWHERE } else { spot };
        if let Some(uses) = self.decision.tracked.get_mut(sample) {
            for tracked in uses.iter_mut().filter(|tracked| tracked.at.0 == iteration) {
                tracked.from = spot;
                tracked.to = if tracked.at.1 == rank { stays } else { spot };
            }
        } else if spot == NOWHERE && self.spot(sample) != NOWHERE {
            self.decision.tracked.loses_its_place(sample, (iteration, rank));
        }
        if spot == NOWHERE {
            return;
        }
        if stays == NOWHERE {
            held.spots.set(sample, NOWHERE);
            self.release(spot, self.job.sizes.get(sample));
        } else {
            held.put(sample, spot, next);
        }
    }

    /// Keeps a sample that was read from the source, in free space or in that of samples that
    /// are used later.
    fn keep_sooner(
        &mut self,
        using: StepUse,
        iteration: u32,
        users: &Users,
        held: &mut HeldSamples,
    ) {
        let StepUse { sample, rank, next } = using;
        let has = self.job.system.node_of(rank);
        let in_this_epoch = next < self.order.iterations();
        let user = users.get(sample).filter(|_| !in_this_epoch).unwrap_or(has);
        if next == NEVER {
            return;
        }
        let mut spot = self.settle(sample, iteration, 1, user, has, NEXT);
        for _ in 0..MOST_EVICTED {
            if spot != NOWHERE {
                break;
            }
            let Some((latest, at)) = held.take_latest(next) else { break };
            self.let_go_early(latest, at, iteration, held);
            spot = self.settle(sample, iteration, 1, user, has, NEXT);
        }
        if spot == NOWHERE {
            return;
        }
        held.put(sample, spot, next);
        if let Some(uses) = self.decision.tracked.get_mut(sample)
            && let Some(last) = uses.iter_mut().rfind(|tracked| tracked.at.0 == iteration)
        {
            last.to = spot;
        }
    }

    /// A held sample gives its space away. If it was kept in this epoch, it is not kept at all.
    fn let_go_early(&mut self, sample: SampleId, spot: Spot, iteration: u32, held: &HeldSamples) {
        if !held.used.contains(sample) {
            self.evict(usize::from(spot), sample, iteration);
            return;
        }
        self.release(spot, self.job.sizes.get(sample));
        if let Some(uses) = self.decision.tracked.get_mut(sample)
            && let Some(last) = uses.iter_mut().rfind(|tracked| tracked.at.0 <= iteration)
        {
            last.to = NOWHERE;
        }
    }

    /// Whether the samples that wait for another use in this epoch take a good part of the
    /// caches, a twentieth.
    pub fn waits_within_epoch(&mut self) -> bool {
        let sizes = &self.job.sizes;
        let iterations = f64::from(self.order.iterations().max(1));
        let waiting: f64 = self
            .decision
            .tracked
            .samples()
            .filter_map(|(sample, uses)| {
                let wait = uses.last()?.at.0 - uses.first()?.at.0;
                Some(sizes.get(sample) as f64 * f64::from(wait) / iterations)
            })
            .sum();
        let capacity: u64 = (1..self.tiers).map(|tier| self.open_space(tier)).sum();
        waiting > capacity as f64 / 20.0
    }
}

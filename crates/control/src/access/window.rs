//! Next use: when is a sample read again, by anyone or by one node?
//!
//! A [`Window`] knows where each sample stands in two consecutive epochs, four bytes
//! a sample and epoch; who reads it and in which iteration follows from the position
//! by arithmetic. Since a sample comes back once an epoch, two epochs always show the
//! next use by anyone. The next use by one node may lie further out, and then the
//! answer is [`NextUse::Later`]: that is all an eviction needs to know.

use std::ops::Range;
use std::sync::Arc;

use super::Scope;
use crate::sampler::{AccessStream, Deal, EpochOrder, SampleId, Scheme, Step};

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Use {
    pub step: Step,
    /// The first rank in scope, where several read it in that step.
    pub rank: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextUse {
    At(Use),
    /// Not within the window; maybe after it.
    Later,
    /// The window reaches the run's end and does not have it.
    Never,
}

/// Where each sample stands in one epoch.
#[derive(Debug)]
struct Positions {
    /// `u32::MAX` where the epoch does not use the sample.
    first: Vec<u32>,
    /// Further positions of samples that are read more than once (padding, the
    /// user's own lists), sorted.
    more: Vec<(SampleId, u32)>,
}

impl Positions {
    fn of(order: &EpochOrder) -> Self {
        let first = order.positions();
        let mut more: Vec<(SampleId, u32)> = (0u32..)
            .zip(order.samples())
            .filter(|&(position, &sample)| first[sample as usize] != position)
            .map(|(position, &sample)| (sample, position))
            .collect();
        more.sort_unstable();
        Self { first, more }
    }

    /// All positions of a sample, in order.
    fn get(&self, sample: SampleId) -> impl Iterator<Item = u32> + '_ {
        let first = Some(self.first[sample as usize]).filter(|&position| position != u32::MAX);
        let from = self.more.partition_point(|&(other, _)| other < sample);
        let more = self.more[from..].iter().take_while(move |&&(other, _)| other == sample);
        first.into_iter().chain(more.map(|&(_, position)| position))
    }
}

/// Two consecutive epochs of a run, or its last one alone.
#[derive(Clone, Debug)]
pub struct Window {
    epoch: u32,
    epochs: Option<u32>,
    ranks_per_node: u32,
    whole: bool,
    deal: Deal,
    now: Arc<Positions>,
    next: Option<Arc<Positions>>,
}

impl Window {
    /// The window that starts with `epoch` of a run of `epochs` (`None`: open-ended).
    pub fn new(
        stream: &AccessStream,
        epochs: Option<u32>,
        ranks_per_node: u32,
        epoch: u32,
    ) -> Self {
        let positions = |epoch| Arc::new(Positions::of(&stream.epoch(epoch)));
        let more = epochs.is_none_or(|end| epoch + 1 < end);
        let (now, next) = rayon::join(|| positions(epoch), || more.then(|| positions(epoch + 1)));
        Self {
            epoch,
            epochs,
            ranks_per_node,
            whole: stream.config().scheme == Scheme::Whole,
            deal: *stream.deal(),
            now,
            next,
        }
    }

    /// Moves on by one epoch, keeping what it has.
    pub fn advance(&mut self, stream: &AccessStream) {
        self.epoch += 1;
        let more = self.epochs.is_none_or(|end| self.epoch + 1 < end);
        let next = more.then(|| Arc::new(Positions::of(&stream.epoch(self.epoch + 1))));
        self.now = match std::mem::replace(&mut self.next, next) {
            Some(now) => now,
            None => Arc::new(Positions::of(&stream.epoch(self.epoch))),
        };
    }

    /// The first epoch in view.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The first use of `sample` in a step later than `after`.
    pub fn next_use(&self, sample: SampleId, after: Step, scope: Scope) -> NextUse {
        let ranks = match scope {
            Scope::Anyone => 0..u32::MAX,
            Scope::Node(node) => node * self.ranks_per_node..(node + 1) * self.ranks_per_node,
        };
        let views = [Some(&self.now), self.next.as_ref()];
        for (epoch, positions) in (self.epoch..).zip(views.into_iter().flatten()) {
            if epoch < after.epoch {
                continue;
            }
            let from = if epoch == after.epoch { after.iteration.saturating_add(1) } else { 0 };
            if let Some((iteration, rank)) = self.first_in(positions, sample, from, &ranks) {
                return NextUse::At(Use { step: Step { epoch, iteration }, rank });
            }
        }
        let seen = self.epoch + 1 + u32::from(self.next.is_some());
        if self.epochs.is_some_and(|end| end <= seen) { NextUse::Never } else { NextUse::Later }
    }

    /// Iterations from `at` to the next use after it; `None` where the window does not
    /// show one.
    pub fn reuse_distance(&self, sample: SampleId, at: Step, scope: Scope) -> Option<u64> {
        match self.next_use(sample, at, scope) {
            NextUse::At(next) => Some(self.iterations_between(at, next.step)),
            NextUse::Later | NextUse::Never => None,
        }
    }

    fn iterations_between(&self, from: Step, to: Step) -> u64 {
        let at = |step: Step| {
            u64::from(step.epoch) * u64::from(self.deal.iterations()) + u64::from(step.iteration)
        };
        at(to) - at(from)
    }

    /// The first use by one of `ranks` in iteration `from` or later.
    fn first_in(
        &self,
        positions: &Positions,
        sample: SampleId,
        from: u32,
        ranks: &Range<u32>,
    ) -> Option<(u32, u32)> {
        positions
            .get(sample)
            .filter_map(|position| self.deal.slot(u64::from(position)))
            .filter(|slot| slot.iteration >= from && (self.whole || ranks.contains(&slot.rank)))
            .map(|slot| (slot.iteration, if self.whole { ranks.start } else { slot.rank }))
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_the_naive_model_finds(
            (stream, per_node) in naive::streams(),
            epochs in 1u32..6,
            known: bool,
            start in 0u32..6,
        ) {
            let start = start.min(epochs - 1);
            let end = known.then_some(epochs);
            let mut window = Window::new(&stream, end, per_node, 0);
            for _ in 0..start {
                window.advance(&stream);
            }
            prop_assert_eq!(window.epoch(), start);
            let visible = start..(start + 2).min(end.unwrap_or(u32::MAX));
            let all = naive::accesses(&stream, visible);
            let nothing = if end.is_some_and(|end| end <= start + 2) {
                NextUse::Never
            } else {
                NextUse::Later
            };
            let nodes = stream.config().ranks / per_node;
            let scopes = (0..nodes).map(Scope::Node).chain([Scope::Anyone]);
            for scope in scopes {
                let ranks = scope.ranks(&stream, per_node);
                for epoch in start..start + 2 {
                    for iteration in 0..stream.iterations() {
                        let after = Step { epoch, iteration };
                        for sample in 0..stream.config().samples {
                            let naive = all
                                .iter()
                                .filter(|&&(step, rank, k)| {
                                    k == sample && step > after && ranks.contains(&rank)
                                })
                                .map(|&(step, rank, _)| Use { step, rank })
                                .min();
                            let expected = naive.map_or(nothing, NextUse::At);
                            prop_assert_eq!(window.next_use(sample, after, scope), expected);
                            let distance = naive.map(|next| {
                                u64::from(next.step.epoch - epoch) * u64::from(stream.iterations())
                                    + u64::from(next.step.iteration)
                                    - u64::from(iteration)
                            });
                            prop_assert_eq!(window.reuse_distance(sample, after, scope), distance);
                        }
                    }
                }
            }
        }
    }
}

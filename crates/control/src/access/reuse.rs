//! Reuse distance: how many iterations lie between two uses of a sample, by one node or by any
//! (Lobster, Fig. 4).

use std::ops::Range;

use super::{Scope, drive};
use crate::sampler::AccessStream;

/// How often each distance occurred, in bins of equal width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReuseHistogram {
    /// Iterations a bin; bin i holds distances from i·bin to below (i+1)·bin.
    bin: u32,
    counts: Vec<u64>,
    longest: u64,
    /// Uses after which the counted epochs hold no other.
    last_uses: u64,
}

impl ReuseHistogram {
    /// Returns an empty histogram with bins of that many iterations.
    ///
    /// # Panics
    /// If `bin` is 0.
    pub fn new(bin: u32) -> Self {
        assert!(bin > 0, "a bin holds at least one iteration");
        Self { bin, counts: Vec::new(), longest: 0, last_uses: 0 }
    }

    /// Returns the iterations of a bin.
    pub fn bin(&self) -> u32 {
        self.bin
    }

    /// Returns the reuses in each bin.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the uses after which the counted epochs hold no other.
    pub fn last_uses(&self) -> u64 {
        self.last_uses
    }

    /// Returns the number of reuses.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the share of reuses that lie in bins from `distance` on.
    pub fn share_from(&self, distance: u64) -> f64 {
        let from = (distance / u64::from(self.bin)) as usize;
        let tail: u64 = self.counts.iter().skip(from).sum();
        if tail == 0 { 0.0 } else { tail as f64 / self.total() as f64 }
    }

    /// Returns the longest distance; 0 where there is none.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Returns the distance in iterations that `share` of the reuses lie below, assuming that they
    /// are spread evenly within a bin.
    pub fn quantile(&self, share: f64) -> f64 {
        let wanted = share * self.total() as f64;
        let mut below = 0.0;
        for (i, &count) in self.counts.iter().enumerate() {
            let count = count as f64;
            if count > 0.0 && below + count >= wanted {
                let within = (wanted - below) / count;
                return ((i as f64 + within) * f64::from(self.bin)).min(self.longest as f64);
            }
            below += count;
        }
        0.0
    }

    pub(super) fn add(&mut self, distance: u64) {
        let at = (distance / u64::from(self.bin)) as usize;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.longest = self.longest.max(distance);
    }

    pub(super) fn add_last_uses(&mut self, uses: u64) {
        self.last_uses += uses;
    }

    pub(super) fn merge(mut self, other: Self) -> Self {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(other.counts) {
            *mine += theirs;
        }
        self.longest = self.longest.max(other.longest);
        self.last_uses += other.last_uses;
        self
    }
}

/// No use so far.
const UNUSED: u64 = u64::MAX;

/// Measures the reuse distances of each scope over `epochs`. Several uses in the same step (by
/// several ranks, or by padding) count as one. Takes eight bytes a sample for each scope.
pub fn reuse_distances(
    stream: &AccessStream,
    epochs: Range<u32>,
    ranks_per_node: u32,
    scopes: &[Scope],
    bin: u32,
) -> Vec<ReuseHistogram> {
    struct LastUses {
        ranks: Range<u32>,
        last: Vec<u64>,
        histogram: ReuseHistogram,
    }
    let mut states: Vec<LastUses> = scopes
        .iter()
        .map(|scope| LastUses {
            ranks: scope.ranks(stream, ranks_per_node),
            last: vec![UNUSED; stream.config().samples as usize],
            histogram: ReuseHistogram::new(bin),
        })
        .collect();
    drive(stream, epochs, &mut states, |state, epoch, order| {
        for iteration in 0..order.iterations() {
            let now = u64::from(epoch) * u64::from(order.iterations()) + u64::from(iteration);
            for rank in state.ranks.clone() {
                for sample in order.batch(rank, iteration) {
                    let before = std::mem::replace(&mut state.last[sample as usize], now);
                    if before != UNUSED && before != now {
                        state.histogram.add(now - before);
                    }
                }
            }
        }
    });
    states
        .into_iter()
        .map(|mut state| {
            let used = state.last.iter().filter(|&&last| last != UNUSED).count();
            state.histogram.add_last_uses(used as u64);
            state.histogram
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::naive;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn distances_are_those_of_the_naive_model(
            (stream, per_node) in naive::streams(), epochs in 0u32..9, bin in 1u32..5,
        ) {
            let nodes = stream.config().ranks / per_node;
            let scopes: Vec<Scope> = (0..nodes).map(Scope::Node).chain([Scope::AllRanks]).collect();
            let result = reuse_distances(&stream, 0..epochs, per_node, &scopes, bin);
            let all = naive::accesses(&stream, 0..epochs);
            for (scope, histogram) in scopes.iter().zip(result) {
                let ranks = scope.ranks(&stream, per_node);
                let mut naive = ReuseHistogram::new(bin);
                for sample in 0..stream.config().samples {
                    let uses: BTreeSet<u64> = all
                        .iter()
                        .filter(|&&(_, rank, k)| k == sample && ranks.contains(&rank))
                        .map(|&(step, _, _)| {
                            u64::from(step.epoch) * u64::from(stream.iterations())
                                + u64::from(step.iteration)
                        })
                        .collect();
                    uses.iter().zip(uses.iter().skip(1)).for_each(|(a, b)| naive.add(b - a));
                    naive.add_last_uses(u64::from(!uses.is_empty()));
                }
                prop_assert_eq!(histogram, naive);
            }
        }
    }

    #[test]
    fn quantiles_and_shares_by_hand() {
        let mut histogram = ReuseHistogram::new(10);
        for distance in [5, 12, 19, 35] {
            histogram.add(distance);
        }
        assert_eq!(histogram.counts(), [1, 2, 0, 1]);
        assert_eq!(histogram.quantile(0.25), 10.0);
        assert_eq!(histogram.quantile(0.5), 15.0);
        assert_eq!((histogram.quantile(1.0), histogram.longest()), (35.0, 35));
        assert_eq!(histogram.share_from(20), 0.25);
        assert_eq!(ReuseHistogram::new(1).quantile(0.5), 0.0);
    }
}

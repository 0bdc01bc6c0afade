//! Statistics of the access stream: how often samples are read, and how far apart.
//!
//! - [`frequency`]: how often does each node read each sample over the run? One small counter per
//!   sample and node, for as many nodes at a time as memory allows.
//! - [`reuse`]: how many iterations lie between two uses? Eight bytes per sample.
//! - [`mod@survey`]: both questions for a subset of samples, through the index-free permutation, in
//!   memory that does not grow with the dataset.
//!
//! The first two go through every epoch of the run, but never hold E×F entries: `drive` makes a
//! few epochs' orders at a time in parallel and shows each to all counters in parallel.

pub mod frequency;
pub mod reuse;
pub mod survey;

use std::ops::Range;

use rayon::prelude::*;

use crate::sampler::{AccessStream, EpochOrder};

pub use frequency::{FrequencyTable, frequencies};
pub use reuse::{ReuseHistogram, reuse_distances};
pub use survey::{Survey, Uncovered, survey};

/// Orders held at once while counting: enough to keep a few cores busy, few enough
/// that orders stay small beside the counters.
const ORDERS_AT_ONCE: u32 = 4;

/// Whose accesses count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Those of all ranks.
    AllRanks,
    /// Those of one node's ranks.
    Node(u32),
}

impl Scope {
    /// Returns the ranks in scope.
    pub fn ranks(self, stream: &AccessStream, ranks_per_node: u32) -> Range<u32> {
        match self {
            Self::AllRanks => 0..stream.config().ranks,
            Self::Node(node) => node * ranks_per_node..(node + 1) * ranks_per_node,
        }
    }
}

/// Returns the epochs that a look ahead from `from` counts: to the run's end, or `window` epochs
/// where the end is further away or unknown.
pub fn epochs_ahead(epochs: Option<u32>, from: u32, window: u32) -> Range<u32> {
    let to = from.saturating_add(window);
    from..epochs.map_or(to, |end| to.min(end)).max(from)
}

/// Calls `see(state, epoch, order)` for every epoch, in order, and every state. Ends where provided
/// orders end or fail: their errors are reported when the epoch is due.
pub(crate) fn drive<S: Send>(
    stream: &AccessStream,
    epochs: Range<u32>,
    states: &mut [S],
    see: impl Fn(&mut S, u32, &EpochOrder) + Sync,
) {
    let mut from = epochs.start;
    while from < epochs.end {
        let to = epochs.end.min(from.saturating_add(ORDERS_AT_ONCE));
        let orders: Vec<Option<EpochOrder>> =
            (from..to).into_par_iter().map(|epoch| stream.ask(epoch).ok().flatten()).collect();
        let orders: Vec<EpochOrder> = orders.into_iter().map_while(|order| order).collect();
        states.par_iter_mut().for_each(|state| {
            for (epoch, order) in (from..to).zip(&orders) {
                see(state, epoch, order);
            }
        });
        if orders.len() < (to - from) as usize {
            return;
        }
        from = to;
    }
}

/// The reference model of tests: a list of every access.
#[cfg(test)]
mod naive {
    use super::*;
    use crate::sampler::{Order, SampleId, Scheme, Step, StreamConfig};
    use proptest::prelude::*;
    use std::sync::Arc;

    /// Every access of the run: (step, rank, sample).
    pub fn accesses(stream: &AccessStream, epochs: Range<u32>) -> Vec<(Step, u32, SampleId)> {
        let mut all = Vec::new();
        for epoch in epochs {
            let order = stream.epoch(epoch);
            for iteration in 0..order.iterations() {
                for rank in 0..stream.config().ranks {
                    let step = Step { epoch, iteration };
                    all.extend(order.batch(rank, iteration).map(|sample| (step, rank, sample)));
                }
            }
        }
        all
    }

    /// Small streams of every order and scheme, with their ranks per node.
    pub fn streams() -> impl Strategy<Value = (AccessStream, u32)> {
        let order = prop_oneof![
            Just(Order::Torch),
            Just(Order::Permutation),
            Just(Order::Sequential),
            // Repeats samples and leaves some out.
            Just(Order::Given(Arc::new(vec![vec![0, 3, 3, 1, 0, 2, 4], vec![4; 7]]))),
        ];
        let scheme = prop_oneof![
            Just(Scheme::Uniform),
            Just(Scheme::Contiguous),
            Just(Scheme::Whole),
            Just(Scheme::Imbalanced),
        ];
        let counts = (5u32..40, 1u32..4, 1u32..4, 1u32..4);
        (counts, order, scheme, any::<u32>(), any::<bool>(), any::<bool>()).prop_filter_map(
            "no complete batch",
            |((samples, nodes, per_node, local), order, scheme, seed, padded, drop_last)| {
                let ranks = nodes * per_node;
                let config = StreamConfig {
                    samples,
                    ranks,
                    batch: local * ranks,
                    order,
                    scheme,
                    seed: u64::from(seed),
                    sampler_drop_last: !padded,
                    drop_last,
                };
                AccessStream::new(config).ok().map(|stream| (stream, per_node))
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_ahead_ends_with_the_run_or_the_window() {
        assert_eq!(epochs_ahead(Some(10), 3, 4), 3..7);
        assert_eq!(epochs_ahead(Some(10), 8, 4), 8..10);
        assert_eq!(epochs_ahead(Some(1), 0, 4), 0..1);
        assert_eq!(epochs_ahead(None, 8, 4), 8..12);
        assert!(epochs_ahead(Some(5), 9, 4).is_empty());
    }
}

//! Access frequency r_k: how often each node reads each sample.
//!
//! NoPFS places samples by it. For N nodes the table has N×F counters. A caller that cannot hold
//! them all counts a range of nodes at a time, with one pass over the run's orders for each range.
#![allow(clippy::doc_markdown, reason = "symbols and names as the papers print them")]

use std::ops::Range;

use super::drive;
use crate::sampler::{AccessStream, SampleId};

/// Counts for a range of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrequencyTable {
    nodes: Range<u32>,
    rows: Vec<NodeCounters>,
}

/// One node's counters: a byte a sample until one of them passes 255.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeCounters {
    Narrow(Vec<u8>),
    Wide(Vec<u32>),
}

impl NodeCounters {
    fn count(&mut self, samples: impl Iterator<Item = SampleId>) {
        for sample in samples {
            let at = sample as usize;
            match self {
                Self::Narrow(counts) if counts[at] < u8::MAX => counts[at] += 1,
                Self::Narrow(counts) => {
                    let mut wide: Vec<u32> = counts.iter().map(|&n| u32::from(n)).collect();
                    wide[at] += 1;
                    *self = Self::Wide(wide);
                }
                Self::Wide(counts) => counts[at] += 1,
            }
        }
    }

    fn get(&self, sample: SampleId) -> u32 {
        match self {
            Self::Narrow(counts) => u32::from(counts[sample as usize]),
            Self::Wide(counts) => counts[sample as usize],
        }
    }

    fn len(&self) -> u32 {
        match self {
            Self::Narrow(counts) => counts.len() as u32,
            Self::Wide(counts) => counts.len() as u32,
        }
    }
}

/// Counts the accesses of `nodes` over `epochs`, each rank's by itself: where every rank gets the
/// whole batch, a node reads a sample once a rank.
pub fn frequencies(
    stream: &AccessStream,
    epochs: Range<u32>,
    ranks_per_node: u32,
    nodes: Range<u32>,
) -> FrequencyTable {
    let samples = stream.config().samples as usize;
    let mut rows: Vec<(u32, NodeCounters)> =
        nodes.clone().map(|node| (node, NodeCounters::Narrow(vec![0; samples]))).collect();
    drive(stream, epochs, &mut rows, |(node, counters), _, order| {
        let ranks = *node * ranks_per_node..(*node + 1) * ranks_per_node;
        for iteration in 0..order.iterations() {
            for rank in ranks.clone() {
                counters.count(order.batch(rank, iteration));
            }
        }
    });
    FrequencyTable { nodes, rows: rows.into_iter().map(|(_, counters)| counters).collect() }
}

impl FrequencyTable {
    /// Returns the nodes counted.
    pub fn nodes(&self) -> Range<u32> {
        self.nodes.clone()
    }

    /// Returns r_k of a node.
    ///
    /// # Panics
    /// If the node is not in [`Self::nodes`] or the sample not in the dataset.
    pub fn get(&self, node: u32, sample: SampleId) -> u32 {
        self.row(node).get(sample)
    }

    /// Returns r_0, r_1, ... of a node.
    pub fn of_node(&self, node: u32) -> impl ExactSizeIterator<Item = u32> + '_ {
        let row = self.row(node);
        (0..row.len()).map(|sample| row.get(sample))
    }

    /// Returns how many samples the node reads 0, 1, 2, ... times (NoPFS, Fig. 3).
    pub fn histogram(&self, node: u32) -> Vec<u64> {
        let mut histogram = Vec::new();
        for count in self.of_node(node) {
            let at = count as usize;
            if histogram.len() <= at {
                histogram.resize(at + 1, 0);
            }
            histogram[at] += 1;
        }
        histogram
    }

    fn row(&self, node: u32) -> &NodeCounters {
        assert!(self.nodes.contains(&node), "node {node} was not counted");
        &self.rows[(node - self.nodes.start) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive;
    use super::*;
    use crate::model::frequency::{some_other_at_least, some_other_at_most};
    use crate::sampler::{Order, Scheme, StreamConfig};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_what_the_naive_model_counts(
            (stream, per_node) in naive::streams(),
            from in 0u32..3,
            epochs in 0u32..12,
            first in 0u32..3,
        ) {
            let nodes = stream.config().ranks / per_node;
            let range = first.min(nodes - 1)..nodes;
            let table = frequencies(&stream, from..from + epochs, per_node, range.clone());
            let all = naive::accesses(&stream, from..from + epochs);
            for node in range {
                for sample in 0..stream.config().samples {
                    let naive = all
                        .iter()
                        .filter(|&&(_, rank, k)| rank / per_node == node && k == sample)
                        .count();
                    prop_assert_eq!(table.get(node, sample) as usize, naive);
                }
                let histogram = table.histogram(node);
                prop_assert_eq!(histogram.iter().sum::<u64>(), u64::from(stream.config().samples));
            }
        }

        /// NoPFS, lemma 1, on real streams: every sample is read once an epoch.
        #[test]
        fn nopfs_lemma_1_holds_on_streams(
            samples in 1u32..60, workers in 2u32..6, epochs in 1u32..40, seed: u32,
        ) {
            let stream = stream(samples * workers, workers, u64::from(seed));
            let table = frequencies(&stream, 0..epochs, 1, 0..workers);
            for sample in 0..samples * workers {
                let counts: Vec<u32> = (0..workers).map(|w| table.get(w, sample)).collect();
                prop_assert_eq!(counts.iter().sum::<u32>(), epochs);
                for worker in 0..workers as usize {
                    let mut others = counts.clone();
                    let count = others.remove(worker);
                    let fewest = others.iter().min().unwrap();
                    let most = others.iter().max().unwrap();
                    prop_assert!(*fewest <= some_other_at_most(count, epochs, workers));
                    prop_assert!(*most >= some_other_at_least(count, epochs, workers));
                }
            }
        }
    }

    fn stream(samples: u32, ranks: u32, seed: u64) -> AccessStream {
        AccessStream::new(StreamConfig {
            samples,
            ranks,
            batch: ranks,
            order: Order::Permutation,
            scheme: Scheme::Uniform,
            seed,
            sampler_drop_last: false,
            drop_last: false,
        })
        .unwrap()
    }

    #[test]
    fn counts_beyond_a_byte() {
        let table = frequencies(&stream(3, 1, 7), 0..300, 1, 0..1);
        assert_eq!(table.of_node(0).collect::<Vec<_>>(), [300, 300, 300]);
    }

    #[test]
    fn splitting_the_nodes_changes_nothing() {
        let stream = stream(400, 8, 1);
        let whole = frequencies(&stream, 0..20, 2, 0..4);
        for node in 0..4 {
            let part = frequencies(&stream, 0..20, 2, node..node + 1);
            assert!(part.of_node(node).eq(whole.of_node(node)));
        }
    }
}

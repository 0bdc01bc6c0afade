//! Random jobs of every kind of order, scheme, size and capacity.

use std::sync::Arc;

use belady_control::job::{Job, Packing, Sizes};
use belady_control::model::{
    Bytes, Curve, Pipeline, Rate, Readers, Sharing, SourceModel, System, TierModel,
};
use belady_control::sampler::orders::{
    MixtureOrders, MixturePart, RankShare, Replacement, WeightedOrders,
};
use belady_control::sampler::{AccessStream, Order, Scheme, StreamConfig};
use proptest::prelude::*;

/// How an epoch's samples are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// Every sample once but for what the last batch leaves out or adds.
    Torch(Scheme),
    Permutation(Scheme),
    Sequential,
    UniformDraws,
    Weighted,
    WithoutReplacement,
    Mixture,
}

/// How sizes are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    Equal,
    /// Up to twice the smallest.
    Mild,
    /// As photographs: a few are ten times the median.
    Skewed,
}

/// A job by its numbers.
#[derive(Clone, Debug)]
pub struct Shape {
    pub nodes: u32,
    pub ranks_per_node: u32,
    /// Samples of a rank in an iteration.
    pub local: u32,
    pub samples: u32,
    pub epochs: u32,
    pub choice: Choice,
    pub drop_last: bool,
    pub spread: Spread,
    /// By node and cache tier: a part of the dataset's bytes.
    pub room: Vec<Vec<f64>>,
    /// Batches that a rank's part of the ring holds.
    pub ring: u32,
    /// The source's rate over the rate at which all ranks consume.
    pub source: f64,
    pub seed: u64,
}

impl Shape {
    pub fn ranks(&self) -> u32 {
        self.nodes * self.ranks_per_node
    }

    pub fn sizes(&self) -> Sizes {
        let of = |sample: u32| {
            let hash =
                (u64::from(sample) + self.seed % 1009 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let unit = (hash >> 40) as f64 / (1u64 << 24) as f64;
            match self.spread {
                Spread::Equal => 1000,
                Spread::Mild => 1000 + (unit * 1000.0) as u64,
                // The quantile of a distribution with a tail as 1/x².
                Spread::Skewed => (400.0 / (1.0 - 0.995 * unit).sqrt()) as u64,
            }
        };
        Sizes::of(self.samples, of)
    }

    /// `None` where an epoch would have no batch.
    pub fn job(&self) -> Option<Arc<Job>> {
        let sizes = self.sizes();
        let total = sizes.total().as_f64();
        let compute = 1e6;
        let ranks = self.ranks();
        let tier = |at: usize| {
            let of = |node: u32| {
                let room = &self.room[node as usize % self.room.len()];
                Bytes((room[at % room.len()] * total) as u64)
            };
            let by_node: Vec<Bytes> = (0..self.nodes).map(of).collect();
            TierModel {
                name: format!("tier {at}"),
                capacity: by_node.iter().copied().min().unwrap_or_default(),
                by_node: if by_node.windows(2).all(|pair| pair[0] == pair[1]) {
                    vec![]
                } else {
                    by_node
                },
                threads: 2,
                read: Curve::flat(Rate(1e10)),
                write: Curve::flat(Rate(1e10)),
            }
        };
        let batch = match self.choice {
            Choice::Torch(Scheme::Whole) | Choice::Permutation(Scheme::Whole) => self.local * ranks,
            // Half of the ranks have batches four times as large as the others'.
            Choice::Torch(Scheme::Imbalanced) | Choice::Permutation(Scheme::Imbalanced) => {
                let large = ranks / 2;
                (4 * self.local * ranks).div_ceil(4 * large + (ranks - large)).max(self.local)
            }
            _ => self.local,
        };
        // So many batches of the mean size, and any one sample.
        let mean = total / f64::from(self.samples);
        let ring = f64::from(self.ring * batch * self.ranks_per_node) * mean;
        let ring = ring as u64 + sizes.largest().0;
        let staging = TierModel {
            name: "staging".to_owned(),
            capacity: Bytes(ring),
            by_node: vec![],
            threads: 4,
            read: Curve::flat(Rate(1e10)),
            write: Curve::flat(Rate(1e10)),
        };
        let tiers = self.room.iter().map(Vec::len).max().unwrap_or(0);
        let system = System {
            nodes: self.nodes,
            ranks_per_node: self.ranks_per_node,
            compute: Rate(compute).into(),
            preprocess: Rate(1e9).into(),
            network: Rate(1e9),
            source: SourceModel {
                throughput: self.throughput(compute * f64::from(ranks)),
                link: Rate(1e10),
                sharing: Sharing::Aggregate,
                readers: Readers::Nodes,
            },
            tiers: std::iter::once(staging).chain((0..tiers).map(tier)).collect(),
            pipeline: Pipeline::Overlapped,
        };
        let (order, scheme) = self.order()?;
        let stream = AccessStream::new(StreamConfig {
            samples: self.samples,
            ranks,
            batch: self.local * ranks,
            order,
            scheme,
            seed: self.seed,
            sampler_drop_last: false,
            drop_last: self.drop_last,
        })
        .ok()?;
        let packing = Packing { files: self.samples, read_size: None };
        let job = Job { system, stream, sizes, epochs: Some(self.epochs), packing };
        (job.stream.epoch(0).iterations() > 0).then(|| Arc::new(job))
    }

    /// A node that reads alone gets less than all together do.
    fn throughput(&self, compute: f64) -> Curve {
        let rate = Rate(self.source * compute);
        let points = [(1, rate * 0.45), (self.nodes, rate)];
        Curve::new(points[usize::from(self.nodes == 1)..].to_vec()).expect("counts that grow")
    }

    fn order(&self) -> Option<(Order, Scheme)> {
        let share = RankShare {
            rank: 0,
            ranks: self.ranks(),
            batch: self.local,
            sampler_drop_last: false,
            drop_last: self.drop_last,
        };
        let uniform = vec![1.0; self.samples as usize];
        let zipf: Vec<f64> = (1..=self.samples).map(|at| 1.0 / f64::from(at)).collect();
        let weighted = |weights: &[f64], length, replacement| {
            let orders = WeightedOrders::new(weights, length, replacement, self.seed, share);
            Some((Order::Provided(Arc::new(orders.ok()?)), Scheme::Uniform))
        };
        match self.choice {
            Choice::Torch(scheme) => Some((Order::Torch, scheme)),
            Choice::Permutation(scheme) => Some((Order::Permutation, scheme)),
            Choice::Sequential => Some((Order::Sequential, Scheme::Uniform)),
            Choice::UniformDraws => weighted(&uniform, self.samples, Replacement::With),
            Choice::Weighted => weighted(&zipf, self.samples, Replacement::With),
            Choice::WithoutReplacement => {
                weighted(&zipf, self.samples.div_ceil(2), Replacement::Without)
            }
            Choice::Mixture => {
                let first = self.samples.div_ceil(4);
                let parts = [(first, 1.0), (self.samples - first, 1.0)]
                    .map(|(samples, weight)| MixturePart { samples, weight });
                let orders = MixtureOrders::new(&parts, self.samples, self.seed, share).ok()?;
                Some((Order::Provided(Arc::new(orders)), Scheme::Uniform))
            }
        }
    }
}

pub fn choices() -> impl Strategy<Value = Choice> {
    let scheme = prop::sample::select(vec![
        Scheme::Uniform,
        Scheme::Parts,
        Scheme::Contiguous,
        Scheme::Whole,
        Scheme::Imbalanced,
    ]);
    prop_oneof![
        scheme.clone().prop_map(Choice::Torch),
        scheme.prop_map(Choice::Permutation),
        Just(Choice::Sequential),
        Just(Choice::UniformDraws),
        Just(Choice::Weighted),
        Just(Choice::WithoutReplacement),
        Just(Choice::Mixture),
    ]
}

pub fn spreads() -> impl Strategy<Value = Spread> {
    prop::sample::select(vec![Spread::Equal, Spread::Mild, Spread::Skewed])
}

/// Jobs of so many batches an epoch, the last one short or left out.
pub fn small(batches: std::ops::Range<u32>) -> impl Strategy<Value = Shape> {
    let machine = (1u32..=4, 1u32..=2, 1u32..=5, 2u32..4);
    let room = prop::collection::vec(prop::collection::vec(0.0f64..0.4, 1..=2), 1..=4);
    let data = (batches, 0.0f64..1.0, 2u32..=4, choices(), any::<bool>(), spreads());
    let source = prop_oneof![Just(0.2), Just(2.0)];
    (machine, room, data, source, any::<u64>()).prop_map(
        |((nodes, ranks_per_node, local, ring), room, data, source, seed)| {
            let (batches, rest, epochs, choice, drop_last, spread) = data;
            let batch = local * nodes * ranks_per_node;
            Shape {
                nodes,
                ranks_per_node,
                local,
                samples: batch * batches + (rest * f64::from(batch)) as u32,
                epochs,
                choice,
                drop_last,
                spread,
                room: room[..room.len().min(nodes as usize)].to_vec(),
                ring,
                source,
                seed,
            }
        },
    )
}

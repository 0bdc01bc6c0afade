//! The last iterations, and the fit to them.

use std::collections::{BTreeMap, VecDeque};

use super::fit::{FittedModel, SizeFit, TimeFit};
use super::work::{IterationWork, WorkSum};

/// Iterations that are remembered: a change shows in full after so many.
pub const WINDOW: usize = 6;

/// The sums of the last iterations in which there was work of a kind.
#[derive(Clone, Debug)]
struct RecentSums<K>(VecDeque<BTreeMap<K, WorkSum>>);

impl<K> Default for RecentSums<K> {
    fn default() -> Self {
        Self(VecDeque::with_capacity(WINDOW))
    }
}

impl<K: Ord + Copy> RecentSums<K> {
    fn push(&mut self, sums: BTreeMap<K, WorkSum>) {
        if sums.is_empty() {
            return;
        }
        if self.0.len() == WINDOW {
            self.0.pop_front();
        }
        self.0.push_back(sums);
    }

    /// Adds up the iterations. Each counts half as much as the one after it, so that half of a
    /// change shows after one, and seven eighths after three.
    fn total(&self) -> BTreeMap<K, WorkSum> {
        let mut total = BTreeMap::new();
        for (age, sums) in self.0.iter().rev().enumerate() {
            for (&key, &sum) in sums {
                *total.entry(key).or_insert_with(WorkSum::default) +=
                    sum.times(1 << (WINDOW - 1 - age));
            }
        }
        total
    }
}

/// The last iterations. Each kind of work has its own: where nothing is read from the source for
/// a while, what was measured of it last still counts.
#[derive(Clone, Debug, Default)]
pub struct FitWindow {
    transforms: RecentSums<(u8, u32)>,
    loads: [RecentSums<u32>; 3],
    training: VecDeque<u64>,
}

impl FitWindow {
    /// Adds an iteration, and forgets the oldest of more than [`WINDOW`].
    pub fn push(&mut self, work: IterationWork) {
        let IterationWork { transforms, loads, training } = work;
        self.transforms.push(transforms);
        for (recent, loads) in self.loads.iter_mut().zip(loads) {
            recent.push(loads);
        }
        if let Some(least) = training {
            if self.training.len() == WINDOW {
                self.training.pop_front();
            }
            self.training.push_back(least);
        }
    }

    /// Fits the model of a node with so many processors.
    pub fn fit(&self, cores: u32) -> FittedModel {
        let total: Vec<_> = self.transforms.total().into_iter().collect();
        let of_size = |of_class: &[((u8, u32), WorkSum)]| {
            let mut all = WorkSum::default();
            for &(_, sum) in of_class {
                all += sum;
            }
            let by_threads = of_class.iter().map(|&((_, threads), sum)| (threads, sum));
            SizeFit {
                bytes: all.bytes / all.count.max(1),
                samples: all.count,
                time: TimeFit::new(by_threads, |sum| sum.count as f64),
            }
        };
        let mebibytes = |sum: WorkSum| sum.bytes as f64 / f64::from(1 << 20);
        FittedModel {
            transforms: total.chunk_by(|a, b| a.0.0 == b.0.0).map(of_size).collect(),
            loads: self.loads.each_ref().map(|loads| TimeFit::new(loads.total(), mebibytes)),
            training: self.training.iter().copied().min().unwrap_or(0),
            cores,
        }
    }
}

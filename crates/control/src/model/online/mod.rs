//! A model of a node's threads that is fitted while a job runs (Lobster, section 4.1, which fits it
//! before the job).
//!
//! [`IterationWork`] sums what threads did between two steps. A [`FitWindow`] remembers the last
//! [`WINDOW`] of them and fits a [`FittedModel`]: how long one thread takes for a sample of a size,
//! or for a mebibyte from a class of places, by the number of threads that do so at once; linear
//! between measured counts. A [`NodeMeasurement`] is that model together with what is planned and
//! not loaded yet, and [`split_threads`] divides the node's threads by it.
//!
//! All figures of a measurement are integers, so that one that was recorded is read back exactly.

mod fit;
mod split;
#[cfg(test)]
mod tests;
mod window;

use serde::{Deserialize, Serialize};

pub use fit::{FittedModel, SizeFit, TimeFit};
pub use split::{ThreadSplit, level_threads, split_threads};
pub use window::{FitWindow, IterationWork, WINDOW, WorkSum, size_class};

/// The classes of places from which samples are loaded: a tier of this node, another node, the
/// source. An index into `[_; 3]`.
pub const LOCAL: usize = 0;
/// As [`LOCAL`].
pub const REMOTE: usize = 1;
/// As [`LOCAL`].
pub const SOURCE: usize = 2;

/// What a node has measured, and what its ranks have before them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMeasurement {
    /// The threads of the job, for all duties together.
    pub threads: u32,
    /// The fitted model.
    pub model: FittedModel,
    /// The steps that are planned and have not retired.
    pub steps: u32,
    /// By local rank.
    pub ranks: Vec<RankPending>,
}

/// What a rank's batches of the steps that have not retired consist of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPending {
    /// Samples.
    pub samples: u64,
    /// Bytes by class.
    pub bytes: [u64; 3],
    /// Of them, what is not loaded yet.
    pub left: [u64; 3],
}

impl NodeMeasurement {
    /// Returns what the ranks need for one step: samples, and bytes by class.
    pub fn of_one_step(&self) -> (f64, [f64; 3]) {
        let steps = f64::from(self.steps.max(1));
        let samples: u64 = self.ranks.iter().map(|rank| rank.samples).sum();
        let bytes = [LOCAL, REMOTE, SOURCE].map(|class| {
            self.ranks.iter().map(|rank| rank.bytes[class]).sum::<u64>() as f64 / steps
        });
        (samples as f64 / steps, bytes)
    }
}

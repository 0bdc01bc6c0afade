//! Lobster's model (sections 4.1–4.4): how long co-located GPUs wait for their mini-batches, and
//! how a node's CPU threads are shared so that none waits much longer than the others.
//!
//! First some of the node's threads are assigned to preprocessing, as few as reach its peak
//! ([`PreprocessModel`](super::PreprocessModel), [`preprocessing_threads`]); the rest load. Every GPU has a request queue, and
//! the loading threads are assigned to the queues so that each GPU's loading plus preprocessing
//! ends when its training step does ([`assign_threads`], the paper's Algorithm 1).
//!
//! Algorithm 1 as printed contradicts the paper's text: line 18 keeps the larger time difference,
//! lines 12–15 give more threads to a GPU that is early and fewer to one that is late, lines 13 and
//! 15 never move from the initial value, and the sum over GPUs may exceed the node's threads. This
//! code follows the text.
#![allow(clippy::doc_markdown, reason = "symbols and names as the papers print them")]

#[cfg(test)]
mod tests;
mod threads;

use super::curve::{Curve, CurveError};
use super::nopfs;
use super::system::{Readers, Sharing, System};
use belady_base::units::{Bytes, Rate, Seconds};

pub use threads::{StageThreads, assign_threads, preprocessing_threads, proportional_threads};

/// T_l(α), T_r(β), T_PFS(γ): what *one* I/O thread reads while that many of the GPU's
/// threads do (section 4.3).
#[derive(Clone, Debug, PartialEq)]
pub struct ReadRates {
    /// T_l(α).
    pub local: Curve,
    /// T_r(β).
    pub remote: Curve,
    /// T_PFS(γ).
    pub source: Curve,
}

impl ReadRates {
    /// The same quantities from a [`System`]: the device's aggregate rate at n threads,
    /// divided by n. `readers` is γ, counted as the system's `readers` setting says.
    pub fn from_system(system: &System, tier: usize, readers: u32) -> Result<Self, CurveError> {
        let device = |n| system.tiers[tier].read.at(n);
        // Where γ counts nodes, this is of one of p_0 threads that share the node's part.
        let thread = nopfs::source_rate(system, readers);
        let source = |n: u32| match (system.source.sharing, system.source.readers) {
            (Sharing::PerThread, _) | (Sharing::Aggregate, Readers::Threads) => thread,
            (Sharing::Aggregate, Readers::Nodes) => {
                thread * f64::from(system.staging_threads()) / f64::from(n.max(1))
            }
        };
        let most = system.staging_threads().max(1);
        let curve =
            |rate: &dyn Fn(u32) -> Rate| Curve::new((1..=most).map(|n| (n, rate(n))).collect());
        Ok(Self {
            local: curve(&|n| device(n) / f64::from(n))?,
            remote: curve(&|n| device(n).min(system.network) / f64::from(n))?,
            source: curve(&source)?,
        })
    }
}

/// The bytes of one GPU's mini-batch by where they are: Σ s_k over B_HL, B_HR, B_M.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchBytes {
    /// B_HL: in this node's cache.
    pub local: Bytes,
    /// B_HR: in another node's cache.
    pub remote: Bytes,
    /// B_M: only in the source.
    pub source: Bytes,
}

/// α, β, γ of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadingThreads {
    /// α.
    pub local: u32,
    /// β.
    pub remote: u32,
    /// γ.
    pub source: u32,
}

impl LoadingThreads {
    /// All of a GPU's threads on each part in turn. Equation 1 adds the three times,
    /// so the parts follow one another, and Algorithm 1 deals one number a GPU.
    pub fn in_turn(threads: u32) -> Self {
        Self { local: threads, remote: threads, source: threads }
    }
}

/// Returns T_L (eq. 1), the time to load a GPU's mini-batch. Infinite when there is
/// something to load and no thread.
pub fn loading_time(rates: &ReadRates, batch: BatchBytes, threads: LoadingThreads) -> Seconds {
    let part = |bytes: Bytes, curve: &Curve, threads: u32| match (bytes, threads) {
        (Bytes::ZERO, _) => Seconds::ZERO,
        (_, 0) => Seconds(f64::INFINITY),
        (bytes, threads) => bytes / (curve.at(threads) * f64::from(threads)),
    };
    part(batch.local, &rates.local, threads.local)
        + part(batch.remote, &rates.remote, threads.remote)
        + part(batch.source, &rates.source, threads.source)
}

/// Returns T_L + T_P − T_train: positive when the data is late. Its absolute value is what
/// eq. 2 minimises.
pub fn time_difference(load: Seconds, preprocess: Seconds, train: Seconds) -> Seconds {
    load + preprocess - train
}

/// Returns T_max − T_min over a node's GPUs, which eq. 3 minimises; zero for none.
pub fn spread(times: impl IntoIterator<Item = Seconds>) -> Seconds {
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for time in times {
        least = least.min(time.0);
        most = most.max(time.0);
    }
    // Two infinite waits are equally long.
    if most > least { Seconds(most - least) } else { Seconds::ZERO }
}

//! What one simulated run measured: the data behind the table, the JSON and the report.

use serde::Serialize;

/// One policy on one scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RunOutcome {
    /// The scenario's name.
    pub scenario: String,
    /// The policy's label: its name unless the scenario gives another.
    pub policy: String,
    /// The values of swept keys, in the order of the sweep: `(key, value)`.
    pub sweep: Vec<(String, String)>,
    /// Whether every rank gets exactly the samples of its access stream, in order.
    pub keeps_order: bool,
    /// Whether the policy can run the scenario.
    pub supported: bool,
    /// Why not, if not supported.
    pub reason: Option<String>,
    /// The run's duration.
    pub seconds: f64,
    /// The compute time alone.
    pub perfect_seconds: f64,
    /// What the mean rank computes.
    pub mean_compute_seconds: f64,
    /// The least that any policy needs.
    pub bound_seconds: f64,
    /// Which resource binds the bound, by epoch.
    pub bound_by: Vec<String>,
    /// Time that the slowest rank of each iteration waited.
    pub stall_seconds: f64,
    /// Stall by its cause plus compute; sums to `seconds`.
    pub time: TimeByCause,
    /// Time before the first step.
    pub preload_seconds: f64,
    /// By epoch.
    pub epoch_seconds: Vec<f64>,
    /// Bytes read from the source, by the epoch that consumes them.
    pub source_bytes_per_epoch: Vec<u64>,
    /// The least that any policy reads from the source. Only the sum over the first epochs is a
    /// bound, not each epoch's value alone.
    pub bound_source_bytes_per_epoch: Vec<u64>,
    /// Distinct bytes that an epoch reads (S_e).
    pub distinct_bytes_per_epoch: Vec<u64>,
    /// Of the source bytes: samples that no earlier epoch used.
    pub first_reads_per_epoch: Vec<u64>,
    /// Calls on the source, by epoch.
    pub source_ops_per_epoch: Vec<SourceOps>,
    /// Bytes delivered, by where they were read.
    pub bytes: ByPlace<u64>,
    /// Shares of samples, by where they were read.
    pub hit_ratio: ByPlace<f64>,
    /// Share of iterations in which the slowest rank waits for data longer than 5 %
    /// of the iteration's compute time while some other rank does not.
    pub imbalanced_iterations: f64,
    /// The same after the first epoch.
    pub imbalanced_iterations_after_first: f64,
    /// Seconds that iterations lost to their slowest rank: what an equal distribution of the same
    /// waiting would save, plus `straggling_bound_seconds`.
    pub straggling_seconds: f64,
    /// The part of that which no placement avoids, because batches differ in bytes.
    pub straggling_bound_seconds: f64,
    /// Mean wait of the slowest rank as a share of compute, after the first epoch.
    pub mean_wait_share: f64,
    /// Requests to peers that did not have the sample.
    pub peer_misses: u64,
    /// Batch (iteration) times after the first epoch: quantiles at 0, 1, ..., 100 %.
    pub batch_seconds_quantiles: Vec<f64>,
    /// Batch times of the first epoch, likewise.
    pub first_epoch_batch_seconds_quantiles: Vec<f64>,
    /// Source bytes read for each rank after the first epoch.
    pub slow_bytes_by_rank: Vec<u64>,
    /// The largest rank's over the mean within an iteration, averaged over iterations.
    pub slow_bytes_peak_over_mean: f64,
    /// Worker seconds this simulation took: the simulator's own speed.
    pub simulated_in_seconds: f64,
}

/// Calls on the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the fields are the calls")]
pub struct SourceOps {
    pub open: u64,
    pub stat: u64,
    pub read: u64,
}

/// A value for each location that samples are read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the fields are the locations")]
pub struct ByPlace<T> {
    pub source: T,
    pub peer: T,
    pub local: T,
}

/// Seconds of the run by what the slowest rank was doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the fields are the causes")]
pub struct TimeByCause {
    pub compute: f64,
    pub preload: f64,
    pub source: f64,
    pub peer: f64,
    pub local: f64,
    pub preprocess: f64,
}

//! Measures a run, step by step, as a [`RunOutcome`].

use belady_control::Job;
use belady_control::bits::Bits;
use belady_control::sampler::SampleId;

use super::stations::Cause;
use crate::outcome::{ByPlace, RunOutcome, SourceOps};

/// A rank counts as waiting when it waits longer than this share of the compute time.
pub const WAIT_THRESHOLD: f64 = 0.05;

#[derive(Debug)]
pub struct Meter {
    epochs: usize,
    iterations: usize,
    files: u32,
    samples: u32,
    read_size: Option<f64>,
    /// Samples that some epoch has used before.
    seen: Bits,
    /// By parity of the epoch: the last epoch in which each packed file was opened. Near an
    /// epoch's end two epochs are read at a time.
    opened: [Vec<u32>; 2],
    pub outcome: RunOutcome,
    local: ByteCount,
    peer: ByteCount,
    source: ByteCount,
    imbalanced: u64,
    imbalanced_after_first: u64,
    wait_share: f64,
    first_batches: Vec<f32>,
    later_batches: Vec<f32>,
    peak_over_mean: f64,
    peak_steps: u64,
    epoch_began: f64,
    read_bytes: Vec<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ByteCount {
    samples: u64,
    bytes: u64,
}

impl ByteCount {
    fn add(&mut self, bytes: u64) {
        self.samples += 1;
        self.bytes += bytes;
    }
}

impl Meter {
    pub fn new(job: &Job, epochs: u32, iterations: u32) -> Self {
        let packed = job.packing.files < job.sizes.len();
        let count = epochs as usize;
        Self {
            epochs: count,
            iterations: iterations as usize,
            files: job.packing.files,
            samples: job.sizes.len(),
            read_size: job.packing.read_size.map(belady_control::model::Bytes::as_f64),
            seen: Bits::new(job.sizes.len()),
            opened: if packed {
                [const { vec![] }; 2].map(|_: Vec<u32>| vec![u32::MAX; job.packing.files as usize])
            } else {
                [vec![], vec![]]
            },
            outcome: RunOutcome {
                supported: true,
                epoch_seconds: vec![0.0; count],
                source_bytes_per_epoch: vec![0; count],
                first_reads_per_epoch: vec![0; count],
                source_ops_per_epoch: vec![SourceOps::default(); count],
                slow_bytes_by_rank: vec![0; job.system.ranks() as usize],
                ..RunOutcome::default()
            },
            local: ByteCount::default(),
            peer: ByteCount::default(),
            source: ByteCount::default(),
            imbalanced: 0,
            imbalanced_after_first: 0,
            wait_share: 0.0,
            first_batches: vec![],
            later_batches: vec![],
            peak_over_mean: 0.0,
            peak_steps: 0,
            epoch_began: 0.0,
            read_bytes: vec![0.0; count],
        }
    }

    pub fn local(&mut self, bytes: u64) {
        self.local.add(bytes);
    }

    pub fn peer(&mut self, bytes: u64) {
        self.peer.add(bytes);
    }

    /// Counts a sample pushed to another node's tier: network bytes, but no hit.
    pub fn pushed(&mut self, bytes: u64) {
        self.peer.bytes += bytes;
    }

    pub fn staged_from_source(&mut self, epoch: u32, sample: SampleId, bytes: u64) {
        self.source.add(bytes);
        self.source_read(epoch, sample, bytes, true);
    }

    /// Counts a read of the source: in calls of `read_size` if `small`, otherwise the whole file in
    /// one call.
    pub fn source_read(&mut self, epoch: u32, sample: SampleId, bytes: u64, small: bool) {
        let at = (epoch as usize).min(self.epochs - 1);
        self.outcome.source_bytes_per_epoch[at] += bytes;
        if self.seen.insert(sample) && at > 0 {
            self.outcome.first_reads_per_epoch[at] += bytes;
        }
        let ops = &mut self.outcome.source_ops_per_epoch[at];
        if self.opened[0].is_empty() {
            ops.open += 1;
            ops.stat += 1;
            ops.read += 1;
        } else {
            let file = u64::from(sample) * u64::from(self.files) / u64::from(self.samples);
            let opened = &mut self.opened[(epoch % 2) as usize][file as usize];
            if *opened != epoch {
                *opened = epoch;
                ops.open += 1;
                if !small {
                    ops.read += 1;
                }
            }
            if small {
                match self.read_size {
                    Some(size) => self.read_bytes[at] += bytes as f64 / size,
                    None => ops.read += 1,
                }
            }
        }
    }

    /// Records the time before the first step.
    pub fn preloaded(&mut self, seconds: f64) {
        self.outcome.preload_seconds = seconds;
        self.outcome.time.preload = seconds;
    }

    /// Counts one iteration of the whole job.
    pub fn step(&mut self, epoch: u32, step: &StepTimes<'_>) {
        let duration = step.end - step.begin;
        let stall = (duration - step.compute).max(0.0);
        let time = &mut self.outcome.time;
        time.compute += step.compute;
        self.outcome.mean_compute_seconds += step.mean_compute;
        match step.cause {
            Cause::Source => time.source += stall,
            Cause::Peer => time.peer += stall,
            Cause::Local => time.local += stall,
            Cause::Preprocess => time.preprocess += stall,
        }
        self.outcome.stall_seconds += stall;
        self.outcome.straggling_seconds += straggling(duration, step);
        let limit = WAIT_THRESHOLD * step.compute;
        let imbalanced = step.slowest_wait > limit && step.shortest_wait <= limit;
        self.imbalanced += u64::from(imbalanced);
        if epoch == 0 {
            self.first_batches.push(duration as f32);
        } else {
            self.imbalanced_after_first += u64::from(imbalanced);
            self.wait_share += step.slowest_wait / step.compute.max(f64::MIN_POSITIVE);
            self.later_batches.push(duration as f32);
            let total: u64 = step.slow_bytes.iter().sum();
            if total > 0 {
                let peak = step.slow_bytes.iter().max().copied().unwrap_or(0);
                self.peak_over_mean += peak as f64 * step.slow_bytes.len() as f64 / total as f64;
                self.peak_steps += 1;
            }
            for (sum, bytes) in self.outcome.slow_bytes_by_rank.iter_mut().zip(step.slow_bytes) {
                *sum += bytes;
            }
        }
    }

    pub fn epoch_end(&mut self, epoch: u32, now: f64) {
        self.outcome.epoch_seconds[epoch as usize] = now - self.epoch_began;
        self.epoch_began = now;
    }

    pub fn finish(mut self, seconds: f64) -> RunOutcome {
        let steps = (self.epochs * self.iterations).max(1) as f64;
        let later = ((self.epochs - 1) * self.iterations).max(1) as f64;
        let outcome = &mut self.outcome;
        outcome.seconds = seconds;
        outcome.bytes = ByPlace {
            source: outcome.source_bytes_per_epoch.iter().sum(),
            peer: self.peer.bytes,
            local: self.local.bytes,
        };
        let all = (self.local.samples + self.peer.samples + self.source.samples).max(1) as f64;
        outcome.hit_ratio = ByPlace {
            source: self.source.samples as f64 / all,
            peer: self.peer.samples as f64 / all,
            local: self.local.samples as f64 / all,
        };
        for (ops, bytes) in outcome.source_ops_per_epoch.iter_mut().zip(&self.read_bytes) {
            ops.read += bytes.ceil() as u64;
        }
        outcome.imbalanced_iterations = self.imbalanced as f64 / steps;
        outcome.imbalanced_iterations_after_first = self.imbalanced_after_first as f64 / later;
        outcome.mean_wait_share = self.wait_share / later;
        outcome.slow_bytes_peak_over_mean = self.peak_over_mean / self.peak_steps.max(1) as f64;
        outcome.batch_seconds_quantiles = quantiles(&mut self.later_batches);
        outcome.first_epoch_batch_seconds_quantiles = quantiles(&mut self.first_batches);
        self.outcome
    }
}

/// The times of one iteration.
#[derive(Debug)]
pub struct StepTimes<'a> {
    pub begin: f64,
    pub end: f64,
    /// Of the slowest rank.
    pub compute: f64,
    /// Over all ranks.
    pub mean_compute: f64,
    /// Wait and compute, over all ranks.
    pub mean_finish: f64,
    /// What the source delivered meanwhile, in seconds at its best rate.
    pub source_busy: f64,
    /// Of the rank that ends the iteration.
    pub slowest_wait: f64,
    pub shortest_wait: f64,
    pub cause: Cause,
    /// Source bytes by rank.
    pub slow_bytes: &'a [u64],
}

/// Returns the seconds that an iteration lost to its slowest rank: its duration beyond the least
/// that any other distribution of the same waiting over the ranks would take. That least is the
/// mean of wait and compute, but not less than the longest compute. While the source is saturated
/// no time is lost, whichever rank waits for it.
fn straggling(duration: f64, step: &StepTimes<'_>) -> f64 {
    let uneven = duration - step.mean_finish.max(step.compute);
    uneven.min(duration - step.source_busy).max(0.0)
}

fn quantiles(values: &mut [f32]) -> Vec<f64> {
    values.sort_by(f32::total_cmp);
    match values.len() {
        0 => vec![],
        count => (0..=100).map(|q| f64::from(values[q * (count - 1) / 100])).collect(),
    }
}

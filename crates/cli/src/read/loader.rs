//! Starts the engine for `belady read` and takes its batches, transformed if `--transform` is given.

use std::sync::Arc;
use std::time::Duration;

use belady_control::sampler::{SampleId, Step};
use belady_data::source::Source;
use belady_engine::metrics::Metrics;
use belady_engine::{
    self as engine, Delivery, Engine, EngineConfig, FieldSpec, JobConfig, Lend, Retry, TierConfig,
    TransformConfig, Transformed, share_of_staging,
};
use belady_peer::Cluster;

use super::args::{BadSamplesArg, CacheArg, ReadArgs, TransformArg};
use super::checksum::Checksum;
use super::plan::ReadPlan;

/// The batches of one rank of a job.
#[derive(Debug)]
pub struct EngineLoader {
    batches: RankBatches,
    metrics: Arc<Metrics>,
    // Dropped after the job that runs on it.
    _engine: Arc<Engine>,
}

#[derive(Debug)]
enum RankBatches {
    AsRead(engine::Loader),
    Transformed(Transformed),
}

impl EngineLoader {
    /// Starts a job and returns the loaders of its local ranks; with `peers`, it shares its caches
    /// with theirs.
    pub fn start(
        args: &ReadArgs,
        plan: &ReadPlan,
        source: Arc<dyn Source>,
        peers: Option<Arc<Cluster>>,
    ) -> anyhow::Result<Vec<Self>> {
        let near = peers.as_ref().map_or(1, |cluster| cluster.near().len());
        let near = near * args.local_ranks as usize;
        let engine = Arc::new(Engine::new(EngineConfig {
            threads: plan.threads,
            tiers: plan.caches.iter().map(tier).collect(),
            system: plan.system.clone(),
            serving_threads: plan.serving_threads,
            retry: retry(args),
            peers,
            ..EngineConfig::default()
        })?);
        let job = JobConfig {
            name: args.dataset.name(),
            order: plan.order.clone(),
            seed: args.seed,
            batch: args.batch,
            drop_last: args.drop_last,
            epochs: Some(args.epochs),
            staging: plan.staging.unwrap_or_else(|| share_of_staging(near)),
            staging_grows: plan.staging.is_none(),
            policy: args.policy,
            bad_samples: bad_samples(args),
            lend: if args.lend { Lend::ReadOnly } else { Lend::Slots },
            trace: args.trace.clone(),
            ..JobConfig::new(source)
        };
        let loaders = engine.start_ranks(&job, args.local_ranks)?;
        let loader = |loader: engine::Loader| {
            let metrics = Arc::clone(loader.metrics());
            let batches = match &args.transform {
                None => RankBatches::AsRead(loader),
                Some(steps) => RankBatches::Transformed(transformed(loader, steps, args)?),
            };
            Ok(Self { batches, metrics, _engine: engine.clone() })
        };
        loaders.into_iter().map(loader).collect()
    }

    /// Returns the next batch; `None` at the end of the run.
    pub fn next(&mut self) -> anyhow::Result<Option<ReadBatch>> {
        let batch = match &mut self.batches {
            RankBatches::AsRead(loader) => return Ok(loader.next_batch()?.map(ReadBatch::AsRead)),
            RankBatches::Transformed(stage) => stage.next_batch_timeout(Duration::MAX)?,
        };
        Ok(match batch {
            Delivery::Batch(batch) => Some(ReadBatch::Transformed(batch)),
            Delivery::Ended | Delivery::TimedOut => None,
        })
    }

    /// Returns the engine's metrics.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }
}

/// Starts to transform a rank's batches, with its share of a thread a core.
fn transformed(
    loader: engine::Loader,
    steps: &TransformArg,
    args: &ReadArgs,
) -> anyhow::Result<Transformed> {
    let cores = std::thread::available_parallelism()?.get();
    let config = TransformConfig {
        fields: vec![FieldSpec { part: None, transform: Some(steps.chain()) }],
        seed: args.seed,
        threads: (cores / args.local_ranks as usize).max(1),
        on_error: bad_samples(args),
        ..TransformConfig::default()
    };
    Ok(Transformed::new(loader, config)?)
}

fn bad_samples(args: &ReadArgs) -> engine::BadSamples {
    match args.bad_samples {
        BadSamplesArg::Raise => engine::BadSamples::Raise,
        BadSamplesArg::Skip => engine::BadSamples::Skip,
        BadSamplesArg::Replace => engine::BadSamples::Replace,
    }
}

fn tier(cache: &CacheArg) -> TierConfig {
    let capacity = cache.capacity;
    match &cache.directory {
        None => TierConfig::Ram { capacity },
        Some(directory) => TierConfig::Disk { directory: directory.clone(), capacity },
    }
}

fn retry(args: &ReadArgs) -> Retry {
    let usual = Retry::default();
    Retry {
        attempts: args.retries.map_or(usual.attempts, |retries| retries + 1),
        timeout: args.read_timeout.map_or(usual.timeout, |time| Duration::from_secs_f64(time.0)),
        ..usual
    }
}

/// A batch, lent until it is dropped.
#[derive(Debug)]
pub enum ReadBatch {
    AsRead(engine::Batch),
    Transformed(engine::OutputBatch),
}

impl ReadBatch {
    /// Returns the batch's epoch and iteration.
    pub fn step(&self) -> Step {
        match self {
            Self::AsRead(batch) => batch.step(),
            Self::Transformed(batch) => batch.step,
        }
    }

    /// Returns the batch's samples.
    pub fn samples(&self) -> Vec<SampleId> {
        match self {
            Self::AsRead(batch) => batch.iter().map(|sample| sample.id).collect(),
            Self::Transformed(batch) => batch.samples.to_vec(),
        }
    }

    /// Returns the bytes that were read for the batch.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::AsRead(batch) => batch.iter().map(|sample| sample.bytes().len() as u64).sum(),
            Self::Transformed(batch) => batch.read_bytes,
        }
    }

    /// Adds the samples to a checksum; only those of a batch as it was read have one.
    pub fn add_to(&self, checksum: &mut Checksum) {
        if let Self::AsRead(batch) = self {
            batch.iter().for_each(|sample| checksum.add(sample.id, sample.bytes()));
        }
    }
}

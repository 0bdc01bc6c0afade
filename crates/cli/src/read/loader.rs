//! Starts the engine for `belady read` and takes its batches.

use std::sync::Arc;
use std::time::Duration;

use belady_control::sampler::{SampleId, Step};
use belady_data::source::Source;
use belady_engine::metrics::Metrics;
use belady_engine::{
    self as engine, Engine, EngineConfig, JobConfig, Lend, Retry, TierConfig, share_of_staging,
};
use belady_peer::Cluster;

use super::args::{BadSamplesArg, CacheArg, ReadArgs};
use super::plan::ReadPlan;

/// The batches of one rank of a job.
#[derive(Debug)]
pub struct EngineLoader {
    loader: engine::Loader,
    // Dropped after the job that runs on it.
    _engine: Arc<Engine>,
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
            bad_samples: match args.bad_samples {
                BadSamplesArg::Raise => engine::BadSamples::Raise,
                BadSamplesArg::Skip => engine::BadSamples::Skip,
                BadSamplesArg::Replace => engine::BadSamples::Replace,
            },
            lend: if args.lend { Lend::ReadOnly } else { Lend::Slots },
            trace: args.trace.clone(),
            ..JobConfig::new(source)
        };
        let loaders = engine.start_ranks(&job, args.local_ranks)?;
        Ok(loaders.into_iter().map(|loader| Self { loader, _engine: engine.clone() }).collect())
    }

    /// Returns the next batch; `None` at the end of the run.
    pub fn next(&mut self) -> anyhow::Result<Option<ReadBatch>> {
        Ok(self.loader.next_batch()?.map(ReadBatch))
    }

    /// Returns the engine's metrics.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(self.loader.metrics())
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
pub struct ReadBatch(engine::Batch);

impl ReadBatch {
    /// Returns the batch's epoch and iteration.
    pub fn step(&self) -> Step {
        self.0.step()
    }

    /// Returns the batch's samples with their bytes.
    pub fn samples(&self) -> impl Iterator<Item = (SampleId, &[u8])> {
        self.0.iter().map(|sample| (sample.id, sample.bytes()))
    }
}

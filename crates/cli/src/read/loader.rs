//! The one file of the command that knows the engine.

use std::sync::Arc;
use std::time::Duration;

use belady_control::sampler::{SampleId, Step};
use belady_data::source::Source;
use belady_engine::metrics::Metrics;
use belady_engine::{
    self as engine, Engine, EngineConfig, JobConfig, Lend, Retry, TierConfig, share_of_staging,
};
use belady_peer::Cluster;

use super::args::{BadSamples, Cache, ReadArgs};
use super::plan::Plan;

/// A job on an engine of its own.
#[derive(Debug)]
pub struct Loader {
    loader: engine::Loader,
    // Goes after the job that runs on it.
    _engine: Engine,
}

impl Loader {
    /// With `peers`, one of several that are one cache.
    pub fn start(
        args: &ReadArgs,
        plan: &Plan,
        source: Arc<dyn Source>,
        peers: Option<Arc<Cluster>>,
    ) -> anyhow::Result<Self> {
        let near = peers.as_ref().map_or(1, |cluster| cluster.near().len());
        let engine = Engine::new(EngineConfig {
            threads: plan.threads,
            tiers: plan.caches.iter().map(tier).collect(),
            system: plan.system.clone(),
            retry: retry(args),
            peers,
            ..EngineConfig::default()
        })?;
        let loader = engine.start(&JobConfig {
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
                BadSamples::Raise => engine::BadSamples::Raise,
                BadSamples::Skip => engine::BadSamples::Skip,
                BadSamples::Replace => engine::BadSamples::Replace,
            },
            lend: if args.lend { Lend::ReadOnly } else { Lend::Slots },
            trace: args.trace.clone(),
            ..JobConfig::new(source)
        })?;
        Ok(Self { loader, _engine: engine })
    }

    pub fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        Ok(self.loader.next_batch()?.map(Batch))
    }

    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(self.loader.metrics())
    }
}

fn tier(cache: &Cache) -> TierConfig {
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
pub struct Batch(engine::Batch);

impl Batch {
    pub fn step(&self) -> Step {
        self.0.step()
    }

    /// The samples that are there, with their bytes.
    pub fn samples(&self) -> impl Iterator<Item = (SampleId, &[u8])> {
        self.0.iter().map(|sample| (sample.id, sample.bytes()))
    }
}

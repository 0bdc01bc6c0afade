//! Combines the options of `belady read` with the system file; options take precedence.

use belady_control::model::{Bytes, System};
use belady_control::sampler::{AccessStream, Order, SamplerError, Scheme, StreamConfig};
use belady_peer::JobWorld;
use belady_scenario::{Snapshot, SystemFile, system_file};

use super::args::{CacheArg, OrderName, ReadArgs, ThreadsArg};
use crate::metrics::MetricsPort;
use crate::usage::UsageError;
use belady_base::environment;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    pub system: Option<System>,
    /// Threads that look up samples for other nodes, if they are limited.
    pub serving_threads: Option<u32>,
    /// `None` for the engine's choice.
    pub threads: Option<u32>,
    /// The staging buffer of this process; `None` for its share of the default of the node.
    pub staging: Option<Bytes>,
    pub caches: Vec<CacheArg>,
    pub order: Order,
    /// The system file's setting, which options override.
    pub snapshot: Option<Snapshot>,
    pub metrics: Option<MetricsPort>,
}

impl ReadPlan {
    /// Reads the system file and combines it with the options.
    pub fn new(args: &ReadArgs) -> anyhow::Result<Self> {
        let file = args.system.clone().or_else(|| environment::SYSTEM.value().map(Into::into));
        let file = file.map(|path| system_file(&path)).transpose()?;
        let staging_tier = file.as_ref().map(|file| &file.system.tiers[0]);
        let threads = match args.threads {
            ThreadsArg::Exactly(threads) => Some(threads),
            ThreadsArg::Auto => staging_tier.map(|tier| tier.threads),
        };
        let staging = args.staging.or(staging_tier.map(|tier| tier.capacity));
        let caches = match &file {
            Some(file) if args.cache.is_empty() => described_caches(file),
            _ => args.cache.clone(),
        };
        Ok(Self {
            threads,
            staging,
            caches,
            order: match args.order {
                OrderName::Torch => Order::Torch,
                OrderName::Permutation => Order::Permutation,
                OrderName::Sequential => Order::Sequential,
            },
            serving_threads: file.as_ref().and_then(|file| file.serving_threads),
            snapshot: file.as_ref().and_then(|file| file.snapshot.clone()),
            system: file.map(|file| file.system),
            metrics: args.metrics.as_deref().map(MetricsPort::at).transpose()?,
        })
    }

    /// Returns the accesses of the run, which the loader must deliver.
    pub fn stream(
        &self,
        args: &ReadArgs,
        world: JobWorld,
        samples: u32,
    ) -> Result<AccessStream, UsageError> {
        let ranks = world.size.saturating_mul(args.local_ranks);
        let batch = args.batch.checked_mul(ranks).ok_or_else(|| {
            UsageError::new(format!("--batch {} is too large for {ranks} ranks", args.batch))
        })?;
        AccessStream::new(StreamConfig {
            samples,
            ranks,
            batch,
            order: self.order.clone(),
            scheme: Scheme::Uniform,
            seed: args.seed,
            sampler_drop_last: false,
            drop_last: args.drop_last,
        })
        .map_err(|error| match error {
            SamplerError::NoIterations { .. } => UsageError::new(format!(
                "--batch {} on {ranks} rank(s) is more than the dataset's {samples} samples: with \
                 --drop-last no batch is left, use a smaller --batch",
                args.batch
            )),
            other => UsageError::new(other.to_string()),
        })
    }
}

/// Returns all tiers of the system file except the staging buffer.
fn described_caches(file: &SystemFile) -> Vec<CacheArg> {
    let tiers = file.system.tiers.iter().zip(&file.tier_paths).skip(1);
    tiers
        .map(|(tier, path)| CacheArg { directory: path.clone(), capacity: tier.capacity })
        .collect()
}

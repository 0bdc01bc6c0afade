//! From options as typed to a run: the system file fills in what the command leaves open.

use belady_control::model::{Bytes, System};
use belady_control::sampler::{AccessStream, Order, SamplerError, Scheme, StreamConfig};
use belady_peer::World;
use belady_sim::scenario::{Snapshot, SystemFile, system_file};

use super::args::{Cache, OrderName, ReadArgs, Threads};
use crate::environment;
use crate::metrics::MetricsPort;
use crate::usage::UsageError;

/// What the command and the system file say together.
#[derive(Clone, Debug)]
pub struct Plan {
    pub system: Option<System>,
    /// `None` for as many as suit the machine.
    pub threads: Option<u32>,
    /// Of this process; `None` for its part of what a node's processes take together.
    pub staging: Option<Bytes>,
    pub caches: Vec<Cache>,
    pub order: Order,
    /// What the system file says; options come before it.
    pub snapshot: Option<Snapshot>,
    pub metrics: Option<MetricsPort>,
}

impl Plan {
    pub fn new(args: &ReadArgs) -> anyhow::Result<Self> {
        let file = args.system.clone().or_else(|| environment::SYSTEM.value().map(Into::into));
        let file = file.map(|path| system_file(&path)).transpose()?;
        let staging_tier = file.as_ref().map(|file| &file.system.tiers[0]);
        let threads = match args.threads {
            Threads::Exactly(threads) => Some(threads),
            Threads::Auto => staging_tier.map(|tier| tier.threads),
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
            snapshot: file.as_ref().and_then(|file| file.snapshot.clone()),
            system: file.map(|file| file.system),
            metrics: args.metrics.as_deref().map(MetricsPort::at).transpose()?,
        })
    }

    /// What the loader promises, to check it against.
    pub fn stream(
        &self,
        args: &ReadArgs,
        world: World,
        samples: u32,
    ) -> Result<AccessStream, UsageError> {
        let ranks = world.size;
        let batch = args.batch.checked_mul(ranks).ok_or_else(|| {
            UsageError::new(format!("--batch {} is too much for {ranks} ranks", args.batch))
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
                "--batch {batch} is more than the dataset's {samples} samples: with --drop-last no \
                 batch is left",
            )),
            other => UsageError::new(other.to_string()),
        })
    }
}

/// All tiers but the staging buffer.
fn described_caches(file: &SystemFile) -> Vec<Cache> {
    let tiers = file.system.tiers.iter().zip(&file.tier_paths).skip(1);
    tiers.map(|(tier, path)| Cache { directory: path.clone(), capacity: tier.capacity }).collect()
}

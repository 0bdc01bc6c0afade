//! The job that all nodes run.

use std::sync::Arc;

use belady_control::model::Bytes;
use belady_control::sampler::{AccessStream, Order, Scheme, StreamConfig};
use belady_data::source::{Source, Synthetic};
use belady_engine::JobConfig;

pub const NODES: u32 = 4;
const SAMPLES: u32 = 960;
const BATCH: u32 = 8;

/// The dataset: every process can make it, and knows its bytes.
pub fn source() -> Arc<Synthetic> {
    let sizes = (0..SAMPLES).map(|sample| 2000 + u64::from(sample * 7919 % 4000));
    Arc::new(Synthetic::of_sizes(sizes, 7))
}

/// Memory and disk of one node: all together they are slightly larger than the dataset.
pub fn capacities(source: &Synthetic) -> (u64, u64) {
    let each = source.catalog().sizes().total().0 * 105 / 100 / u64::from(NODES);
    // A disk tier allocates blocks of 4 KiB, so small samples take more.
    (each / 2, each * 2)
}

pub fn config(source: &Arc<Synthetic>, seed: u64, epochs: u32) -> JobConfig {
    JobConfig {
        seed,
        batch: BATCH,
        epochs: Some(epochs),
        staging: Bytes(1 << 20),
        ..JobConfig::new(source.clone())
    }
}

/// Returns the samples that every rank should get.
pub fn stream(seed: u64) -> anyhow::Result<AccessStream> {
    Ok(AccessStream::new(StreamConfig {
        samples: SAMPLES,
        ranks: NODES,
        batch: BATCH * NODES,
        order: Order::Torch,
        scheme: Scheme::Uniform,
        seed,
        sampler_drop_last: false,
        drop_last: false,
    })?)
}

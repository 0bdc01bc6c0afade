//! The size of the staging buffer, and the ring in it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_control::sampler::Order;
use belady_data::source::Source;
use belady_data::stage::{RingConfig, RingConsumer, RingProducer, SharedMemory, mapped_ring, ring};

use crate::EngineError;
use crate::config::{JobConfig, RingKind};

/// Batches in the ring at a time: far more than keep a consumer busy.
const BATCHES: u32 = 1024;
/// Slots begin at a cache line, where copying is fastest.
const SMALL_ALIGN: usize = 64;
/// Slots of large samples begin at a disk's block, so that direct reads go straight there.
const LARGE_ALIGN: usize = 512;
/// The mean size from which the space lost to that is less than 2 %.
const LARGE: u64 = 16 << 10;

/// Returns the ring, if two of the largest known batches fit into the staging buffer, and the bytes
/// of the largest one; half of the ring if no batch is known.
pub fn ring_config(config: &JobConfig, sizes: &Sizes) -> Result<(RingConfig, u64), EngineError> {
    let batch = match &config.order {
        Order::Given(lists) => {
            config.batch.min(lists.iter().map(Vec::len).max().unwrap_or(0) as u32)
        }
        Order::Provided(orders) => orders.largest_batch().unwrap_or(0),
        Order::Torch | Order::Permutation | Order::Sequential => config.batch.min(sizes.len()),
    };
    let align = alignment(sizes);
    let largest = largest_batch(&config.order, sizes, batch);
    let needed = Bytes(RingConfig::needed(largest, batch, align));
    if config.staging < needed && !config.staging_grows {
        return Err(EngineError::StagingTooSmall { given: config.staging, needed, batch });
    }
    let capacity = config.staging.max(needed).0 as usize;
    let largest = if batch > 0 { largest } else { capacity as u64 / 2 };
    Ok((RingConfig { capacity, batches: BATCHES, align }, largest))
}

pub fn make_ring(
    kind: RingKind,
    config: &RingConfig,
) -> Result<(RingProducer, RingConsumer, Option<SharedMemory>), EngineError> {
    Ok(match kind {
        RingKind::Private => {
            let (producer, consumer) = ring(config)?;
            (producer, consumer, None)
        }
        RingKind::Shared | RingKind::Writable => {
            let (producer, consumer, memory) = mapped_ring(config, kind == RingKind::Writable)?;
            (producer, consumer, Some(memory))
        }
    })
}

/// Returns the smallest staging buffer for batches of so many samples, if no batch repeats a
/// sample.
pub fn staging_needed(source: &dyn Source, batch: u32) -> Bytes {
    let sizes = source.catalog().sizes();
    let batch = batch.min(sizes.len());
    let largest = largest_batch(&Order::Sequential, &sizes, batch);
    Bytes(RingConfig::needed(largest, batch, alignment(&sizes)))
}

fn alignment(sizes: &Sizes) -> usize {
    let mean = sizes.total().0 / u64::from(sizes.len().max(1));
    if mean >= LARGE { LARGE_ALIGN } else { SMALL_ALIGN }
}

/// Returns the most bytes that a batch can have. A given order is searched, since it may repeat
/// samples; a batch of any other order is at most the largest samples together. (A provided order
/// may repeat samples too: the planner checks its batches as they come.)
fn largest_batch(order: &Order, sizes: &Sizes, batch: u32) -> u64 {
    if let Order::Given(lists) = order {
        let size = |&sample: &u32| if sample < sizes.len() { sizes.get(sample) } else { 0 };
        let bytes = |batch: &[u32]| batch.iter().map(size).sum();
        let batches = lists.iter().flat_map(|list| list.chunks(batch.max(1) as usize));
        return batches.map(bytes).max().unwrap_or(0);
    }

    let most = batch.min(sizes.len()) as usize;
    let mut largest = BinaryHeap::with_capacity(most + 1);
    for sample in 0..sizes.len() {
        let size = Reverse(sizes.get(sample));
        if largest.len() < most {
            largest.push(size);
        } else if largest.peek().is_some_and(|least| size < *least) {
            largest.pop();
            largest.push(size);
        }
    }
    largest.into_iter().map(|size| size.0).sum()
}

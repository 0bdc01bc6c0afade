//! How long `belady` takes to plan epochs, and how much memory that needs at most. Prints one
//! object of JSON.
//!
//!     cargo run --release -p belady-control --example plan_speed -- 14000000

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use belady_control::Sizes;
use belady_control::job::{Job, Packing};
use belady_control::model::{
    Bytes, Curve, Pipeline, Rate, Readers, Sharing, SourceModel, System, TierModel,
};
use belady_control::policy::{self, PolicyKind};
use belady_control::sampler::{AccessStream, Order, Scheme, StreamConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let samples: u32 = std::env::args().nth(1).map_or(Ok(1_281_167), |number| number.parse())?;
    let sizes: Vec<u64> =
        (0..samples).map(|sample| 32 + u64::from(sample.wrapping_mul(0x9e37_79b9) >> 26)).collect();
    let sizes = Sizes::from_bytes(sizes);
    let quarter = Bytes(sizes.total().0 / 4);
    let job = Arc::new(Job {
        system: system(quarter),
        stream: AccessStream::new(StreamConfig {
            samples,
            ranks: 1,
            batch: 1024,
            order: Order::Torch,
            scheme: Scheme::Uniform,
            seed: 0,
            sampler_drop_last: false,
            drop_last: false,
        })?,
        sizes,
        epochs: None,
        packing: Packing { files: samples, read_size: None },
    });
    let plan = policy::plan(&PolicyKind::Belady, &job)?;
    let orders: Vec<_> = (0..4).map(|epoch| Arc::new(job.stream.epoch(epoch))).collect();
    let before = anonymous();
    let (peak, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let seconds: Vec<f64> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                peak.fetch_max(anonymous(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let seconds = (0..3).map(|epoch| {
            let began = on_cpu();
            plan.begin_epoch(epoch, &orders[epoch as usize], orders.get(epoch as usize + 1));
            on_cpu() - began
        });
        let seconds = seconds.collect();
        stop.store(true, Ordering::Relaxed);
        seconds
    });
    let beyond = peak.into_inner().saturating_sub(before) as f64 / f64::from(samples);
    println!(
        "{{\"samples\": {samples}, \"seconds\": {seconds:?}, \"bytes_a_sample\": {beyond:.2}}}"
    );
    Ok(())
}

/// One node, with a RAM and a disk tier.
fn system(cache: Bytes) -> System {
    let tier = |name: &str, capacity| TierModel {
        name: name.into(),
        capacity,
        by_node: vec![],
        threads: 4,
        read: Curve::flat(Rate(1e9)),
        write: Curve::flat(Rate(1e9)),
    };
    System {
        nodes: 1,
        ranks_per_node: 1,
        compute: Rate(1e12).into(),
        preprocess: Rate(1e12).into(),
        network: Rate(1e12),
        source: SourceModel {
            throughput: Curve::flat(Rate(1e8)),
            link: Rate(1e12),
            sharing: Sharing::Aggregate,
            readers: Readers::Threads,
        },
        tiers: vec![tier("staging", Bytes(64 << 20)), tier("ram", cache), tier("disk", cache)],
        pipeline: Pipeline::Overlapped,
    }
}

/// Seconds that this thread has had a core, which a busy machine does not change.
fn on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split_whitespace().next().and_then(|number| number.parse().ok());
    nanoseconds.unwrap_or(0.0) * 1e-9
}

/// Anonymous memory of this process.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

//! Delivers millions of samples of 0 B to 4 MiB from an unreliable source, and checks every byte
//! and every order. Prints one object of JSON; exits with 1 if anything was wrong.
//!
//!     cargo run --release -p belady-engine --example soak -- --samples 10000000
//!
//! Records memory and descriptors at each epoch's start. The memory of the ring and the tiers is
//! used as it fills, so a quota that fills late looks like a leak. Hence the first fifth of the
//! epochs warms up: at each start the consumer pauses until the ring is full. Freed memory that the
//! allocator keeps looks like a leak too: `MALLOC_MMAP_THRESHOLD_=131072` makes glibc return large
//! blocks. `--leak 4` leaks four bytes a sample on purpose, to show that a leak is detected.

mod arguments;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arguments::{Arguments, cpu_seconds};
use belady_control::model::Bytes;
use belady_data::source::{Fault, FaultSpec, Faulty, Source, Synthetic, ThrottleSpec, Throttled};
use belady_engine::metrics::{Metrics, TierSnapshot};
use belady_engine::{Engine, EngineConfig, JobConfig, Retry, TierConfig};

const STAGING: Bytes = Bytes(320 << 20);

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments = Arguments::new(&["samples", "dataset", "mean", "rate", "leak", "directory"])?;
    let wanted: u64 = arguments.get("samples", 1_000_000)?;
    let dataset: u32 = arguments.get("dataset", 200_000)?;
    let mean = arguments.get("mean", Bytes(8192))?;
    let rate = arguments.get("rate", 0.001)?;
    let leak: usize = arguments.get("leak", 0)?;
    let directory: PathBuf =
        arguments.get("directory", std::env::temp_dir().display().to_string())?.into();
    let cache = directory.join(format!("belady-soak-{}", std::process::id()));

    let spec = FaultSpec { hang: Duration::from_millis(240), ..FaultSpec::all_at(rate, 11) };
    // Slower than the disk, which would be bypassed otherwise.
    let throttle: ThrottleSpec = "1:1GB/s".parse()?;
    let throttled = Throttled::new(Synthetic::of_mean(dataset, mean, 7), throttle, 3);
    let source = Arc::new(Faulty::new(throttled, spec));
    let total = source.catalog().sizes().total().0;
    let engine = Engine::new(EngineConfig {
        threads: Some(8),
        tiers: vec![
            TierConfig::Ram { capacity: Bytes(total / 4) },
            TierConfig::Disk { directory: cache.clone(), capacity: Bytes(total / 4) },
        ],
        retry: Retry {
            attempts: 50,
            backoff: Duration::from_micros(200),
            timeout: Duration::from_millis(100),
        },
        ..EngineConfig::default()
    })?;
    let dynamic: Arc<dyn Source> = source.clone();
    let epochs = wanted.div_ceil(u64::from(dataset)) as u32;
    let config =
        JobConfig { batch: 32, epochs: Some(epochs), staging: STAGING, ..JobConfig::new(dynamic) };
    let mut loader = engine.start(&config)?;
    let job = loader.job().clone();

    let began = Instant::now();
    let (mut delivered, mut wrong_bytes, mut wrong_order) = (0u64, 0u64, 0u64);
    let mut order = None;
    let warm_up = epochs / 5;
    let mut usages = vec![];
    while let Some(batch) = loader.next_batch()? {
        let step = batch.step();
        if step.iteration == 0 {
            order = Some(job.stream.epoch(step.epoch));
            if step.epoch < warm_up {
                wait_until_full(loader.metrics());
            }
            usages.push(usage()?);
        }
        let promised = order.as_ref().map(|order| order.batch(0, step.iteration));
        let seen = batch.iter().map(|sample| sample.id);
        wrong_order += u64::from(!promised.is_some_and(|promised| promised.eq(seen)));
        for sample in batch.iter() {
            delivered += 1;
            wrong_bytes += u64::from(!source.source().source().verify(sample.id, sample.bytes()));
        }
        // Not zeros, which take no memory until they are written.
        Box::leak(vec![1u8; leak * batch.len()].into_boxed_slice());
    }
    let seconds = began.elapsed().as_secs_f64();
    usages.push(usage()?);
    let seen = loader.metrics().snapshot();
    let tiers = loader.tiers();
    drop(loader);
    drop(engine);
    let _ = std::fs::remove_dir_all(&cache);
    let faults: BTreeMap<String, u64> = Fault::ALL
        .iter()
        .map(|&fault| (format!("{fault:?}").to_lowercase(), source.count(fault)))
        .collect();
    let exact = wrong_bytes == 0 && wrong_order == 0 && delivered >= wanted;
    let result = serde_json::json!({
        "samples": delivered, "bytes": seen.delivered.bytes, "exact": exact,
        "wrong_bytes": wrong_bytes, "wrong_order": wrong_order, "epochs": epochs,
        "dataset_bytes": total, "seconds": seconds, "cpu_seconds": cpu_seconds(),
        "faults": faults, "retries": seen.retries, "timeouts": seen.timeouts,
        "source_bytes": seen.operations.bytes,
        "tiers": tiers.iter().map(|tier| tier.used.0).collect::<Vec<_>>(),
        "quotas": total / 4 + STAGING.0, "dataset": dataset, "warm_up_epochs": warm_up,
        "memory": usages.iter().map(|usage| usage.memory).collect::<Vec<_>>(),
        "descriptors": usages.iter().map(|usage| usage.files).collect::<Vec<_>>(),
        "threads": usages.iter().map(|usage| usage.threads).collect::<Vec<_>>(),
    });
    println!("{result}");
    Ok(if exact { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits until the ring is full and nothing is loaded.
fn wait_until_full(metrics: &Metrics) {
    let loaded = || {
        let seen = metrics.snapshot();
        let tiers = seen.tiers.iter().map(TierSnapshot::bytes).sum::<u64>();
        seen.source.bytes + seen.ring.bytes + tiers
    };
    let mut before = None;
    while before != Some(loaded()) {
        before = Some(loaded());
        // Longer than the longest wait between two reads, that of a hung one.
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The memory and descriptors of the process at one moment.
struct Usage {
    /// Anonymous and shared memory, without mapped files.
    memory: u64,
    files: usize,
    threads: u64,
}

fn usage() -> std::io::Result<Usage> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    let files = std::fs::read_dir("/proc/self/fd")?.count();
    let memory = (field("RssAnon:") + field("RssShmem:")) * 1024;
    Ok(Usage { memory, files, threads: field("Threads:") })
}

//! Millions of samples of 0 B to 4 MiB through an unreliable source, every byte and every
//! order checked. Prints one line of JSON; exits with 1 if anything was wrong.
//!
//!     cargo run --release -p belady-engine --example soak -- [SAMPLES] [DATASET] [MEAN] [RATE] [DIRECTORY]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belady_control::model::Bytes;
use belady_data::source::{Fault, FaultSpec, Faulty, Source, Synthetic};
use belady_engine::{Engine, EngineConfig, JobConfig, Retry, TierConfig};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: f64| -> f64 {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (wanted, dataset) = (number(0, 1e6) as u64, number(1, 100_000.0) as u32);
    let (mean, rate) = (Bytes(number(2, 8192.0) as u64), number(3, 0.001));
    let directory = arguments.get(4).map_or_else(std::env::temp_dir, PathBuf::from);
    let cache = directory.join(format!("belady-soak-{}", std::process::id()));

    let spec = FaultSpec { hang: Duration::from_millis(60), ..FaultSpec::all_at(rate, 11) };
    let source = Arc::new(Faulty::new(Synthetic::of_mean(dataset, mean, 7), spec));
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
            timeout: Duration::from_millis(25),
        },
        ..EngineConfig::default()
    })?;
    let dynamic: Arc<dyn Source> = source.clone();
    let epochs = wanted.div_ceil(u64::from(dataset)) as u32;
    let config = JobConfig {
        batch: 32,
        epochs: Some(epochs),
        staging: Bytes(320 << 20),
        ..JobConfig::new(dynamic)
    };
    let mut loader = engine.start(&config)?;
    let job = loader.job().clone();

    let began = Instant::now();
    let (mut delivered, mut wrong_bytes, mut wrong_order) = (0u64, 0u64, 0u64);
    let mut order = None;
    let mut early = None;
    while let Some(batch) = loader.next_batch()? {
        let step = batch.step();
        if step.iteration == 0 {
            order = Some(job.stream.epoch(step.epoch));
            if step.epoch == 3.min(epochs / 2) {
                early = Some(usage()?);
            }
        }
        let promised = order.as_ref().map(|order| order.batch(0, step.iteration));
        let seen = batch.iter().map(|sample| sample.id);
        wrong_order += u64::from(!promised.is_some_and(|promised| promised.eq(seen)));
        for sample in batch.iter() {
            delivered += 1;
            wrong_bytes += u64::from(!source.source().verify(sample.id, sample.bytes()));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let (early, late) = (early.unwrap_or_default(), usage()?);
    let seen = loader.metrics().snapshot();
    let tiers = loader.tiers();
    drop(loader);
    drop(engine);
    let _ = std::fs::remove_dir_all(&cache);
    let faults: Vec<u64> = Fault::ALL.iter().map(|&fault| source.count(fault)).collect();
    println!(
        "{{\"delivered\": {delivered}, \"epochs\": {epochs}, \"seconds\": {seconds:.1}, \
         \"bytes\": {}, \"dataset_bytes\": {total}, \"wrong_bytes\": {wrong_bytes}, \
         \"wrong_order\": {wrong_order}, \"faults\": {faults:?}, \"retries\": {}, \
         \"timeouts\": {}, \"source_bytes\": {}, \"tiers\": [{}, {}], \
         \"anonymous_early\": {}, \"anonymous_late\": {}, \"files_early\": {}, \
         \"files_late\": {}, \"threads_late\": {}}}",
        seen.delivered.bytes,
        seen.retries,
        seen.timeouts,
        seen.operations.bytes,
        tiers[0].used.0,
        tiers[1].used.0,
        early.anonymous,
        late.anonymous,
        early.files,
        late.files,
        late.threads,
    );
    let good = wrong_bytes == 0 && wrong_order == 0 && delivered >= wanted;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[derive(Clone, Copy, Default)]
struct Usage {
    anonymous: u64,
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
    Ok(Usage { anonymous: field("RssAnon:") * 1024, files, threads: field("Threads:") })
}

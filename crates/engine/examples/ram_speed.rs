//! How fast samples come out of the RAM tier, with and without a copy. Prints one line of JSON.
//!
//!     cargo run --release -p belady-engine --example ram_speed -- SIZE SAMPLES BATCH SECONDS slots|read-only [THREADS]

use std::sync::Arc;
use std::time::{Duration, Instant};

use belady_control::model::Bytes;
use belady_data::source::{Source, Synthetic};
use belady_engine::{Engine, EngineConfig, JobConfig, Lend, TierConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| -> u64 {
        arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (size, samples, batch) = (number(0, 110_000), number(1, 10_000), number(2, 64));
    let limit = Duration::from_secs(number(3, 5));
    let lend = match arguments.get(4).map(String::as_str) {
        Some("read-only") => Lend::ReadOnly,
        _ => Lend::Slots,
    };
    let threads = arguments.get(5).and_then(|text| text.parse().ok());
    let source: Arc<dyn Source> = Arc::new(Synthetic::of_sizes(vec![size; samples as usize], 1));
    let capacity = Bytes((size.next_multiple_of(16) + 16) * samples);
    let tiers = vec![TierConfig::Ram { capacity }];
    let engine = Engine::new(EngineConfig { threads, tiers, ..EngineConfig::default() })?;
    let mut loader = engine.start(&JobConfig {
        batch: batch as u32,
        epochs: None,
        lend,
        staging: Bytes((8 * batch * size.next_multiple_of(64) + (1 << 20)).max(64 << 20)),
        ..JobConfig::new(source)
    })?;
    // Two epochs to fill the tier and to be past the boundary.
    let warm = 2 * samples.div_ceil(batch);
    for _ in 0..warm {
        loader.next_batch()?;
    }
    let before = loader.metrics().snapshot();
    let cpu = cpu_seconds();
    let began = Instant::now();
    let (mut count, mut bytes, mut touched) = (0u64, 0u64, 0u64);
    while began.elapsed() < limit {
        let Some(batch) = loader.next_batch()? else { break };
        for sample in batch.iter() {
            count += 1;
            bytes += sample.bytes().len() as u64;
            touched += u64::from(sample.bytes()[0]);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let seen = &loader.metrics().snapshot() - &before;
    if std::env::var_os("SHOW").is_some() {
        eprintln!("{seen:#?}");
    }
    println!(
        "{{\"size\": {size}, \"lend\": \"{lend:?}\", \"seconds\": {seconds:.3}, \"samples_per_s\": {:.0}, \
         \"bytes_per_s\": {:.0}, \"cpu_seconds\": {:.3}, \"source_bytes\": {}, \"touched\": {touched}}}",
        count as f64 / seconds,
        bytes as f64 / seconds,
        cpu_seconds() - cpu,
        seen.source.bytes,
    );
    Ok(())
}

fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

//! Measures the memory of a job beside its quotas: a dataset of many small samples, with a RAM and
//! a disk tier that hold a quarter of it each, through a few epochs. Prints one object of JSON.
//!
//!     cargo run --release -p belady-engine --example memory -- --samples 14000000
//!
//! The source generates its samples, so its catalog is in anonymous memory, where that of files
//! would be mapped: memory from before the engine starts does not count.

mod arguments;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arguments::{Arguments, cpu_seconds};
use belady_control::model::Bytes;
use belady_data::source::{Source, Synthetic};
use belady_engine::{Engine, EngineConfig, JobConfig, TierConfig};

const STAGING: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::new(&["samples", "epochs", "threads", "directory"])?;
    let samples: u32 = arguments.get("samples", 1_281_167)?;
    let epochs: u32 = arguments.get("epochs", 4)?;
    let directory: PathBuf =
        arguments.get("directory", std::env::temp_dir().display().to_string())?.into();
    let directory = directory.join(format!("belady-memory-{}", std::process::id()));

    // Small, and of different sizes: equal sizes need no list.
    let sizes = (0..samples).map(|sample| 32 + u64::from(sample.wrapping_mul(0x9e37_79b9) >> 26));
    let source = Arc::new(Synthetic::of_sizes(sizes, 7));
    let total = source.catalog().sizes().total().0;
    let tier = Bytes(total / 4);
    let before = anonymous();
    let peak = Arc::new(Peak::default());
    let watcher = peak.clone().watch();

    let began = Instant::now();
    let engine = Engine::new(EngineConfig {
        threads: Some(arguments.get("threads", 4)?),
        tiers: vec![
            TierConfig::Ram { capacity: tier },
            TierConfig::Disk { directory: directory.clone(), capacity: tier },
        ],
        ..EngineConfig::default()
    })?;
    let source: Arc<dyn Source> = source;
    let config = JobConfig {
        batch: 1024,
        epochs: Some(epochs),
        staging: Bytes(STAGING),
        ..JobConfig::new(source)
    };
    let mut loader = engine.start(&config)?;
    let mut delivered = 0;
    while let Some(batch) = loader.next_batch()? {
        delivered += batch.len() as u64;
    }
    let seconds = began.elapsed().as_secs_f64();
    drop((loader, engine));
    peak.stop.store(true, Ordering::Relaxed);
    let _ = watcher.join();
    let _ = std::fs::remove_dir_all(&directory);

    let peak = peak.bytes.load(Ordering::Relaxed).saturating_sub(before);
    let quotas = STAGING + tier.0;
    let result = serde_json::json!({
        "samples": samples, "epochs": epochs, "delivered": delivered, "seconds": seconds,
        "cpu_seconds": cpu_seconds(), "quotas": quotas, "peak": peak,
        "allowed": quotas + (64 << 20) + 16 * u64::from(samples),
        "beyond_quotas_a_sample": peak.saturating_sub(quotas) as f64 / f64::from(samples),
    });
    println!("{result}");
    Ok(())
}

/// The peak of the memory.
#[derive(Default)]
struct Peak {
    bytes: AtomicU64,
    stop: AtomicBool,
}

impl Peak {
    fn watch(self: Arc<Self>) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || {
            while !self.stop.load(Ordering::Relaxed) {
                self.bytes.fetch_max(anonymous(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        })
    }
}

/// Anonymous and shared memory of this process.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    (field("RssAnon:") + field("RssShmem:")) * 1024
}

//! Measures how fast samples are read from the RAM tier, with and without a copy. Prints one object
//! of JSON. Its `span` and `align` describe the batches' memory, so that a bare copy can be
//! measured on memory of the same size and alignment.
//!
//!     cargo run --release -p belady-engine --example ram_speed -- --size 110000B --mode copy

mod arguments;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arguments::{Arguments, cpu_seconds};
use belady_control::model::Bytes;
use belady_data::source::{Source, Synthetic};
use belady_engine::{Engine, EngineConfig, JobConfig, Lend, TierConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::new(&["size", "samples", "batch", "seconds", "mode", "threads"])?;
    let Bytes(size) = arguments.get("size", Bytes(110_000))?;
    let samples: u64 = arguments.get("samples", (1 << 30) / size.max(1024))?;
    let batch: u64 = arguments.get("batch", 64)?;
    let limit = Duration::from_secs(arguments.get("seconds", 5)?);
    let lend = match arguments.get("mode", "copy".to_owned())?.as_str() {
        "copy" => Lend::Slots,
        "lend" => Lend::ReadOnly,
        other => return Err(format!("the mode `{other}` is neither copy nor lend").into()),
    };
    let threads = arguments.get("threads", 0)?;

    let source: Arc<dyn Source> = Arc::new(Synthetic::of_sizes(vec![size; samples as usize], 1));
    let capacity = Bytes(size.next_multiple_of(16) * samples);
    let engine = Engine::new(EngineConfig {
        threads: Some(threads).filter(|&threads| threads > 0),
        tiers: vec![TierConfig::Ram { capacity }],
        ..EngineConfig::default()
    })?;
    let mut loader = engine.start(&JobConfig {
        batch: batch as u32,
        epochs: None,
        lend,
        staging: Bytes((8 * batch * (size + 1024)).max(64 << 20)),
        ..JobConfig::new(source)
    })?;
    // Two epochs fill the tier, with the batches that were staged before the plan was ready.
    for _ in 0..2 * samples.div_ceil(batch) {
        loader.next_batch()?;
    }
    let before = loader.metrics().snapshot();
    let (cpu, began) = (cpu_seconds(), Instant::now());
    let (mut count, mut bytes, mut touched) = (0u64, 0u64, 0u64);
    let mut places = Places::default();
    while began.elapsed() < limit {
        let Some(batch) = loader.next_batch()? else { break };
        for sample in batch.iter() {
            count += 1;
            bytes += sample.bytes().len() as u64;
            touched += u64::from(sample.bytes().first().copied().unwrap_or(0));
            places.sample(sample.bytes());
        }
        places.end_batch();
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let seen = &loader.metrics().snapshot() - &before;
    let result = serde_json::json!({
        "size": size, "seconds": seconds, "cpu_seconds": cpu, "samples": count, "bytes": bytes,
        "source_bytes": seen.operations.bytes, "copied_bytes": seen.tiers[0].read.bytes,
        "lent_bytes": seen.tiers[0].lent.bytes, "touched": touched,
        "span": places.span(), "align": places.align(),
    });
    println!("{result}");
    Ok(())
}

/// The memory of the samples. The engine puts a batch into the lowest gap of its staging buffer, so
/// most of the buffer may never be written.
#[derive(Default)]
struct Places {
    lowest: Option<usize>,
    /// The end of the last sample, and of each batch.
    end: usize,
    ends: Vec<usize>,
    /// The bitwise or of all addresses of samples.
    addresses: usize,
}

impl Places {
    fn sample(&mut self, bytes: &[u8]) {
        let start = bytes.as_ptr() as usize;
        self.lowest = Some(self.lowest.map_or(start, |lowest| lowest.min(start)));
        self.end = start + bytes.len();
        self.addresses |= start;
    }

    fn end_batch(&mut self) {
        self.ends.push(self.end);
    }

    /// Bytes from the lowest address to the end of nine batches in ten: a single pause of the
    /// consumer lets the engine fill all of its buffer once.
    fn span(&mut self) -> usize {
        self.ends.sort_unstable();
        let nine_in_ten = self.ends.get(self.ends.len().saturating_sub(1) * 9 / 10);
        nine_in_ten.zip(self.lowest).map_or(0, |(end, lowest)| end - lowest)
    }

    /// Returns the largest power of two, up to a page, that divides the addresses of all samples.
    fn align(&self) -> usize {
        1 << self.addresses.trailing_zeros().min(12)
    }
}

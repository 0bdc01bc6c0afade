//! Measures the transform stage's cost a sample, and the gain of a second thread. Prints one object
//! of JSON.
//!
//!     cargo run --release -p belady-engine --example transform_speed -- --threads 2 --work 500

mod arguments;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arguments::{Arguments, cpu_seconds};
use belady_control::model::Bytes;
use belady_data::source::{Source, Synthetic};
use belady_engine::{
    Delivery, Engine, EngineConfig, FieldSpec, JobConfig, Lend, TierConfig, Transform,
    TransformConfig, Transformed,
};
use belady_transform::{Array, Draw, Dtype, Output, Scratch, TransformError};

/// Computes for so many rounds.
#[derive(Debug)]
struct Toil {
    output: Output,
    rounds: u64,
}

impl Transform for Toil {
    fn output(&self) -> &Output {
        &self.output
    }

    fn run_into(
        &self,
        sample: &[u8],
        draw: Draw,
        _: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        let first = u64::from(sample.first().copied().unwrap_or(0));
        let sum = (0..self.rounds).fold(first, |sum, round| {
            std::hint::black_box(sum.rotate_left(5) ^ round).wrapping_mul(u64::from(draw.sample))
        });
        into.copy_from_slice(&sum.to_ne_bytes());
        Ok(())
    }

    fn run(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        let mut bytes = vec![0; 8];
        self.run_into(sample, draw, scratch, &mut bytes)?;
        Ok(Array { dtype: Dtype::Uint64, shape: vec![1], bytes })
    }
}

impl Toil {
    /// Returns the number of rounds that take so long on this machine.
    fn lasting(time: Duration) -> Self {
        let output = Output { dtype: Some(Dtype::Uint64), shape: Some(vec![1]) };
        let mut toil = Self { output, rounds: 100_000 };
        let began = Instant::now();
        for _ in 0..20 {
            let draw = Draw { seed: 0, epoch: 0, sample: 1 };
            let _ = toil.run_into(&[1], draw, &mut Scratch::default(), &mut [0; 8]);
        }
        let round = began.elapsed().as_secs_f64() / (20.0 * toil.rounds as f64);
        toil.rounds = (time.as_secs_f64() / round) as u64;
        toil
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::new(&["size", "samples", "batch", "seconds", "threads", "work"])?;
    let Bytes(size) = arguments.get("size", Bytes(1024))?;
    let samples: u64 = arguments.get("samples", 20_000)?;
    let batch: u64 = arguments.get("batch", 64)?;
    let limit = Duration::from_secs(arguments.get("seconds", 5)?);
    let threads: usize = arguments.get("threads", 1)?;
    let work = Duration::from_micros(arguments.get("work", 0)?);

    let source: Arc<dyn Source> = Arc::new(Synthetic::of_sizes(vec![size; samples as usize], 1));
    let capacity = Bytes(size.next_multiple_of(16) * samples);
    let engine = Engine::new(EngineConfig {
        threads: Some(2),
        tiers: vec![TierConfig::Ram { capacity }],
        ..EngineConfig::default()
    })?;
    let loader = engine.start(&JobConfig {
        batch: batch as u32,
        epochs: None,
        lend: Lend::ReadOnly,
        staging: Bytes((8 * batch * (size + 1024)).max(64 << 20)),
        ..JobConfig::new(source)
    })?;
    let toil = Toil::lasting(work);
    let field = FieldSpec { part: None, transform: Some(Arc::new(toil)) };
    let config = TransformConfig { fields: vec![field], threads, depth: 4, ..Default::default() };
    let stage = Transformed::new(loader, config)?;
    let take = |batches: u64, until: Option<Instant>| -> Result<u64, belady_engine::EngineError> {
        let mut seen = 0;
        for _ in 0..batches {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            if let Delivery::Batch(made) = stage.next_batch_timeout(Duration::from_mins(1))? {
                seen += made.samples.len() as u64;
            }
        }
        Ok(seen)
    };
    // The first part of the run, which fills the tier, is not counted.
    take(2 * samples.div_ceil(batch), Some(Instant::now() + limit))?;
    let before = engine.metrics().snapshot();
    let (cpu, began) = (cpu_seconds(), Instant::now());
    let seen = take(u64::MAX, Some(began + limit))?;
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let figures = &engine.metrics().snapshot() - &before;
    let result = serde_json::json!({
        "threads": threads,
        "samples_per_second": seen as f64 / seconds,
        "cpu_us_per_sample": cpu * 1e6 / seen as f64,
        "transform_us": figures.transform_us.sum as f64 / figures.transform_us.count as f64,
        "idle_share": figures.transform_idle_ns as f64 / 1e9 / seconds / threads as f64,
    });
    println!("{result}");
    Ok(())
}

//! Shows how threads follow a source that becomes slower for a while, and then a transform that
//! becomes dearer. Prints one line of JSON each ten steps, with what is slow and how threads are
//! assigned, and one with the processor time.
//!
//!     cargo run --release -p belady-engine --example thread_shift -- --ranks 4 --steps 40
//!
//! Reads and transforms sleep, so that what is seen does not depend on the machine's processors.

mod arguments;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arguments::{Arguments, cpu_seconds};
use belady_control::model::Bytes;
use belady_data::source::{Catalog, Operations, ReadError, Source, Synthetic, Want};
use belady_engine::{
    Delivery, Engine, EngineConfig, FieldSpec, JobConfig, Transform, TransformConfig, Transformed,
};
use belady_transform::{Array, Draw, Dtype, Output, Scratch, TransformError};

/// The microseconds of a read and of a transform.
#[derive(Debug, Default)]
struct Costs {
    read: AtomicU64,
    transform: AtomicU64,
}

/// Reads and transforms that take as long as they are told.
#[derive(Debug)]
struct Slow {
    inner: Synthetic,
    costs: Arc<Costs>,
    output: Output,
}

impl Source for Slow {
    fn catalog(&self) -> &Catalog {
        self.inner.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        std::thread::sleep(Duration::from_micros(self.costs.read.load(Relaxed)));
        self.inner.read(wants)
    }

    fn operations(&self) -> Operations {
        self.inner.operations()
    }
}

impl Transform for Slow {
    fn output(&self) -> &Output {
        &self.output
    }

    fn run_into(
        &self,
        sample: &[u8],
        _: Draw,
        _: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        std::thread::sleep(Duration::from_micros(self.costs.transform.load(Relaxed)));
        into.copy_from_slice(&sample[..into.len()]);
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
        Ok(Array { dtype: Dtype::Uint8, shape: vec![8], bytes })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::new(&["ranks", "steps", "threads"])?;
    let (ranks, steps) = (arguments.get("ranks", 4)?, arguments.get("steps", 40)?);
    let threads: u32 = arguments.get("threads", 12)?;
    let batch = 16;
    // Each phase has so many steps: what is slow, and the costs.
    let phases = [
        ("nothing", 4000, 4000),
        ("source", 16_000, 4000),
        ("nothing", 4000, 4000),
        ("transform", 4000, 12_000),
        ("nothing", 4000, 4000),
    ];
    let samples = batch * ranks * steps * phases.len() as u32;
    let costs = Arc::<Costs>::default();
    let slow = || {
        let output = Output { dtype: Some(Dtype::Uint8), shape: Some(vec![8]) };
        let inner = Synthetic::of_sizes(vec![20_000; samples as usize], 1);
        Arc::new(Slow { inner, costs: costs.clone(), output })
    };
    let set = |(_, read, transform): (&str, u64, u64)| {
        costs.read.store(read, Relaxed);
        costs.transform.store(transform, Relaxed);
    };
    set(phases[0]);
    let engine = Engine::new(EngineConfig { threads: Some(threads), ..EngineConfig::default() })?;
    let job = JobConfig {
        batch,
        // Two batches: what is slow shows at once.
        staging: Bytes(2 * u64::from(batch) * 21_000),
        staging_grows: true,
        ..JobConfig::new(slow())
    };
    let taken = AtomicU32::new(0);
    let stage = |loader| {
        let fields = vec![FieldSpec { part: None, transform: Some(slow()) }];
        Transformed::new(
            loader,
            TransformConfig { fields, threads: 2, ..TransformConfig::default() },
        )
    };
    let stages = engine.start_ranks(&job, ranks)?.into_iter().map(stage);
    let stages = stages.collect::<Result<Vec<Transformed>, _>>()?;
    std::thread::scope(|scope| {
        for (rank, stage) in stages.iter().enumerate() {
            let (taken, engine, set) = (&taken, &engine, &set);
            scope.spawn(move || {
                while let Ok(Delivery::Batch(_)) = stage.next_batch_timeout(Duration::MAX) {
                    if rank > 0 {
                        continue;
                    }
                    let step = taken.fetch_add(1, Relaxed) + 1;
                    let phase = phases[(step / steps) as usize % phases.len()];
                    set(phase);
                    if step % 10 == 0 {
                        let seen = engine.metrics().snapshot().threads;
                        let assigned = serde_json::json!({
                            "step": step, "slow": phase.0, "changes": seen.changes,
                            "load": seen.assigned.loading, "transform": seen.assigned.transforming,
                            "load_by_rank": seen.assigned.loading_by_rank,
                        });
                        println!("{assigned}");
                    }
                }
            });
        }
    });
    // Threads without work sleep.
    println!("{}", serde_json::json!({"cpu_seconds": cpu_seconds()}));
    Ok(())
}

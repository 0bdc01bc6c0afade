//! Batches a second through a ring between two threads: reserve, publish, take, drop.
//!
//! ```text
//! cargo run --release -p belady-data --example ring_speed
//! ```

use std::time::{Duration, Instant};

use belady_control::sampler::Step;
use belady_data::stage::{RingConfig, RingError, Take, ring};

const SAMPLES: u32 = 64;

fn main() -> Result<(), RingError> {
    for (length, batches, copy) in [
        (0, 2_000_000u32, false),
        (1024, 2_000_000, false),
        (1024, 400_000, true),
        (112_640, 6_000, true),
    ] {
        let seconds = run(length, batches, copy)?;
        let rate = f64::from(batches) / seconds;
        print!("{SAMPLES} samples of {length:>6} B: {rate:>9.0} batches/s");
        if copy {
            let bytes = rate * f64::from(SAMPLES) * length as f64;
            println!(", {:.2} GB/s copied in", bytes / 1e9);
        } else {
            println!(", slots left as they are");
        }
    }
    Ok(())
}

fn run(length: u64, batches: u32, copy: bool) -> Result<f64, RingError> {
    let needed = RingConfig::needed(length * u64::from(SAMPLES), SAMPLES, 1) as usize;
    let config = RingConfig { capacity: needed * 4, batches: 64, align: 1 };
    let (mut producer, mut consumer) = ring(&config)?;
    let samples: Vec<u32> = (0..SAMPLES).collect();
    let lengths = vec![length; samples.len()];
    let data = vec![7u8; length as usize];
    let started = Instant::now();
    let producing = std::thread::spawn(move || -> Result<(), RingError> {
        for iteration in 0..batches {
            let step = Step { epoch: 0, iteration };
            let block = loop {
                match producer.reserve(step, &samples, &lengths)? {
                    Some(block) => break block,
                    None => _ = producer.wait(Duration::from_secs(1)),
                }
            };
            for index in 0..if copy { block.len() } else { 0 } {
                // SAFETY: this thread alone has the block, and has not published it.
                unsafe { block.slot(index) }.copy_from_slice(&data);
            }
            block.publish();
        }
        producer.finish();
        Ok(())
    });
    let mut taken = 0;
    while let Take::Batch(batch) = consumer.take(None) {
        taken += u32::from(!batch.is_empty());
    }
    let seconds = started.elapsed().as_secs_f64();
    assert!(producing.join().is_ok_and(|outcome| outcome.is_ok()) && taken == batches);
    Ok(seconds)
}

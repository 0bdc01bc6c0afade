//! The machine's own rate of copying: blocks of a large buffer, in random order, into rings.
//!
//! It is what a loader does that copies each sample once from RAM into its staging buffer,
//! without anything around it.

use std::sync::Barrier;
use std::thread;

use anyhow::ensure;
use belady_control::model::Bytes;

use crate::parse_bytes;
use crate::random::Random;
use crate::report::{Report, Watch};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Of a block
    #[arg(long, default_value = "110KB", value_parser = parse_bytes)]
    size: Bytes,
    /// Of the buffer that blocks come from
    #[arg(long, default_value = "1GiB", value_parser = parse_bytes)]
    buffer: Bytes,
    /// Of all rings together
    #[arg(long, default_value = "512MiB", value_parser = parse_bytes)]
    ring: Bytes,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// To copy, over all threads
    #[arg(long, default_value = "20GB", value_parser = parse_bytes)]
    total: Bytes,
}

pub fn run(options: &Options) -> anyhow::Result<Report> {
    let size = options.size.0 as usize;
    let ring = options.ring.0 as usize / options.threads.max(1) / size.max(1) * size;
    ensure!(size > 0 && options.threads > 0, "--size and --threads have to be above zero");
    ensure!(options.buffer.0 as usize >= size, "--buffer has to hold a block");
    ensure!(ring >= size, "--ring has to hold a block for each thread");
    let mut buffer = vec![0u8; options.buffer.0 as usize];
    Random::new(0).fill(&mut buffer);
    let blocks = (buffer.len() / size) as u64;
    let each = options.total.0 / size as u64 / options.threads as u64;
    // Threads touch their rings before the watch starts: page faults are no copying.
    let ready = Barrier::new(options.threads + 1);
    let watch = thread::scope(|scope| {
        for thread in 0..options.threads {
            let (buffer, ready) = (&buffer, &ready);
            scope.spawn(move || {
                let mut ring = vec![1u8; ring];
                let mut random = Random::new(thread as u64);
                ready.wait();
                let mut at = 0;
                for _ in 0..each {
                    let from = random.below(blocks) as usize * size;
                    ring[at..at + size].copy_from_slice(&buffer[from..from + size]);
                    at = (at + size) % ring.len();
                }
                std::hint::black_box(&ring);
            });
        }
        ready.wait();
        Watch::start()
    });
    let samples = each * options.threads as u64;
    Ok(Report { total: watch.work(samples, samples * size as u64), epochs: Vec::new() })
}

//! The machine's own rate of copying: blocks of a large buffer, in random order, into rings.
//!
//! It is what a loader does that copies each sample once from RAM into its staging buffer,
//! without anything around it. So memory is of the same kind: the buffer is anonymous memory as
//! the RAM tier's is, with blocks on multiples of 16 bytes; the rings asked the kernel for huge
//! pages as the staging buffer does, were written before, and are written again and again.

use std::sync::Barrier;
use std::thread;

use anyhow::{Context, ensure};
use belady_control::model::Bytes;
use memmap2::{Advice, MmapMut};

use crate::parse_bytes;
use crate::random::Random;
use crate::report::{Report, Watch};

/// The RAM tier's granule.
const GRANULE: usize = 16;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Of a block
    #[arg(long, default_value = "110KB", value_parser = parse_bytes)]
    size: Bytes,
    /// Of the buffer that blocks come from
    #[arg(long, default_value = "1GiB", value_parser = parse_bytes)]
    buffer: Bytes,
    /// Of all rings together: what of its staging buffer a loader writes to
    #[arg(long, default_value = "64MiB", value_parser = parse_bytes)]
    ring: Bytes,
    /// Blocks in a ring begin at multiples of this
    #[arg(long, default_value = "64B", value_parser = parse_bytes)]
    align: Bytes,
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// To copy, over all threads
    #[arg(long, default_value = "20GB", value_parser = parse_bytes)]
    total: Bytes,
}

pub fn run(options: &Options) -> anyhow::Result<Report> {
    let size = options.size.0 as usize;
    ensure!(size > 0 && options.threads > 0, "--size and --threads have to be above zero");
    ensure!(options.align.0 > 0, "--align has to be above zero");
    let stride = size.next_multiple_of(options.align.0 as usize);
    let each_ring = options.ring.0 as usize / options.threads / stride * stride;
    ensure!(options.buffer.0 as usize >= size, "--buffer has to hold a block");
    ensure!(each_ring > 0, "--ring has to hold a block for each thread: {stride} B each");
    let step = size.next_multiple_of(GRANULE);
    let mut buffer = memory(options.buffer.0 as usize)?;
    Random::new(0).fill(&mut buffer);
    let blocks = ((buffer.len() - size) / step + 1) as u64;
    let mut rings = memory(each_ring * options.threads)?;
    // Only advice, like the staging buffer's.
    let _ = rings.advise(Advice::HugePage);
    // Page faults are no copying.
    rings.fill(1);
    let each = options.total.0 / size as u64 / options.threads as u64;
    let ready = Barrier::new(options.threads + 1);
    let watch = thread::scope(|scope| {
        for (thread, ring) in rings.chunks_mut(each_ring).enumerate() {
            let (buffer, ready) = (&buffer, &ready);
            scope.spawn(move || {
                let mut random = Random::new(thread as u64);
                ready.wait();
                let mut at = 0;
                for _ in 0..each {
                    let from = random.below(blocks) as usize * step;
                    ring[at..at + size].copy_from_slice(&buffer[from..from + size]);
                    at = (at + stride) % ring.len();
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

fn memory(bytes: usize) -> anyhow::Result<MmapMut> {
    MmapMut::map_anon(bytes).with_context(|| format!("cannot get {bytes} bytes of memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(ring: u64, threads: usize) -> Options {
        Options {
            size: Bytes(1_000),
            buffer: Bytes(100_000),
            ring: Bytes(ring),
            align: Bytes(64),
            threads,
            total: Bytes(1_000_000),
        }
    }

    #[test]
    fn every_thread_copies_its_part() {
        let report = run(&options(64 << 10, 3)).unwrap();
        assert_eq!((report.total.samples, report.total.bytes), (999, 999_000));
    }

    #[test]
    fn a_ring_that_is_too_small_is_refused_with_what_it_needs() {
        let error = run(&options(2_047, 2)).unwrap_err();
        assert!(error.to_string().contains("1024 B each"), "{error}");
    }
}

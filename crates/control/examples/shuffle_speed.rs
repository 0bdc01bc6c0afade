//! How fast orders are made, in nanoseconds an entry.
//!
//! `cargo run --release -p belady-control --example shuffle_speed [-- --randperm] [--json]`;
//! `scripts/bench_randperm.py` runs it beside torch. Each figure is the best of
//! several rounds, on one thread.

use std::hint::black_box;
use std::time::Instant;

use belady_control::sampler::mt19937::Mt19937;
use belady_control::sampler::{AccessStream, Order, Permutation, Scheme, StreamConfig, torch};

fn main() {
    let asked = |option: &str| std::env::args().any(|argument| argument == option);
    let mut figures = shuffles();
    if !asked("--randperm") {
        figures.extend(lookups());
        figures.extend(walks());
    }
    if asked("--json") {
        let lines: Vec<String> =
            figures.iter().map(|(name, ns)| format!("  \"{name}\": {ns:.3}")).collect();
        println!("{{\n{}\n}}", lines.join(",\n"));
    } else {
        for (name, ns) in figures {
            println!("{name:<36} {ns:>8.2} ns {:>8.1} M/s", 1e3 / ns);
        }
    }
}

/// Best of `rounds`, in nanoseconds for each of `entries`.
fn best<T>(rounds: u32, entries: u64, mut work: impl FnMut() -> T) -> f64 {
    (0..rounds)
        .map(|_| {
            let start = Instant::now();
            black_box(work());
            start.elapsed().as_nanos() as f64 / entries as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn shuffles() -> Vec<(String, f64)> {
    let mut generator = Mt19937::new(42);
    [(50_000, 40), (1_281_167, 10), (14_197_122, 5)]
        .map(|(n, rounds)| {
            let ns = best(rounds, u64::from(n), || torch::randperm(n, &mut generator));
            (format!("randperm {n}"), ns)
        })
        .into()
}

fn lookups() -> Vec<(String, f64)> {
    const LOOKUPS: u64 = 4_000_000;
    let mut figures = Vec::new();
    for n in [1_000, 50_000, 1_281_167, 14_197_122, 1_000_000_000, 1 << 40] {
        let permutation = Permutation::new(n, 42, 3);
        let sum = |map: &dyn Fn(u64) -> u64| {
            // Scattered arguments: a caller asks for samples, not for a sequence.
            let mut at = 0;
            let mut sum = 0_u64;
            for _ in 0..LOOKUPS {
                at += 0x9e37_79b1 % n;
                at = at.min(at.wrapping_sub(n));
                sum = sum.wrapping_add(map(at));
            }
            sum
        };
        figures.push((
            format!("permutation forward {n}"),
            best(8, LOOKUPS, || sum(&|x| permutation.forward(x))),
        ));
        figures.push((
            format!("permutation inverse {n}"),
            best(8, LOOKUPS, || sum(&|x| permutation.inverse(x))),
        ));
    }
    figures
}

fn walks() -> Vec<(String, f64)> {
    let mut figures = Vec::new();
    for (scheme, ranks, batch) in
        [(Scheme::Uniform, 4, 256), (Scheme::Uniform, 1024, 32_768), (Scheme::Contiguous, 4, 256)]
    {
        let samples = 14_197_122;
        let stream = AccessStream::new(StreamConfig {
            samples,
            ranks,
            batch,
            order: Order::Permutation,
            scheme,
            seed: 1,
            sampler_drop_last: false,
            drop_last: true,
        })
        .expect("a valid configuration");
        let epoch = stream.epoch(0);
        let ns = best(3, u64::from(samples), || {
            let mut sum = 0_u64;
            for iteration in 0..epoch.iterations() {
                for rank in 0..ranks {
                    for sample in epoch.batch(rank, iteration) {
                        sum = sum.wrapping_add(u64::from(sample) ^ sum << 1);
                    }
                }
            }
            sum
        });
        figures.push((format!("walk {scheme:?} {ranks} ranks").to_lowercase(), ns));
    }
    figures
}

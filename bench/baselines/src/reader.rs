//! The plain loader: threads read shuffled files ahead, a consumer of fixed rate gets them
//! in order. It keeps nothing from one epoch to the next.
//!
//! Over a mount with a page cache, in a memory cgroup, this is what a page cache (LRU)
//! makes of the same job.

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use belady_control::model::{Bytes, Rate};

use crate::ordered::Window;
use crate::pool::{Listed, list, read};
use crate::random::Random;
use crate::report::{Epoch, Report, Watch};
use crate::{parse_bytes, parse_rate};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Its files, at any depth
    dataset: PathBuf,
    #[arg(long, default_value_t = 16)]
    threads: usize,
    #[arg(long, default_value_t = 1)]
    epochs: u32,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Samples that the consumer takes at once
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Bytes that may be read ahead
    #[arg(long, default_value = "512MiB", value_parser = parse_bytes)]
    staging: Bytes,
    /// Rate of the consumer; without it, as fast as it can take them
    #[arg(long, value_parser = parse_rate)]
    consume: Option<Rate>,
}

pub fn run(options: &Options) -> anyhow::Result<Report> {
    ensure!(options.threads > 0 && options.batch > 0, "--threads and --batch: at least 1");
    let files = list(&options.dataset)?;
    let largest = files.iter().map(|file| file.size).max().unwrap_or(0);
    // A batch is released as a whole, so a smaller window would deadlock.
    let needed = largest * options.batch as u64;
    ensure!(options.staging.0 >= needed, "--staging has to hold a batch: at least {needed} B");
    // One list for all epochs: reading ahead does not stop where an epoch ends.
    let mut random = Random::new(options.seed);
    let order: Vec<Listed> = (0..options.epochs)
        .flat_map(|_| {
            let mut epoch = files.clone();
            random.shuffle(&mut epoch);
            epoch
        })
        .collect();
    let window = Window::new(order.iter().map(|file| file.size).collect(), options.staging.0);
    let failure = Mutex::new(None);
    let all = Watch::start();
    let epochs = thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                while let Some((index, mut buffer)) = window.claim() {
                    if let Err(error) = read(&order[index], &mut buffer) {
                        // Only the first failure is told; a poisoned lock has one too.
                        if let Ok(mut failure) = failure.lock() {
                            failure.get_or_insert(error);
                        }
                        return window.stop();
                    }
                    window.put(index, buffer);
                }
            });
        }
        consume(&window, files.len(), options)
    });
    if let Ok(Some(error)) = failure.into_inner() {
        return Err(error);
    }
    let bytes = epochs.iter().map(|epoch| epoch.work.bytes).sum();
    Ok(Report { total: all.work(order.len() as u64, bytes), epochs })
}

fn consume(window: &Window, samples: usize, options: &Options) -> Vec<Epoch> {
    let mut consumer = Consumer { rate: options.consume, free: Instant::now(), stall: 0.0 };
    let mut epochs = Vec::new();
    for epoch in 0..options.epochs {
        let watch = Watch::start();
        let first = epoch as usize * samples;
        let mut total = 0;
        for begin in (first..first + samples).step_by(options.batch) {
            let end = (begin + options.batch).min(first + samples);
            let Some(batch) = consumer.wait_for(|| take(window, begin, end)) else {
                return epochs;
            };
            let bytes: usize = batch.iter().map(Vec::len).sum();
            consumer.compute(bytes as u64);
            for (index, sample) in (begin..end).zip(batch) {
                window.let_go(index, sample);
            }
            total += bytes as u64;
        }
        let stall_seconds = Some(std::mem::take(&mut consumer.stall));
        epochs.push(Epoch {
            number: epoch,
            work: watch.work(samples as u64, total),
            stall_seconds,
            counters: None,
        });
    }
    epochs
}

fn take(window: &Window, begin: usize, end: usize) -> Option<Vec<Vec<u8>>> {
    (begin..end).map(|index| window.take(index)).collect()
}

/// Works through a batch in its bytes / rate.
struct Consumer {
    rate: Option<Rate>,
    /// When the work on the last batch ends, by the rate and not by when we woke: sleeping
    /// too long once does not add up.
    free: Instant,
    stall: f64,
}

impl Consumer {
    fn wait_for<T>(&mut self, get: impl FnOnce() -> T) -> T {
        let asked = Instant::now();
        let got = get();
        let waited = asked.elapsed();
        self.stall += waited.as_secs_f64();
        // Shorter waits are a lock and not a lack of data.
        if waited > Duration::from_micros(200) {
            self.free = Instant::now();
        }
        got
    }

    fn compute(&mut self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        self.free += Duration::from_secs_f64(bytes as f64 / rate.0);
        thread::sleep(self.free.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dataset: PathBuf) -> Options {
        Options {
            dataset,
            threads: 4,
            epochs: 3,
            seed: 0,
            batch: 8,
            staging: Bytes(10_000),
            consume: Some(Rate(1e6)),
        }
    }

    #[test]
    fn reads_each_epoch_whole_and_no_faster_than_its_consumer() {
        let folder = tempfile::tempdir().unwrap();
        for index in 0..20 {
            std::fs::write(folder.path().join(format!("{index}")), vec![0; 1_000]).unwrap();
        }
        let report = run(&options(folder.path().to_owned())).unwrap();
        assert_eq!((report.total.samples, report.total.bytes), (60, 60_000));
        assert_eq!(report.epochs.len(), 3);
        assert!(report.total.seconds >= 0.059);
    }

    #[test]
    fn a_window_below_a_batch_is_refused_with_the_size_it_needs() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), vec![0; 2_000]).unwrap();
        let error = run(&options(folder.path().to_owned())).unwrap_err().to_string();
        assert!(error.contains("at least 16000 B"), "{error}");
    }

    #[test]
    fn a_file_that_vanishes_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b", "gone"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let files = list(folder.path()).unwrap();
        std::fs::remove_file(folder.path().join("gone")).unwrap();
        let gone = files.iter().find(|file| file.path.ends_with("gone")).unwrap();
        let error = read(gone, &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
    }
}

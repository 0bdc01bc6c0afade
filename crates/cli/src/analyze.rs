//! `belady analyze`: predicts a run's access pattern.
//!
//! Expected counts come from the binomial law. Everything else comes from following a number of
//! samples through the whole run ([`belady_control::access::survey`]), so a billion samples take no
//! more memory than a thousand.

use std::fmt::Write as _;
use std::io::Write as _;

use belady_control::access::survey::{Question, survey};
use belady_control::access::{ReuseHistogram, Survey};
use belady_control::model::frequency::AccessLaw;
use belady_control::sampler::{AccessStream, Order, Scheme, StreamConfig};
use clap::Args;
use serde_json::{Value, json};

use crate::text::{chart, grouped, percent};
use crate::usage::{UsageError, count, seed};

/// The number of positions that are looked up: about a second on two cores.
const LOOKUPS: u32 = 20_000_000;
/// The limit of epochs: each keeps a permutation of about 300 bytes.
const MOST_EPOCHS: u64 = 100_000;
/// The limit of workers: each takes 16 bytes in every thread.
const MOST_WORKERS: u64 = 1 << 20;
/// Rows of a chart.
const ROWS: usize = 16;

/// The options of `belady analyze`.
#[derive(Args, Clone, Debug)]
pub struct AnalyzeArgs {
    /// Samples in the dataset (F)
    #[arg(long, value_name = "F", value_parser = samples, allow_negative_numbers = true)]
    pub samples: u32,
    /// Workers that read the dataset (N)
    #[arg(long, value_name = "N", value_parser = workers, allow_negative_numbers = true)]
    pub workers: u32,
    /// Epochs of the run (E)
    #[arg(long, value_name = "E", value_parser = epochs, allow_negative_numbers = true)]
    pub epochs: u32,
    /// Count samples that a worker reads more than (1+D)·E/N times
    #[arg(long, value_name = "D", default_value = "0.8", value_parser = delta,
          allow_negative_numbers = true)]
    pub delta: f64,
    /// Samples in a global batch, a multiple of N [default: 32 per worker]
    #[arg(long, value_name = "B", value_parser = batch, allow_negative_numbers = true)]
    pub batch: Option<u32>,
    /// Cache of all workers together, as a share of the dataset
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = capacity,
          allow_negative_numbers = true)]
    pub capacity: f64,
    /// Seed of the order
    #[arg(long, value_name = "S", default_value_t = 42, value_parser = seed,
          allow_negative_numbers = true)]
    pub seed: u64,
    /// Print JSON instead of charts
    #[arg(long)]
    pub json: bool,
}

fn samples(text: &str) -> Result<u32, String> {
    count(text, "the number of samples", u64::from(u32::MAX))
}

fn workers(text: &str) -> Result<u32, String> {
    count(text, "the number of workers", MOST_WORKERS)
}

fn epochs(text: &str) -> Result<u32, String> {
    count(text, "the number of epochs", MOST_EPOCHS)
}

fn batch(text: &str) -> Result<u32, String> {
    count(text, "the batch", u64::from(u32::MAX))
}

fn number(text: &str, what: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("{what} must be a number, such as 0.5"))?;
    if number.is_finite() { Ok(number) } else { Err(format!("{what} must be finite")) }
}

fn delta(text: &str) -> Result<f64, String> {
    let delta = number(text, "delta")?;
    if delta < 0.0 { Err("delta must not be negative".to_owned()) } else { Ok(delta) }
}

fn capacity(text: &str) -> Result<f64, String> {
    let capacity = number(text, "the capacity")?;
    if capacity < 0.0 { Err("the capacity must not be negative".to_owned()) } else { Ok(capacity) }
}

/// Runs the command.
pub fn run(args: AnalyzeArgs) -> anyhow::Result<()> {
    let analysis = Analysis::new(args)?;
    // Not `println`, which panics when the reader of a pipe has gone.
    let mut out = std::io::stdout().lock();
    if analysis.args.json {
        writeln!(out, "{:#}", analysis.json())?;
    } else {
        out.write_all(analysis.text().as_bytes())?;
    }
    Ok(())
}

struct Analysis {
    args: AnalyzeArgs,
    stream: AccessStream,
    law: AccessLaw,
    survey: Survey,
}

/// The share of the dataset that no worker holds under one placement.
struct Coverage {
    placement: &'static str,
    uncovered: f64,
    why: &'static str,
}

impl Analysis {
    fn new(args: AnalyzeArgs) -> Result<Self, UsageError> {
        let stream = stream(&args)?;
        let law = AccessLaw::new(args.epochs, args.workers);
        let question = Question {
            epochs: args.epochs,
            draw: LOOKUPS / args.epochs,
            threshold: law.more_than(args.delta),
            capacity: (args.capacity / f64::from(args.workers)).min(1.0),
        };
        let survey = survey(&stream, question)
            .ok_or_else(|| UsageError::new("only index-free orders can be surveyed".to_owned()))?;
        Ok(Self { args, stream, law, survey })
    }

    fn threshold(&self) -> u32 {
        self.law.more_than(self.args.delta)
    }

    fn expected(&self) -> f64 {
        self.law.expected_above(u64::from(self.args.samples), self.args.delta)
    }

    fn coverage(&self) -> Vec<Coverage> {
        let share = |samples: u32| f64::from(samples) / f64::from(self.survey.drawn);
        let workers = f64::from(self.args.workers);
        let left = (1.0 - self.args.capacity).max(0.0);
        let random = (1.0 - (self.args.capacity / workers).min(1.0)).powf(workers);
        let row = |placement, uncovered, why| Coverage { placement, uncovered, why };
        vec![
            row(
                "nopfs",
                share(self.survey.uncovered.ties_by_index),
                "each worker its most frequent, ties by index",
            ),
            row(
                "nopfs, ties at random",
                share(self.survey.uncovered.ties_at_random),
                "the same, ties broken by each worker independently",
            ),
            row("random", random, "each worker any, independently"),
            row("first-touch", left, "its first reader, until that one is full"),
            row("belady", left, "each sample once before any twice"),
        ]
    }

    fn json(&self) -> Value {
        let AnalyzeArgs { samples, workers, epochs, delta, capacity, seed, .. } = self.args;
        let scale = f64::from(samples);
        let pairs: u64 = self.survey.frequency.iter().sum();
        let frequency: Vec<f64> =
            self.survey.frequency.iter().map(|&n| n as f64 / pairs as f64).collect();
        let reuse = |histogram: &ReuseHistogram| {
            let total = histogram.total().max(1) as f64;
            let share: Vec<f64> = histogram.counts().iter().map(|&n| n as f64 / total).collect();
            json!({
                "iterations_per_bin": histogram.bin(),
                "share": share,
                "reuses": histogram.total(),
                "median_iterations": histogram.quantile(0.5),
                "longest_iterations": histogram.longest(),
                "share_beyond_one_epoch":
                    histogram.share_from(u64::from(self.stream.iterations())),
            })
        };
        let coverage: serde_json::Map<String, Value> = self
            .coverage()
            .into_iter()
            .map(|row| (row.placement.to_owned(), json!(row.uncovered)))
            .collect();
        json!({
            "samples": samples,
            "workers": workers,
            "epochs": epochs,
            "delta": delta,
            "batch": self.stream.config().batch,
            "iterations_per_epoch": self.stream.iterations(),
            "capacity": capacity,
            "seed": seed,
            "mean_accesses": self.law.mean(),
            "more_than": self.threshold() - 1,
            "expected_samples": self.expected(),
            "monte_carlo": {
                "samples_drawn": self.survey.drawn,
                "expected_samples": scale * self.survey.above,
                "standard_error": scale * self.survey.above_error,
            },
            "frequency_share": frequency,
            "reuse_by_worker": reuse(&self.survey.reuse_by_worker),
            "reuse_by_anyone": reuse(&self.survey.reuse_by_any),
            "uncovered": coverage,
        })
    }

    fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write_expectation(&mut out);
        let _ = self.write_frequencies(&mut out);
        let _ = self.write_reuse(&mut out);
        let _ = self.write_coverage(&mut out);
        out
    }

    fn write_expectation(&self, out: &mut String) -> std::fmt::Result {
        let AnalyzeArgs { samples, workers, epochs, delta, seed, .. } = self.args;
        let scale = f64::from(samples);
        writeln!(
            out,
            "{} samples, {} workers, {} epochs; batches of {}, {} iterations an epoch",
            grouped(f64::from(samples), 0),
            grouped(f64::from(workers), 0),
            grouped(f64::from(epochs), 0),
            grouped(f64::from(self.stream.config().batch), 0),
            grouped(f64::from(self.stream.iterations()), 0),
        )?;
        writeln!(
            out,
            "Followed {} of the samples through the run (index-free order, seed {seed}).",
            if self.survey.drawn == samples {
                "all".to_owned()
            } else {
                grouped(f64::from(self.survey.drawn), 0)
            },
        )?;
        writeln!(
            out,
            "\nA worker reads a sample {:.2} times on average. Samples it reads more than {} times \
             (delta {delta}):",
            self.law.mean(),
            self.threshold() - 1,
        )?;
        writeln!(out, "  expected     {:>16}", grouped(self.expected(), 1))?;
        writeln!(
            out,
            "  Monte Carlo  {:>16}  ± {} (standard error; mean over all workers)",
            grouped(scale * self.survey.above, 1),
            grouped(scale * self.survey.above_error, 1),
        )
    }

    fn write_frequencies(&self, out: &mut String) -> std::fmt::Result {
        let counts = &self.survey.frequency;
        let total: u64 = counts.iter().sum();
        writeln!(out, "\nHow often a worker reads a sample (share of samples):")?;
        // A smaller count is not visible even as a partial column.
        let visible = total / 10_000;
        let first = counts.iter().position(|&n| n > visible).unwrap_or(0);
        let last = counts.iter().rposition(|&n| n > visible).unwrap_or(0);
        let width = (last - first + 1).div_ceil(ROWS);
        let bins = counts[first..=last].chunks(width);
        let rows = bins.enumerate().map(|(i, bin)| {
            let from = first + i * width;
            let label = if width == 1 {
                from.to_string()
            } else {
                format!("{from}–{}", from + width - 1)
            };
            (label, bin.iter().sum::<u64>() as f64 / total as f64)
        });
        chart(out, rows.take(ROWS))
    }

    fn write_reuse(&self, out: &mut String) -> std::fmt::Result {
        let histogram = &self.survey.reuse_by_worker;
        let iterations = u64::from(self.stream.iterations());
        let epoch = |at: f64| at / iterations as f64;
        writeln!(
            out,
            "\nHow far apart a worker's uses of a sample are, in epochs (iterations; share of reuses):"
        )?;
        let total = histogram.total();
        if total == 0 {
            return writeln!(out, "  no worker reads a sample twice");
        }
        // Up to the 99th percentile: the tail of a geometric law would add only empty rows.
        let shown = epoch(histogram.quantile(0.99)).max(1.0);
        let width = round_step(shown / ROWS as f64) * iterations as f64;
        let bins = ((width / f64::from(histogram.bin())).round() as usize).max(1);
        let step = (bins as u64 * u64::from(histogram.bin())) as f64;
        let decimals = if epoch(step) < 0.95 { 2 } else { 1 };
        let rows = histogram.counts().chunks(bins).enumerate().map(|(i, bin)| {
            let (from, to) = (i as f64 * step, (i + 1) as f64 * step);
            let label = format!(
                "{:.decimals$}–{:.decimals$} ({}–{})",
                epoch(from),
                epoch(to),
                grouped(from, 0),
                grouped(to, 0)
            );
            (label, bin.iter().sum::<u64>() as f64 / total as f64)
        });
        chart(out, rows.take(ROWS))?;
        let anyone = &self.survey.reuse_by_any;
        writeln!(
            out,
            "  {:.0} % of a worker's reuses lie an epoch or more apart; half within {:.2} epochs.\n  \
             By any worker, half of the reuses lie within {:.2} epochs, all within {:.2}.",
            100.0 * histogram.share_from(iterations),
            epoch(histogram.quantile(0.5)),
            epoch(anyone.quantile(0.5)),
            epoch(anyone.longest() as f64),
        )
    }

    fn write_coverage(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "\nSamples that no worker holds if all workers together can hold {} of the dataset\n\
             (read from shared storage in every epoch):",
            percent(self.args.capacity),
        )?;
        for row in self.coverage() {
            writeln!(out, "  {:<22} {:>7}  {}", row.placement, percent(row.uncovered), row.why)?;
        }
        Ok(())
    }
}

fn stream(args: &AnalyzeArgs) -> Result<AccessStream, UsageError> {
    let AnalyzeArgs { samples, workers, seed, .. } = *args;
    if workers > samples {
        return Err(UsageError::new(format!(
            "--workers {workers} is more than --samples {samples}: some workers would have \
             nothing to read"
        )));
    }
    // 32 per worker as in Lobster, or an epoch in one batch where that is less.
    let batch = args.batch.unwrap_or_else(|| workers * (samples / workers).min(32));
    if batch > samples {
        return Err(UsageError::new(format!(
            "--batch {batch} is more than --samples {samples}: an epoch has no complete batch"
        )));
    }
    AccessStream::new(StreamConfig {
        samples,
        ranks: workers,
        batch,
        order: Order::Permutation,
        scheme: Scheme::Uniform,
        seed,
        sampler_drop_last: false,
        drop_last: false,
    })
    .map_err(|error| UsageError::new(format!("--batch: {error}")))
}

/// Returns the smallest of 0.25, 0.5, 1, 2, 5, 10, 20, 50, ... that is at least `least`.
fn round_step(least: f64) -> f64 {
    let mut step = 0.25;
    while step < least {
        // Of 1, 2, 5, 10 only the step from 2 to 5 does not double.
        let lead = step / 10f64.powf(step.log10().floor());
        step *= if (lead - 2.0).abs() < 1e-6 { 2.5 } else { 2.0 };
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: AnalyzeArgs,
    }

    fn parse(text: &str) -> Result<AnalyzeArgs, clap::Error> {
        let words = std::iter::once("analyze").chain(text.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.args)
    }

    fn analysis(text: &str) -> Analysis {
        Analysis::new(parse(text).unwrap()).unwrap()
    }

    #[test]
    fn the_expected_counts_are_those_of_the_nopfs_paper() {
        let analysis = analysis("--samples 1_281_167 --workers 16 --epochs 90 --delta 0.8");
        assert!(analysis.text().contains("31,634.7"));
        let json = analysis.json();
        let monte_carlo = json["monte_carlo"]["expected_samples"].as_f64().unwrap();
        let error = json["monte_carlo"]["standard_error"].as_f64().unwrap();
        assert!((monte_carlo - 31_634.7).abs() < 4.0 * error, "{monte_carlo} ± {error}");
        assert_eq!(json["more_than"], 10);
    }

    #[test]
    fn every_sample_of_a_small_dataset_is_followed() {
        let analysis = analysis("--samples 10000 --workers 4 --epochs 1000 --delta 0.1");
        let text = analysis.text();
        assert!(text.contains("322.9") && text.contains("Followed all"), "{text}");
    }

    #[test]
    fn each_placement_leaves_its_known_share_uncovered() {
        let uncovered = |capacity: &str| {
            let rest = format!("--samples 100000 --workers 16 --epochs 90 --capacity {capacity}");
            analysis(&rest).json()["uncovered"].clone()
        };
        let exact = uncovered("1");
        assert_eq!(exact["belady"], 0.0);
        assert!((exact["nopfs"].as_f64().unwrap() - 0.31).abs() < 0.015);
        assert!((exact["random"].as_f64().unwrap() - 0.356).abs() < 0.001);
        assert_eq!(uncovered("0.75")["belady"], 0.25);
        assert_eq!(uncovered("0")["nopfs"], 1.0);
        assert_eq!(uncovered("16")["random"], 0.0);
    }

    #[test]
    fn a_run_of_one_epoch_has_no_reuses() {
        let analysis = analysis("--samples 100 --workers 1 --epochs 1");
        assert!(analysis.text().contains("no worker reads a sample twice"));
        assert_eq!(analysis.json()["uncovered"]["nopfs"], 0.0);
    }

    #[test]
    fn an_invalid_option_is_refused_with_its_reason() {
        for (text, sentence) in [
            ("--samples 0 --workers 4 --epochs 1", "the number of samples must be at least 1"),
            ("--samples -5 --workers 4 --epochs 1", "the number of samples must be at least 1"),
            ("--samples 9 --workers 0 --epochs 1", "the number of workers must be at least 1"),
            ("--samples 9 --workers 4 --epochs -1", "the number of epochs must be at least 1"),
            ("--samples 9 --workers 4 --epochs x", "the number of epochs must be a whole number"),
            ("--samples 9 --workers 4 --epochs 1 --delta -1", "delta must not be negative"),
            ("--samples 9 --workers 4 --epochs 1 --capacity nan", "must be finite"),
            ("--samples 9999999999 --workers 4 --epochs 1", "must be at most 4294967295"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(sentence), "{error}");
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        let error = |text| Analysis::new(parse(text).unwrap()).err().unwrap().to_string();
        let crowded = error("--samples 3 --workers 4 --epochs 1");
        assert!(crowded.contains("more than --samples 3"), "{crowded}");
        let uneven = error("--samples 90 --workers 4 --epochs 1 --batch 10");
        assert!(uneven.contains("multiple of 4"), "{uneven}");
        let large = error("--samples 90 --workers 4 --epochs 1 --batch 100");
        assert!(large.contains("no complete batch"), "{large}");
    }

    #[test]
    fn chart_steps_are_round_numbers() {
        let steps: Vec<f64> = [0.1, 0.3, 0.7, 1.5, 2.1, 7.0, 11.0, 21.0].map(round_step).into();
        assert_eq!(steps, [0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
    }
}

//! Preprocessing by sample size and thread count, compute by the sample, and threads with fixed
//! duties, against runs worked out by hand.
//!
//! Nothing takes time but what a test slows down.

use std::sync::Arc;

use belady_control::job::{Job, Packing, Sizes};
use belady_control::model::{
    Bytes, ComputeCost, Curve, Pipeline, Portfolio, PreprocessModel, Rate, Readers, Seconds,
    Sharing, SourceModel, System, TierModel,
};
use belady_control::policy::{Availability, FixedDuties, PolicyKind, plan};
use belady_control::sampler::{AccessStream, Order, Scheme, StreamConfig};
use belady_sim::bound::bound;
use belady_sim::outcome::RunOutcome;
use belady_sim::world::simulate;
use proptest::prelude::*;

const FAST: f64 = 1e15;

fn curve(points: &[(u32, f64)]) -> Curve {
    Curve::new(points.iter().map(|&(count, rate)| (count, Rate(rate))).collect()).unwrap()
}

fn measured(models: &[(u64, &[(u32, f64)])]) -> PreprocessModel {
    let models = models.iter().map(|&(size, points)| (Bytes(size), curve(points)));
    PreprocessModel::Measured(Portfolio::new(models.collect()).unwrap())
}

/// Rises to four threads, falls to eight, and stays there.
fn peak_at_four() -> PreprocessModel {
    measured(&[(100, &[(1, 100.0), (4, 400.0), (8, 200.0)])])
}

/// One node whose ranks consume a sample an iteration, in the order 0, 1, 2, ...
fn job(sizes: &[u64], ranks: u32, threads: u32, preprocess: PreprocessModel) -> Job {
    let samples = sizes.len() as u32;
    let tier = |name: &str, threads| TierModel {
        name: name.into(),
        capacity: Bytes(1 << 20),
        by_node: vec![],
        threads,
        read: Curve::flat(Rate(FAST)),
        write: Curve::flat(Rate(FAST)),
    };
    Job {
        system: System {
            nodes: 1,
            ranks_per_node: ranks,
            compute: Rate(FAST).into(),
            preprocess,
            network: Rate(FAST),
            source: SourceModel {
                throughput: Curve::flat(Rate(FAST)),
                link: Rate(FAST),
                sharing: Sharing::Aggregate,
                readers: Readers::Threads,
            },
            tiers: vec![tier("staging", threads)],
            pipeline: Pipeline::Overlapped,
        },
        stream: AccessStream::new(StreamConfig {
            samples,
            ranks,
            batch: ranks,
            order: Order::Sequential,
            scheme: Scheme::Uniform,
            seed: 0,
            sampler_drop_last: true,
            drop_last: true,
        })
        .unwrap(),
        sizes: Sizes::from_bytes(sizes),
        epochs: Some(1),
        packing: Packing { files: samples, read_size: None },
    }
}

fn run(job: Job, kind: PolicyKind) -> RunOutcome {
    let job = Arc::new(job);
    let plan = plan(&kind, &job).unwrap();
    let run = simulate(&job, &plan, 1, &mut |_, _| {});
    assert!(run.violations.is_empty(), "{:?}", run.violations);
    let least = bound(&job, 1).seconds.0;
    assert!(run.outcome.seconds >= least * (1.0 - 1e-9), "{} < {least}", run.outcome.seconds);
    run.outcome
}

fn staging(duties: Option<(u32, u32)>) -> PolicyKind {
    let fixed =
        |(loading, preprocessing)| FixedDuties { loading, preprocessing: Some(preprocessing) };
    PolicyKind::Staging { duties: duties.map(fixed) }
}

fn nopfs(loading: u32, preprocessing: u32) -> PolicyKind {
    PolicyKind::Nopfs {
        in_order: true,
        cleanup_read: false,
        availability: Availability::Heuristic,
        duties: Some(FixedDuties { loading, preprocessing: Some(preprocessing) }),
    }
}

#[track_caller]
fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-6 * b, "{a} is not {b}");
}

#[test]
fn throughput_rises_with_the_nodes_threads_peaks_and_stays_flat() {
    for (threads, seconds) in [(1, 10.0), (2, 5.0), (4, 2.5), (6, 10.0 / 3.0), (8, 5.0), (64, 5.0)]
    {
        for ranks in [1, 2] {
            let job = job(&[100; 10], ranks, threads.max(ranks), peak_at_four());
            let seconds = if threads < ranks { 5.0 } else { seconds };
            let outcome = run(job, staging(None));
            close(outcome.seconds, seconds);
            close(outcome.time.preprocess, seconds);
        }
    }
}

#[test]
fn threads_with_fixed_duties_do_nothing_else() {
    // Of eight threads, two load and so many preprocess.
    for (preprocessing, seconds) in [(1, 10.0), (2, 5.0), (4, 2.5), (6, 10.0 / 3.0)] {
        let job = job(&[100; 10], 1, 8, peak_at_four());
        close(run(job.clone(), staging(Some((2, preprocessing)))).seconds, seconds);
        close(run(job, nopfs(2, preprocessing)).seconds, seconds);
    }
    // A thread reads 50 B/s: two read the 1,000 B in ten seconds, five in four.
    for (loading, seconds) in [(2, 10.0), (5, 4.0)] {
        let mut job = job(&[100; 10], 1, 8, Rate(1e6).into());
        job.system.source.throughput = curve(&[(1, 50.0), (8, 400.0)]);
        close(run(job.clone(), staging(Some((loading, 1)))).seconds, seconds);
        close(run(job, nopfs(loading, 1)).seconds, seconds);
    }
    // Two ranks with one and two threads each: four preprocess, or two.
    let job = job(&[100; 10], 2, 8, peak_at_four());
    close(run(job.clone(), staging(Some((1, 2)))).seconds, 2.5);
    close(run(job, staging(Some((1, 1)))).seconds, 5.0);
}

#[test]
fn in_a_serial_pool_as_many_threads_preprocess_as_do_not_load() {
    let rising = measured(&[(400, &[(1, 100.0), (4, 400.0)])]);
    let mut job = job(&[400; 5], 1, 8, rising);
    job.system.pipeline = Pipeline::Serial;
    // Each sample is four thread seconds of reading: four threads read, four preprocess.
    job.system.source.throughput = curve(&[(1, 100.0), (8, 800.0)]);
    close(run(job.clone(), staging(None)).seconds, 5.0);
    // Twelve thread seconds: six threads read and two preprocess, two seconds a sample.
    job.system.source.throughput = curve(&[(1, 100.0 / 3.0), (8, 800.0 / 3.0)]);
    close(run(job, staging(None)).seconds, 10.0);
}

#[test]
fn on_demand_one_thread_of_each_rank_preprocesses() {
    let outcome = run(job(&[100; 10], 2, 8, peak_at_four()), PolicyKind::Naive);
    // Two ranks, two threads, 200 B/s.
    close(outcome.seconds, 5.0);
}

#[test]
fn compute_by_the_sample_is_the_same_for_all_sizes() {
    let mut job = job(&[1, 1000, 500, 20], 2, 8, Rate(FAST).into());
    job.system.compute = ComputeCost { rate: Rate(f64::INFINITY), per_sample: Seconds(3.0) };
    let outcome = run(job.clone(), staging(None));
    close(outcome.seconds, 6.0);
    close(outcome.mean_compute_seconds, 6.0);
    assert!(outcome.straggling_seconds < 1e-9, "{}", outcome.straggling_seconds);
    let least = bound(&job, 1);
    close(least.perfect.0, 6.0);
    assert!(least.straggling.0 < 1e-9, "{:?}", least.straggling);
    // Beside compute by the byte: 3 + 1000/100 and 3 + 500/100.
    job.system.compute.rate = Rate(100.0);
    close(run(job.clone(), staging(None)).seconds, 13.0 + 8.0);
    close(run(job, PolicyKind::Perfect).mean_compute_seconds, (13.0 + 8.0 + 3.01 + 3.2) / 2.0);
}

#[test]
fn the_bound_counts_each_size_at_its_best_thread_count() {
    // Small samples peak at two threads with 200 B/s, large ones at eight with 400 B/s.
    let model = measured(&[(10, &[(1, 100.0), (2, 200.0), (8, 100.0)]), (90, &[(8, 400.0)])]);
    let job = job(&[10, 90, 10, 90], 1, 8, model);
    close(bound(&job, 1).epochs[0].preprocess.0, 20.0 / 200.0 + 180.0 / 400.0);
    assert_eq!(bound(&job, 1).epochs[0].binds(), "preprocess");
}

proptest! {
    /// A run that only preprocesses takes what its samples take one after another.
    #[test]
    fn a_run_takes_what_each_sample_takes_with_the_threads_that_preprocess(
        tables in prop::collection::btree_map(
            1u64..500, prop::collection::btree_map(1u32..12, 1.0f64..1e4, 1..4), 1..4,
        ),
        sizes in prop::collection::vec(1u64..600, 1..40),
        (loading, preprocessing) in (1u32..4, 1u32..9),
        fixed: bool,
    ) {
        let models = tables.iter().map(|(&size, points)| {
            let points: Vec<_> = points.iter().map(|(&n, &rate)| (n, rate)).collect();
            (Bytes(size), curve(&points))
        });
        let model = PreprocessModel::Measured(Portfolio::new(models.collect()).unwrap());
        let threads = loading + preprocessing;
        let at_work = if fixed { preprocessing } else { threads };
        let naive: f64 = sizes
            .iter()
            .map(|&size| {
                let nearest = tables.iter().min_by_key(|(of, _)| (of.abs_diff(size), **of));
                let points: Vec<_> = nearest.unwrap().1.iter().map(|(&n, &r)| (n, r)).collect();
                size as f64 / curve(&points).at(at_work).0
            })
            .sum();
        let job = job(&sizes, 1, threads, model);
        let seconds = run(job, staging(fixed.then_some((loading, preprocessing)))).seconds;
        prop_assert!((seconds - naive).abs() <= 1e-6 * naive, "{} is not {}", seconds, naive);
    }
}

//! The world against runs worked out by hand, and policies against naive judges.

use std::sync::Arc;

use belady_control::model::{Bytes, Curve, Pipeline, Rate, Readers, Sharing, Source, System, Tier};
use belady_control::policy::{PolicyKind, plan};
use belady_control::sampler::{AccessStream, Order, Scheme, StreamConfig};
use belady_control::{Job, Sizes, job::Packing};
use belady_sim::bound::bound;
use belady_sim::outcome::Outcome;
use belady_sim::world::simulate;
use proptest::prelude::*;

fn tier(name: &str, capacity: u64, threads: u32, rate: f64) -> Tier {
    let rate = Curve::flat(Rate(rate));
    Tier { name: name.into(), capacity: Bytes(capacity), threads, read: rate.clone(), write: rate }
}

/// Two nodes of one rank, batches of one sample a rank, in the order 0, 1, 2, ...
fn small(sizes: &[u64], epochs: u32, source: f64, cache: u64) -> Arc<Job> {
    let system = System {
        nodes: 2,
        ranks_per_node: 1,
        compute: Rate(100.0),
        preprocess: Rate(1e6),
        network: Rate(1e6),
        source: Source {
            throughput: Curve::flat(Rate(source)),
            link: Rate(1e9),
            sharing: Sharing::Aggregate,
            readers: Readers::Nodes,
        },
        // Room for two batches of a hundred bytes.
        tiers: vec![tier("staging", 200, 1, 1e6), tier("ram", cache, 1, 1e6)],
        pipeline: Pipeline::Overlapped,
    };
    let stream = AccessStream::new(StreamConfig {
        samples: sizes.len() as u32,
        ranks: 2,
        batch: 2,
        order: Order::Sequential,
        scheme: Scheme::Uniform,
        seed: 0,
        sampler_drop_last: false,
        drop_last: false,
    })
    .unwrap();
    Arc::new(Job {
        system,
        stream,
        sizes: Sizes::from_bytes(sizes),
        epochs: Some(epochs),
        packing: Packing { files: sizes.len() as u32, read_size: None },
    })
}

fn run(job: &Arc<Job>, kind: PolicyKind) -> Outcome {
    let plan = plan(&kind, job).unwrap();
    let run = simulate(job, &plan, job.epochs.unwrap(), &mut |_, _| {});
    assert!(run.violations.is_empty(), "{:?}", run.violations);
    run.outcome
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.02 * b.max(0.01)
}

/// 100 B a sample at 100 B/s: a second of compute an iteration. The source gives 100 B/s to
/// both ranks together, 50 each: a batch takes two seconds to read. The ring holds two
/// batches, so reads run ahead and never stop: ready at 2, 4, 6; consumed a second later.
#[test]
fn a_source_half_as_fast_as_compute_sets_the_pace() {
    let job = small(&[100; 6], 1, 100.0, 0);
    let outcome = run(&job, PolicyKind::Staging { loading_threads: None });
    assert!(close(outcome.seconds, 7.0), "{}", outcome.seconds);
    assert!(close(outcome.stall_seconds, 4.0), "{}", outcome.stall_seconds);
    assert!(close(outcome.time.source, 4.0), "{:?}", outcome.time);
    assert_eq!(outcome.source_bytes_per_epoch, [600]);
    let ops = outcome.source_ops_per_epoch[0];
    assert_eq!((ops.open, ops.stat, ops.read), (6, 6, 6));
    // Both ranks wait alike.
    assert_eq!(outcome.imbalanced_iterations, 0.0);
    let bound = bound(&job, 1);
    assert!(close(bound.perfect.0, 3.0) && close(bound.seconds.0, 6.0));
}

/// On demand nothing overlaps: per iteration two seconds to read and one to compute.
#[test]
fn naive_reads_then_computes() {
    let outcome = run(&small(&[100; 6], 1, 100.0, 0), PolicyKind::Naive);
    assert!(close(outcome.seconds, 9.0), "{}", outcome.seconds);
}

/// Rank 0 reads 10 B an iteration, rank 1 190 B. With t = 100 B/s shared, rank 0 has its
/// 10 B after 0.2 s, then rank 1 is alone: 190 B take 2.0 s in all. Rank 1 is the slowest in
/// the first iteration and waits while rank 0 does not: imbalanced.
#[test]
fn one_rank_waits_for_the_other() {
    let outcome =
        run(&small(&[10, 190], 1, 100.0, 0), PolicyKind::Staging { loading_threads: None });
    assert!(close(outcome.seconds, 2.0 + 1.9), "{}", outcome.seconds);
    // Rank 0 waits 0.2 s, more than 5 % of the iteration's 1.9 s of compute.
    assert_eq!(outcome.imbalanced_iterations, 0.0);
    let outcome =
        run(&small(&[2, 198], 1, 100.0, 0), PolicyKind::Staging { loading_threads: None });
    // Now it waits 0.04 s of 1.98.
    assert_eq!(outcome.imbalanced_iterations, 1.0);
}

/// With room for everything the second epoch touches the source no more and takes what
/// compute takes.
#[test]
fn belady_reads_everything_once() {
    let job = small(&[100; 6], 3, 100.0, 400);
    let outcome = run(&job, PolicyKind::Belady);
    assert_eq!(outcome.source_bytes_per_epoch, [600, 0, 0]);
    assert!(close(outcome.epoch_seconds[1], 3.0), "{:?}", outcome.epoch_seconds);
    assert!(close(outcome.epoch_seconds[2], 3.0), "{:?}", outcome.epoch_seconds);
}

/// A link slower than the node's share of the source limits every policy.
#[test]
fn the_link_limits_whoever_reads() {
    let mut job = (*small(&[100; 6], 1, 1e6, 600)).clone();
    job.system.source.link = Rate(25.0);
    let job = Arc::new(job);
    // Three batches of 100 B a node at 25 B/s.
    let least = bound(&job, 1).seconds.0;
    assert!(close(least, 12.0), "{least}");
    for kind in PolicyKind::ALL {
        let Ok(plan) = plan(&kind, &job) else { continue };
        if kind == PolicyKind::Perfect || !plan.keeps_order() {
            continue;
        }
        let seconds = simulate(&job, &plan, 1, &mut |_, _| {}).outcome.seconds;
        assert!(seconds >= least * 0.999, "{}: {seconds} < {least}", kind.name());
    }
}

/// A random job of equal nodes.
fn jobs() -> impl Strategy<Value = (Arc<Job>, u32)> {
    (1u32..5, 1u32..3, 2u32..9, 20u32..60, 2u32..5, 0.05f64..1.4, 0u64..60, any::<u64>()).prop_map(
        |(nodes, per_node, local, iterations, epochs, share, spread, seed)| {
            let ranks = nodes * per_node;
            let samples = ranks * local * iterations;
            let sizes: Vec<u64> = (0..u64::from(samples))
                .map(|k| 1000 + (k * 7919 + seed % 97) % (spread + 1) * 10)
                .collect();
            let total: u64 = sizes.iter().sum();
            let room = (total as f64 * share) as u64 / u64::from(nodes);
            let system = System {
                nodes,
                ranks_per_node: per_node,
                compute: Rate(1e5),
                preprocess: Rate(1e9),
                network: Rate(1e9),
                source: Source {
                    throughput: Curve::flat(Rate(2e4 * f64::from(nodes))),
                    link: Rate(1e9),
                    sharing: Sharing::Aggregate,
                    readers: Readers::Nodes,
                },
                tiers: vec![
                    tier("staging", 8 * u64::from(local * per_node) * 1700, 4, 1e9),
                    tier("ram", room / 3, 2, 1e9),
                    tier("ssd", room - room / 3, 2, 1e8),
                ],
                pipeline: Pipeline::Overlapped,
            };
            let stream = AccessStream::new(StreamConfig {
                samples,
                ranks,
                batch: ranks * local,
                order: Order::Torch,
                scheme: Scheme::Uniform,
                seed,
                sampler_drop_last: false,
                drop_last: true,
            })
            .unwrap();
            let packing = Packing { files: samples, read_size: None };
            let sizes = Sizes::from_bytes(sizes);
            (Arc::new(Job { system, stream, sizes, epochs: Some(epochs), packing }), epochs)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// `belady` on any job: the first epoch reads everything once, a later one no more than
    /// what cannot be held. What a tier cannot use of its room (the rest that is smaller than
    /// a sample, the slack) is a few samples a node and tier and 0.2 %.
    #[test]
    fn belady_reads_what_arithmetic_demands((job, epochs) in jobs()) {
        let outcome = run(&job, PolicyKind::Belady);
        let bound = bound(&job, epochs);
        prop_assert_eq!(outcome.source_bytes_per_epoch[0], bound.epochs[0].distinct_bytes);
        let largest = job.sizes.largest().0;
        let spare = u64::from(job.system.nodes) * 3 * 4 * largest;
        for epoch in 1..epochs as usize {
            let least = bound.epochs[epoch].source_bytes;
            let limit = least + spare + bound.epochs[epoch].distinct_bytes / 100;
            prop_assert!(
                outcome.source_bytes_per_epoch[epoch] <= limit,
                "epoch {} read {} of at least {}", epoch, outcome.source_bytes_per_epoch[epoch], least
            );
        }
    }

    /// No policy that keeps the order beats the bound by more than the ring carries from one
    /// epoch to the next.
    #[test]
    fn nobody_beats_the_bound((job, epochs) in jobs()) {
        let least = bound(&job, epochs).seconds.0;
        let ring = job.system.tiers[0].capacity.0 as f64 * f64::from(job.system.nodes);
        let carried = f64::from(epochs) * ring / job.system.source.throughput.at(1).0;
        for kind in PolicyKind::ALL {
            let Ok(plan) = plan(&kind, &job) else { continue };
            if kind == PolicyKind::Perfect || !plan.keeps_order() {
                continue;
            }
            let seconds = simulate(&job, &plan, epochs, &mut |_, _| {}).outcome.seconds;
            prop_assert!(seconds + carried >= least, "{}: {} < {}", kind.name(), seconds, least);
        }
    }
}

//! Batches of several ranks while the threads' assignment changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::policy::{PolicyKind, ThreadAssignment};
use belady_data::source::{Source, Synthetic};
use proptest::prelude::*;

use super::*;
use crate::config::{EngineConfig, JobConfig, TierConfig};
use crate::{Engine, POLICIES};

/// Takes all batches; checks each sample's bytes.
fn consume(stage: &Transformed, source: &Synthetic) -> Vec<Vec<u32>> {
    let mut seen = vec![];
    loop {
        match stage.next_batch_timeout(Duration::from_mins(1)).unwrap() {
            Delivery::Ended => return seen,
            Delivery::TimedOut => panic!("it waits for {}", stage.waiting_for()),
            Delivery::Batch(batch) => {
                let OutputColumn::Loose(values) = &batch.columns[0] else {
                    panic!("a field without a chain has no rows")
                };
                assert_eq!(values.len(), batch.samples.len());
                for (&sample, value) in batch.samples.iter().zip(values) {
                    let Value::Bytes(bytes) = value else { panic!("{value:?}") };
                    assert!(source.verify(sample, bytes), "bytes of sample {sample}");
                }
                seen.push(batch.samples.to_vec());
            }
        }
    }
}

fn assignments() -> impl Strategy<Value = ThreadAssignment> {
    let loading = prop::collection::vec(0.0f64..5.0, 3);
    prop_oneof![
        Just(ThreadAssignment::Pooled),
        Just(ThreadAssignment::PerRank),
        (loading, 0.0f64..9.0).prop_map(|(loading, preprocessing)| ThreadAssignment::Split {
            loading,
            preprocessing
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_samples_come_once_and_in_order_whatever_threads_are_assigned(
        samples in 1u32..150,
        batch in 1u32..8,
        (threads, brought, depth) in (1u32..4, 1usize..3, 1usize..4),
        cached in 0u64..12,
        policy in prop::sample::select(POLICIES.to_vec()),
        assigned in prop::collection::vec(assignments(), 1..12),
    ) {
        const RANKS: u32 = 3;
        let sizes = (0..samples).map(|k| 100 + u64::from(k * 7919 % 900));
        let source = Arc::new(Synthetic::of_sizes(sizes, 7));
        let quota = source.catalog().sizes().total().0 * cached / 10;
        let engine = Engine::new(EngineConfig {
            threads: Some(threads),
            tiers: vec![TierConfig::Ram { capacity: Bytes(quota) }],
            ..EngineConfig::default()
        })
        .unwrap();
        let config = JobConfig {
            batch,
            epochs: Some(3),
            staging: Bytes(64 << 10),
            policy: PolicyKind::by_name(policy).unwrap(),
            ..JobConfig::new(source.clone())
        };
        let loaders = engine.start_ranks(&config, RANKS).unwrap();
        let job = loaders[0].job_context().clone();
        let stream = loaders[0].job().stream.clone();
        let stages: Vec<Transformed> = loaders
            .into_iter()
            .map(|loader| {
                let fields = vec![FieldSpec { part: None, transform: None }];
                let rest = TransformConfig::default();
                let config = TransformConfig { fields, threads: brought, depth, ..rest };
                Transformed::new(loader, config).unwrap()
            })
            .collect();
        let ended = AtomicBool::new(false);
        let seen: Vec<Vec<Vec<u32>>> = std::thread::scope(|scope| {
            scope.spawn(|| {
                for assignment in assigned.iter().cycle() {
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    job.assign_threads(assignment);
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            let consumers = stages.into_iter().map(|stage| {
                let source = source.clone();
                scope.spawn(move || consume(&stage, &source))
            });
            let consumers: Vec<_> = consumers.collect();
            let seen: Vec<_> = consumers.into_iter().map(ScopedJoinHandle::join).collect();
            ended.store(true, Ordering::Relaxed);
            seen.into_iter().map(|seen| seen.unwrap()).collect()
        });
        for (rank, seen) in (0..RANKS).zip(seen) {
            let expected: Vec<Vec<u32>> = (0..3)
                .flat_map(|epoch| {
                    let order = stream.epoch(epoch);
                    (0..order.iterations())
                        .map(|at| order.batch(rank, at).collect())
                        .collect::<Vec<Vec<u32>>>()
                })
                .collect();
            prop_assert_eq!(seen, expected, "rank {}", rank);
        }
        // The stages are gone, and what they brought.
        prop_assert_eq!(job.lane.division().transforming, 0);
        prop_assert_eq!(job.lane.threads(), threads);
    }
}

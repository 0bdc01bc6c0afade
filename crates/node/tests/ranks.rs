//! Ranks of a node that share an engine, each on a thread of the test.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::sampler::Step;
use belady_engine::{
    BadSamples, Delivery, ErrorClass, JobConfig, Lend, MappedMemory, OutputColumn,
};
use belady_node::{EngineSpec, NodeConnection, NodeTransformed, ServerOptions, TransformRecipe};
use proptest::prelude::*;

use common::{Files, Server, bytes_of, checked, expected, next, orders, place, spec, start};

/// What each rank got, when all read side by side; a rank may stop early and holds some batches.
fn read_all(
    files: &Arc<Files>,
    server: &Server,
    cache: u64,
    batch: u32,
    epochs: u32,
    limits: &[usize],
    holds: usize,
) -> Vec<Vec<Vec<u32>>> {
    let ranks = limits.len() as u32;
    let threads = (0..ranks).zip(limits).map(|(rank, &limit)| {
        let (files, socket) = (files.clone(), server.socket.clone());
        std::thread::spawn(move || {
            let job = files.job(epochs);
            let started = start(&socket, &files, &spec(cache), &job, place(rank, ranks), batch);
            let (_connection, mut loader) = started.unwrap();
            let (mut seen, mut held) = (vec![], VecDeque::new());
            while seen.len() < limit {
                let Some(batch) = next(&mut loader).unwrap() else { break };
                seen.push(checked(&batch));
                held.push_back(batch);
                if held.len() > holds {
                    held.pop_front();
                }
            }
            drop(loader);
            // What is held stays as it is without a loader.
            for (batch, seen) in held.iter().rev().zip(seen.iter().rev()) {
                assert_eq!(&checked(batch), seen);
            }
            seen
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

const ALL: usize = usize::MAX;

#[test]
fn the_engine_counts_what_each_rank_of_the_node_has_got() {
    let files = Arc::new(Files::new(48));
    let server = Server::new(ServerOptions { stays: true, engine: Some(spec(files.total())) });
    read_all(&files, &server, 0, 4, 2, &[ALL; 3], 1);
    let connection = NodeConnection::open(&server.socket).unwrap();
    let seen = connection.metrics(1, 0).unwrap();
    let counted: Vec<(u32, u64)> = seen.ranks.iter().map(|it| (it.rank, it.batches)).collect();
    assert_eq!(counted, [(0, 8), (1, 8), (2, 8)]);
    let blocked: u64 = seen.ranks.iter().map(|rank| rank.blocked_ns).sum();
    assert_eq!(blocked, seen.blocked_ns);
    connection.stop().unwrap();
    server.end();
}

#[test]
fn each_rank_gets_its_own_batches_and_the_engine_ends_with_the_last_one() {
    let files = Arc::new(Files::new(101));
    let server = Server::new(ServerOptions::default());
    let seen = read_all(&files, &server, files.total() / 2, 4, 3, &[ALL; 3], 1);
    for (rank, seen) in (0..3).zip(seen) {
        assert_eq!(seen, expected(&orders(101, rank, 3, 4), 3), "rank {rank}");
    }
    server.end();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn ranks_that_leave_at_any_time_change_nothing_for_the_others(
        samples in 8u32..80,
        batch in 1u32..6,
        limits in prop::collection::vec(prop_oneof![Just(ALL), 0usize..12], 1..5),
        cached in 0u64..12,
        holds in 0usize..3,
    ) {
        let files = Arc::new(Files::new(samples));
        let server = Server::new(ServerOptions::default());
        let cache = files.total() * cached / 10;
        let seen = read_all(&files, &server, cache, batch, 3, &limits, holds);
        for ((rank, seen), &limit) in (0..).zip(seen).zip(&limits) {
            let mut expected = expected(&orders(samples, rank, limits.len() as u32, batch), 3);
            expected.truncate(limit);
            prop_assert_eq!(seen, expected);
        }
        server.end();
    }
}

#[test]
fn an_engine_that_stays_keeps_its_cache_for_the_next_run() {
    let files = Arc::new(Files::new(60));
    let options = ServerOptions { stays: true, engine: Some(spec(files.total() * 2)) };
    let server = Server::new(options);
    let connection = NodeConnection::open(&server.socket).unwrap();
    let source_bytes = || connection.status().unwrap().engines[0].source.bytes;
    for _run in 0..2 {
        read_all(&files, &server, 0, 4, 2, &[ALL; 2], 0);
        // The cache is retained when the last rank's connection has ended.
        while !connection.status().unwrap().jobs.is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(source_bytes(), files.total(), "the second run reads nothing");
    }
    // A process is counted until its connection has ended.
    while connection.status().unwrap().processes > 1 {
        std::thread::yield_now();
    }
    let status = connection.status().unwrap();
    assert!(status.stays && status.pid == std::process::id() && status.processes == 1);
    connection.stop().unwrap();
    server.end();
}

#[test]
fn samples_that_are_only_read_are_lent_from_the_memory_of_the_cache() {
    const EPOCHS: u32 = 5;
    let files = Arc::new(Files::new(40));
    let server = Server::new(ServerOptions::default());
    let spec =
        EngineSpec { tiers: vec![(None, files.total() * 2), (None, files.total())], ..spec(0) };
    // A batch of the last epoch is planned when most batches of the others are consumed: no read of
    // its samples is in flight.
    let staging = Bytes(files.total() * 3 / 2);
    let job = JobConfig { lend: Lend::ReadOnly, staging, ..files.job(EPOCHS) };
    let started = start(&server.socket, &files, &spec, &job, place(0, 1), 4);
    let (connection, mut loader) = started.unwrap();
    let (mut seen, mut held) = (vec![], vec![]);
    while let Some(batch) = next(&mut loader).unwrap() {
        seen.push(checked(&batch));
        let is_last = seen.len() > 10 * (EPOCHS as usize - 1);
        for place in batch.places().iter().flatten() {
            let mapped = place.mapped.as_ref().map(|mapped| mapped.memory);
            let is_lent = matches!(mapped, Some(MappedMemory::Tier(_)));
            assert!(is_lent || !is_last, "{mapped:?} in the last epoch");
            assert!(!(is_lent && place.is_in_slot), "a consumer must not write to it");
        }
        if is_last {
            held.push(batch);
        }
    }
    assert_eq!(seen, expected(&orders(40, 0, 1, 4), EPOCHS));
    drop(loader);
    drop(connection);
    for (batch, seen) in held.iter().rev().zip(seen.iter().rev()) {
        assert_eq!(&checked(batch), seen, "lent bytes stay in place");
    }
    drop(held);
    server.end();
}

#[test]
fn transformed_batches_lie_in_memory_that_is_used_again() {
    let files = Arc::new(Files::new(40));
    let server = Server::new(ServerOptions::default());
    let started = start(&server.socket, &files, &spec(0), &files.job(2), place(0, 1), 4);
    let (_connection, loader) = started.unwrap();
    let chain = belady_transform::Chain::new(
        belady_transform::TransformStep::list(
            r#"[{"op": "Raw", "dtype": "uint8", "shape": [null]}]"#,
        )
        .unwrap(),
    );
    let recipe = TransformRecipe {
        fields: vec![(None, Some(Arc::new(chain.unwrap()))), (None, None)],
        seed: 0,
        first: Step { epoch: 0, iteration: 0 },
        repeats: false,
        threads: 2,
        depth: 2,
        on_error: BadSamples::Raise,
    };
    let stage = NodeTransformed::new(loader, &recipe, None).unwrap();
    let mut seen = vec![];
    loop {
        match stage.next_batch_timeout(Duration::from_secs(5)).unwrap() {
            Delivery::TimedOut => {}
            Delivery::Ended => break,
            Delivery::Batch(batch) => {
                let OutputColumn::Loose(values) = &batch.columns[1] else { panic!("{batch:?}") };
                for (sample, value) in batch.samples.iter().zip(values) {
                    let belady_engine::Value::Bytes(bytes) = value else { panic!("{value:?}") };
                    assert_eq!(*bytes, bytes_of(*sample));
                }
                seen.push(batch.samples.to_vec());
            }
        }
    }
    assert_eq!(seen, expected(&orders(40, 0, 1, 4), 2));
    drop(stage);
}

#[test]
fn rows_of_one_shape_are_passed_without_a_copy() {
    let files = Arc::new(Files::new(64));
    let server = Server::new(ServerOptions::default());
    let started = start(&server.socket, &files, &spec(0), &files.job(3), place(0, 1), 4);
    let (_connection, loader) = started.unwrap();
    let recipe = TransformRecipe {
        fields: vec![(None, Some(Arc::new(prefix_chain())))],
        seed: 0,
        first: Step { epoch: 0, iteration: 0 },
        repeats: false,
        threads: 2,
        depth: 2,
        on_error: BadSamples::Skip,
    };
    let stage = NodeTransformed::new(loader, &recipe, None).unwrap();
    let (mut addresses, mut batches, mut failures) = (std::collections::HashSet::new(), 0, 0);
    loop {
        match stage.next_batch_timeout(Duration::from_secs(5)).unwrap() {
            Delivery::TimedOut => {}
            Delivery::Ended => break,
            Delivery::Batch(batch) => {
                batches += 1;
                failures += batch.failures.len();
                let OutputColumn::Rows(rows) = &batch.columns[0] else { panic!("{batch:?}") };
                let block = batch.block.as_ref().unwrap();
                addresses.insert(block.start().as_ptr() as usize);
                let good: Vec<u32> = match &batch.kept {
                    None => batch.samples.to_vec(),
                    Some(kept) => kept.iter().map(|&at| batch.samples[at as usize]).collect(),
                };
                for (row, sample) in good.iter().enumerate() {
                    let start = block.start().as_ptr() as usize + rows.offset + row * 100;
                    // SAFETY: a row of the batch, which is held.
                    let row = unsafe { std::slice::from_raw_parts(start as *const u8, 100) };
                    assert_eq!(row, bytes_of(*sample));
                }
            }
        }
    }
    assert_eq!(batches, 48);
    assert!(failures > 0, "samples that are not 100 bytes long fail");
    assert!(addresses.len() <= 6, "{} blocks", addresses.len());
}

/// Takes samples of exactly 100 bytes.
fn prefix_chain() -> belady_transform::Chain {
    let steps = r#"[{"op": "Raw", "dtype": "uint8", "shape": [100]}]"#;
    belady_transform::Chain::new(belady_transform::TransformStep::list(steps).unwrap()).unwrap()
}

#[test]
fn ranks_that_differ_are_refused_in_a_sentence() {
    let files = Arc::new(Files::new(20));
    let server = Server::new(ServerOptions::default());
    let threads = (0..2).map(|rank| {
        let (files, socket) = (files.clone(), server.socket.clone());
        std::thread::spawn(move || {
            let job = files.job(1 + rank);
            start(&socket, &files, &spec(0), &job, place(rank, 2), 2).unwrap_err()
        })
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        let error = thread.join().unwrap();
        assert_eq!(error.class(), ErrorClass::Configuration);
        assert!(error.to_string().contains("different loaders"), "{error}");
    }
    server.end();
}

#[test]
fn an_order_that_fails_is_reported_as_it_was_raised() {
    #[derive(Debug)]
    struct Broken;
    impl belady_control::sampler::OrderProvider for Broken {
        fn epoch(
            &self,
            epoch: u32,
        ) -> Result<Option<belady_control::sampler::EpochList>, belady_control::sampler::OrderError>
        {
            Err(belady_control::sampler::OrderError::ZeroBatch { epoch })
        }
    }
    let files = Files::new(20);
    let server = Server::new(ServerOptions::default());
    let connection = NodeConnection::open(&server.socket).unwrap();
    let job = files.job(1);
    let started = connection.start(place(0, 1), &spec(0), &job, &files.recipe, Arc::new(Broken));
    let error = match started {
        Ok(mut loader) => next(&mut loader).unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, belady_engine::EngineError::Order(_)), "{error:?}");
}

#[test]
fn a_sample_that_cannot_be_read_is_named_and_the_run_goes_on() {
    let files = Files::new(20);
    let server = Server::new(ServerOptions::default());
    let order = orders(20, 0, 1, 5);
    let bad = expected(&order, 1)[1][2];
    let path = match &files.recipe {
        belady_node::DatasetRecipe::Listed { path, .. } => path.join(format!("{bad:06}.bin")),
        _ => unreachable!(),
    };
    std::fs::remove_file(&path).unwrap();
    let started = start(&server.socket, &files, &spec(0), &files.job(1), place(0, 1), 5);
    let (_connection, mut loader) = started.unwrap();
    let expected = expected(&order, 1);
    assert_eq!(checked(&next(&mut loader).unwrap().unwrap()), expected[0]);
    let error = next(&mut loader).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Sample { sample: bad, path });
    assert_eq!(checked(&next(&mut loader).unwrap().unwrap()), expected[2]);
}

//! Jobs of one engine on one disk tier, and a warm disk.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belady_control::model::Bytes;
use belady_data::source::{Source, Synthetic};
use belady_data::tier::{TierFaults, disk};
use belady_engine::{Engine, EngineConfig, JobConfig, Loader, TierConfig};
use common::{consume, expected};
use tempfile::tempdir;

fn engine(directory: &Path, capacity: u64) -> Engine {
    let directory = directory.to_owned();
    let tiers = vec![TierConfig::Disk { directory, capacity: Bytes(capacity) }];
    Engine::new(EngineConfig { threads: Some(2), tiers, ..EngineConfig::default() }).unwrap()
}

fn job(source: &Arc<Synthetic>) -> JobConfig {
    let source: Arc<dyn Source> = source.clone();
    JobConfig { batch: 10, epochs: Some(2), ..JobConfig::new(source) }
}

fn samples(size: u64, seed: u64) -> Arc<Synthetic> {
    Arc::new(Synthetic::of_sizes(vec![size; 200], seed))
}

/// Delivers a whole job and checks its bytes.
fn run(engine: &Engine, source: &Arc<Synthetic>) {
    finish(engine.start(&job(source)).unwrap(), source);
}

fn finish(loader: Loader, source: &Arc<Synthetic>) {
    assert_eq!(consume(loader, source).unwrap(), expected(&job(source)));
}

fn caches(directory: &Path) -> usize {
    disk::list(directory).unwrap().len()
}

#[test]
fn a_job_that_gets_nothing_of_the_disk_removes_nothing_there() {
    let directory = tempdir().unwrap();
    let engine = engine(directory.path(), 100 << 20);
    for seed in [1, 2] {
        run(&engine, &samples(1_000, seed));
    }
    let (training, validation) = (samples(1_000, 3), samples(1_000, 4));
    let first = engine.start(&job(&training)).unwrap();
    assert_eq!(caches(directory.path()), 3);
    // The first job has the whole quota.
    let second = engine.start(&job(&validation)).unwrap();
    assert_eq!(second.tiers()[0].capacity, Bytes(0));
    assert_eq!(caches(directory.path()), 3, "the caches of earlier jobs are still there");
    finish(second, &validation);
    finish(first, &training);
    run(&engine, &validation);
    assert_eq!(caches(directory.path()), 4);
}

#[test]
fn two_jobs_with_half_of_the_disk_each_get_it() {
    let directory = tempdir().unwrap();
    let quota = 4 << 20;
    let engine = engine(directory.path(), quota);
    // Each could use 3 MB.
    let sources = [samples(15_000, 1), samples(15_000, 2)];
    let first = engine.start(&JobConfig { cache_share: 0.5, ..job(&sources[0]) }).unwrap();
    let second = engine.start(&job(&sources[1])).unwrap();
    for loader in [&first, &second] {
        let status = loader.tiers().remove(0);
        assert_eq!(status.degraded, None);
        assert!((1_900_000..=quota / 2).contains(&status.capacity.0), "{status:?}");
    }
    finish(first, &sources[0]);
    finish(second, &sources[1]);
    let on_disk: u64 = disk::list(directory.path()).unwrap().iter().map(|it| it.on_disk.0).sum();
    assert!(on_disk <= quota, "{on_disk}");
}

#[test]
fn datasets_of_equal_sizes_do_not_share_a_cache() {
    let directory = tempdir().unwrap();
    let engine = engine(directory.path(), 100 << 20);
    for seed in [1, 2, 1] {
        run(&engine, &samples(1_000, seed));
    }
    assert_eq!(caches(directory.path()), 2);
}

#[test]
fn a_batch_held_after_its_loader_leaves_the_cache_to_the_next_job() {
    let directory = tempdir().unwrap();
    let engine = engine(directory.path(), 100 << 20);
    let source = samples(1_000, 1);
    let mut loader = engine.start(&job(&source)).unwrap();
    let held = loader.next_batch().unwrap().unwrap();
    drop(loader);
    run(&engine, &source);
    assert!(held.iter().all(|sample| source.verify(sample.id, sample.bytes())));
    drop(held);
    let next = engine.start(&job(&source)).unwrap();
    assert_eq!(next.tiers()[0].degraded, None, "its writer is gone");
}

/// Enough samples that the free space is computed after the start.
#[test]
fn a_large_warm_disk_is_known_to_be_warm_at_once() {
    let directory = tempdir().unwrap();
    let source = Arc::new(Synthetic::of_sizes(vec![40; 50_000], 1));
    let job = JobConfig { batch: 1_000, ..job(&source) };
    let start = || engine(directory.path(), 100 << 20).start(&job).unwrap();
    consume(start(), &source).unwrap();
    let held = start().tiers()[0].samples;
    assert!(held > 25_000, "{held}");
    let loader = start();
    assert_eq!(loader.tiers()[0].samples, held, "known at once");
    assert_eq!(consume(loader, &source).unwrap(), expected(&job));
}

#[test]
fn an_index_cut_off_in_mid_run_changes_no_batch() {
    for warm in [false, true] {
        let directory = tempdir().unwrap();
        let source = samples(1_000, 1);
        let engine = engine(directory.path(), 100 << 20);
        if warm {
            run(&engine, &source);
        }
        let job = JobConfig { epochs: Some(4), staging: Bytes(64 << 10), ..job(&source) };
        let mut loader = engine.start(&job).unwrap();
        let mut seen = vec![];
        while let Some(batch) = loader.next_batch().unwrap() {
            for sample in batch.iter() {
                assert!(source.verify(sample.id, sample.bytes()));
            }
            seen.push(batch.iter().map(|sample| sample.id).collect::<Vec<_>>());
            if seen.len() % 17 == 3 {
                cut_indexes(directory.path());
            }
        }
        assert_eq!(seen, expected(&job));
    }
}

fn cut_indexes(directory: &Path) {
    for cache in std::fs::read_dir(directory.join("belady-cache-v1")).unwrap() {
        let index = cache.unwrap().path().join("index");
        if let Ok(index) = std::fs::File::options().write(true).open(index) {
            index.set_len(0).unwrap();
        }
    }
}

#[test]
fn a_disk_that_is_much_slower_than_the_source_is_hardly_read() {
    let folder = tempdir().unwrap();
    let directory = folder.path().to_owned();
    let tiers = vec![TierConfig::Disk { directory, capacity: Bytes(100 << 20) }];
    let slow =
        TierFaults { hung_get: 1.0, hang: Duration::from_millis(5), ..TierFaults::default() };
    let engine = Engine::new(EngineConfig {
        threads: Some(2),
        tiers,
        tier_faults: Some((slow, 1)),
        ..EngineConfig::default()
    })
    .unwrap();
    let source = samples(1_000, 1);
    let config = JobConfig { epochs: Some(5), ..job(&source) };
    assert_eq!(consume(engine.start(&config).unwrap(), &source).unwrap(), expected(&config));
    let hits = engine.metrics().snapshot().tiers[0].hits();
    assert!((1..400).contains(&hits), "{hits} of 800 that the disk holds");
}

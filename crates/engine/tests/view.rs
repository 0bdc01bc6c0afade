//! Random access through the caches, and monitors of jobs.

mod common;

use std::path::Path;
use std::sync::Arc;

use belady_control::model::Bytes;
use belady_data::source::{FaultSpec, Faulty, Source, Synthetic};
use belady_engine::{Engine, EngineConfig, JobConfig, Retry, TierConfig};
use common::consume;
use tempfile::tempdir;

const SAMPLES: u32 = 100;

fn source(seed: u64) -> Arc<Synthetic> {
    Arc::new(Synthetic::of_sizes(vec![1_000; SAMPLES as usize], seed))
}

fn engine(tiers: Vec<TierConfig>) -> Engine {
    Engine::new(EngineConfig { threads: Some(2), tiers, ..EngineConfig::default() }).unwrap()
}

fn ram() -> TierConfig {
    TierConfig::Ram { capacity: Bytes(1 << 20) }
}

fn disk(directory: &Path) -> TierConfig {
    TierConfig::Disk { directory: directory.to_owned(), capacity: Bytes(10 << 20) }
}

fn job(source: &Arc<Synthetic>) -> JobConfig {
    let source: Arc<dyn Source> = source.clone();
    JobConfig { batch: 10, epochs: Some(2), ..JobConfig::new(source) }
}

fn check(engine: &Engine, source: &Arc<Synthetic>) {
    let view = engine.view(source.clone(), "data");
    for sample in (0..SAMPLES).rev() {
        assert!(source.verify(sample, &view.read(sample).unwrap()), "sample {sample}");
    }
}

#[test]
fn without_caches_the_source_is_read() {
    let (engine, source) = (engine(vec![]), source(1));
    check(&engine, &source);
    assert_eq!(source.operations().read, u64::from(SAMPLES));
}

#[test]
fn a_view_reads_from_the_caches_of_jobs_on_the_same_dataset_only() {
    let (engine, source) = (engine(vec![ram()]), source(1));
    let mut loader = engine.start(&job(&source)).unwrap();
    while loader.next_batch().unwrap().is_some() {}
    let before = source.operations().read;
    let other = Arc::new(Synthetic::of_sizes(vec![1_000; SAMPLES as usize], 2));
    check(&engine, &other);
    check(&engine, &source);
    assert_eq!(source.operations().read, before);
    assert_eq!(other.operations().read, u64::from(SAMPLES));
    drop(loader);
    check(&engine, &source);
    assert_eq!(
        source.operations().read,
        before + u64::from(SAMPLES),
        "the cache ended with its job"
    );
}

#[test]
fn a_directory_that_an_earlier_run_has_filled_is_read_and_not_changed() {
    let directory = tempdir().unwrap();
    let source = source(1);
    let first = engine(vec![disk(directory.path())]);
    // Opened before there is a cache; it looks again, but not at once.
    let early = first.view(source.clone(), "data");
    early.read(0).unwrap();
    consume(first.start(&job(&source)).unwrap(), &source).unwrap();
    drop((early, first));
    let before = source.operations().read;
    let later = engine(vec![disk(directory.path())]);
    check(&later, &source);
    assert_eq!(source.operations().read, before, "all of it was cached");
    // A job of another process could write meanwhile: the view holds no lock.
    consume(later.start(&job(&source)).unwrap(), &source).unwrap();
    assert_eq!(source.operations().read, before);
}

#[test]
fn reads_that_fail_are_tried_again_as_in_a_job() {
    let faults = FaultSpec { rates: [0.3, 0.0, 0.0, 0.0, 0.0], seed: 7, ..FaultSpec::default() };
    let synthetic = source(1);
    let faulty: Arc<dyn Source> =
        Arc::new(Faulty::new(Synthetic::of_sizes(vec![1_000; SAMPLES as usize], 1), faults));
    let retry = Retry { attempts: 20, backoff: std::time::Duration::ZERO, ..Retry::default() };
    let engine = Engine::new(EngineConfig { retry, ..EngineConfig::default() }).unwrap();
    let view = engine.view(faulty, "data");
    for sample in 0..SAMPLES {
        assert!(synthetic.verify(sample, &view.read(sample).unwrap()));
    }
    assert!(engine.metrics().snapshot().retries > 0);
}

#[test]
fn a_monitor_keeps_nothing_alive() {
    let (engine, source) = (engine(vec![ram()]), source(1));
    let mut loader = engine.start(&job(&source)).unwrap();
    let monitor = loader.monitor();
    while loader.next_batch().unwrap().is_some() {}
    assert_eq!(monitor.tiers()[0].samples, u64::from(SAMPLES));
    assert_eq!(monitor.metrics().snapshot().delivered.samples, 2 * u64::from(SAMPLES));
    drop(loader);
    assert!(monitor.tiers().is_empty());
    assert!(monitor.waiting_for().contains("ended"), "{}", monitor.waiting_for());
}

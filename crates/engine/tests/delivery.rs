//! Every epoch is an exact permutation with the right bytes, whatever the policy, the capacities,
//! the threads and the sizes.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::policy::PolicyKind;
use belady_control::sampler::Order;
use belady_data::source::{
    Catalog, DatasetFormat, Fault, FaultSpec, Faulty, ListingProgress, OpenOptions, Operations,
    ReadError, Snapshots, Source, Synthetic, Want,
};
use belady_data::tier::TierFaults;
use belady_engine::POLICIES;
use belady_engine::{
    BadSamples, Engine, EngineConfig, EngineError, JobConfig, Lend, Retry, TierConfig,
};
use common::{consume, expected, policy};
use proptest::prelude::*;

fn engine(threads: u32, tiers: &[u64]) -> Engine {
    let tiers = tiers.iter().map(|&bytes| TierConfig::Ram { capacity: Bytes(bytes) }).collect();
    Engine::new(EngineConfig { threads: Some(threads), tiers, ..EngineConfig::default() }).unwrap()
}

fn job(source: &Arc<Synthetic>, policy: PolicyKind) -> JobConfig {
    let source: Arc<dyn Source> = source.clone();
    JobConfig { epochs: Some(4), batch: 5, policy, ..JobConfig::new(source) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_epoch_is_an_exact_permutation(
        sizes in prop::collection::vec(prop_oneof![Just(0u64), 1..2000u64, 1..60_000u64], 1..120),
        threads in 1u32..5,
        tiers in prop::collection::vec(0u64..400_000, 0..3),
        spare in 0u64..200_000,
        which in 0..POLICIES.len(),
        batch in 1u32..20,
        read_only: bool,
        drop_last: bool,
        seed: u64,
    ) {
        let batch = batch.min(sizes.len() as u32);
        let source = Arc::new(Synthetic::of_sizes(sizes, seed));
        let engine = engine(threads, &tiers);
        let config = JobConfig {
            batch,
            drop_last,
            seed,
            lend: if read_only { Lend::ReadOnly } else { Lend::Slots },
            ..job(&source, policy(POLICIES[which]))
        };
        // The smallest buffer that is accepted, and a little more.
        let refused = JobConfig { staging: Bytes(0), ..config.clone() };
        let needed = match engine.start(&refused) {
            Err(EngineError::StagingTooSmall { needed, .. }) => needed,
            other => panic!("{other:?}"),
        };
        let config = JobConfig { staging: Bytes(needed.0 + spare), ..config };
        let loader = engine.start(&config).unwrap();
        let seen = consume(loader, &source).unwrap();
        prop_assert_eq!(seen, expected(&config));
    }
}

#[test]
fn a_dataset_that_fits_is_read_once_and_later_epochs_do_not_read_the_source() {
    for name in ["belady", "nopfs", "lru", "monarch", "lobster"] {
        let source = Arc::new(Synthetic::of_sizes(vec![1000; 200], 1));
        let engine = engine(4, &[300_000]);
        let config = JobConfig { epochs: Some(5), ..job(&source, policy(name)) };
        let loader = engine.start(&config).unwrap();
        assert_eq!(consume(loader, &source).unwrap(), expected(&config), "{name}");
        let read = source.operations().bytes;
        assert_eq!(read, 200_000, "{name} reads each sample once");
    }
}

#[test]
fn a_job_finds_in_memory_what_its_predecessor_kept_there() {
    let source = Arc::new(Synthetic::of_sizes(vec![1000; 200], 1));
    let other = Arc::new(Synthetic::of_sizes(vec![1000; 200], 2));
    let engine = engine(4, &[300_000]);
    let config =
        JobConfig { epochs: Some(2), lend: Lend::ReadOnly, ..job(&source, policy("belady")) };
    // The second is left early while a batch is still held; the third has another seed.
    let mut held = None;
    for (round, seed) in [0, 0, 7].into_iter().enumerate() {
        let config = JobConfig { seed, ..config.clone() };
        let mut loader = engine.start(&config).unwrap();
        if round == 1 {
            held = loader.next_batch().unwrap();
        } else {
            assert_eq!(consume(loader, &source).unwrap(), expected(&config));
        }
        assert_eq!(source.operations().bytes, 200_000, "read once in all, round {round}");
    }
    drop(held);
    // Another dataset gets the space, and the first has to be read again.
    let elsewhere = JobConfig { epochs: Some(2), ..job(&other, policy("belady")) };
    consume(engine.start(&elsewhere).unwrap(), &other).unwrap();
    assert_eq!(other.operations().bytes, 200_000);
    consume(engine.start(&config).unwrap(), &source).unwrap();
    assert_eq!(source.operations().bytes, 400_000);
    // The same after the memory was freed.
    engine.free_retained();
    consume(engine.start(&config).unwrap(), &source).unwrap();
    assert_eq!(source.operations().bytes, 600_000);
}

#[test]
fn half_a_cache_halves_what_belady_reads() {
    let source = Arc::new(Synthetic::of_sizes(vec![1000; 400], 1));
    // 16 B beyond the space of 200 samples, whose sizes are rounded to 1,008.
    let engine = engine(4, &[200 * 1008]);
    let config =
        JobConfig { epochs: Some(11), staging: Bytes(40_000), ..job(&source, policy("belady")) };
    let loader = engine.start(&config).unwrap();
    assert_eq!(consume(loader, &source).unwrap(), expected(&config));
    let later = source.operations().bytes - 400_000;
    // S - D in each of ten epochs, and 1 % of the dataset.
    let bound = 10 * (400_000 - 200 * 1008) + 10 * 4000;
    assert!(later <= bound, "{later} B in later epochs, at most {bound}");
}

#[test]
fn a_tier_holds_what_the_plan_counts_on_and_has_space_for_what_it_keeps() {
    let source = Arc::new(Synthetic::of_sizes(vec![1000; 400], 1));
    for name in ["belady", "nopfs", "lobster"] {
        let engine = engine(4, &[100 * 1008, 150 * 1008]);
        let config =
            JobConfig { epochs: Some(6), staging: Bytes(40_000), ..job(&source, policy(name)) };
        let loader = engine.start(&config).unwrap();
        assert_eq!(consume(loader, &source).unwrap(), expected(&config), "{name}");
        // A sample may arrive a moment before its space is free; without evictions most do.
        for tier in engine.metrics().snapshot().tiers {
            assert!(4 * tier.misses < tier.hits(), "{name}: {tier:?}");
            assert!(4 * tier.puts.full < tier.puts.stored, "{name}: {tier:?}");
            assert_eq!((tier.damaged, tier.puts.refused), (0, 0), "{name}: {tier:?}");
        }
    }
}

#[test]
fn a_dataset_without_a_byte_needs_no_tier() {
    let source = Arc::new(Synthetic::of_sizes(vec![0; 20], 1));
    for tiers in [vec![], vec![0], vec![1000]] {
        let config = job(&source, policy("belady"));
        let loader = engine(2, &tiers).start(&config).unwrap();
        assert_eq!(consume(loader, &source).unwrap(), expected(&config));
    }
}

#[test]
fn two_jobs_share_an_engine() {
    let engine = engine(3, &[200_000]);
    let (train, validate) = (
        Arc::new(Synthetic::of_sizes((0..300).map(|k| k * 7), 1)),
        Arc::new(Synthetic::of_sizes((0..100).map(|k| k * 11), 2)),
    );
    let first = JobConfig { cache_share: 0.5, ..job(&train, policy("belady")) };
    let second = JobConfig { order: Order::Sequential, ..job(&validate, policy("nopfs")) };
    let loaders = (engine.start(&first).unwrap(), engine.start(&second).unwrap());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| consume(loaders.1, &validate).unwrap());
        assert_eq!(consume(loaders.0, &train).unwrap(), expected(&first));
        assert_eq!(other.join().unwrap(), expected(&second));
    });
}

#[test]
fn a_sample_that_a_tier_has_lost_is_put_back() {
    let source = Arc::new(Synthetic::of_sizes(vec![1000; 200], 1));
    let engine = Engine::new(EngineConfig {
        threads: Some(2),
        tiers: vec![TierConfig::Ram { capacity: Bytes(300_000) }],
        tier_faults: Some((TierFaults { miss: 0.02, ..TierFaults::default() }, 1)),
        ..EngineConfig::default()
    })
    .unwrap();
    let config = JobConfig { epochs: Some(20), ..job(&source, policy("belady")) };
    let loader = engine.start(&config).unwrap();
    assert_eq!(consume(loader, &source).unwrap(), expected(&config));
    let misses = engine.metrics().snapshot().tiers[0].misses;
    // A fiftieth of 3,800; a sample that was not put back would be missing in all later epochs.
    assert!((1..200).contains(&misses), "{misses}");
    assert_eq!(source.operations().bytes, 200_000 + misses * 1000);
}

#[test]
fn neighbouring_records_are_read_in_one_request() {
    requests_of_neighbours(Order::Sequential, 64);
    requests_of_neighbours(Order::Permutation, 256);
}

fn requests_of_neighbours(order: Order, batch: u32) {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..100 * 256u32).map(|at| (at / 100) as u8).collect();
    std::fs::write(folder.path().join("records.bin"), bytes).unwrap();
    let options = OpenOptions {
        format: Some(DatasetFormat::Records(Bytes(100))),
        snapshots: Snapshots::Off,
        ..OpenOptions::default()
    };
    let source: Arc<dyn Source> =
        belady_data::source::open(folder.path(), &options, &ListingProgress::silent())
            .unwrap()
            .into();
    let config = JobConfig {
        batch,
        order,
        epochs: Some(1),
        policy: policy("staging"),
        ..JobConfig::new(source.clone())
    };
    let before = source.operations().read;
    let mut loader = engine(2, &[]).start(&config).unwrap();
    let mut ids = vec![];
    while let Some(batch) = loader.next_batch().unwrap() {
        for sample in batch.iter() {
            assert_eq!(sample.bytes(), [sample.id as u8; 100]);
            ids.push(sample.id);
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..256).collect::<Vec<_>>());
    let requests = source.operations().read - before;
    assert_eq!(requests, u64::from(256 / batch), "one request a batch");
}

#[test]
fn a_disk_tier_is_warm_for_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let disk =
        |bytes| TierConfig::Disk { directory: folder.path().join("cache"), capacity: Bytes(bytes) };
    let sizes = || (0..200u64).map(|k| 2000 + k * 31 % 1000);
    let total: u64 = sizes().sum();
    for (run, from_source) in [(0, total), (1, 0), (2, 0)] {
        let source = Arc::new(Synthetic::of_sizes(sizes(), 3));
        let tiers = vec![disk(2 * total)];
        let config = EngineConfig { threads: Some(3), tiers, ..EngineConfig::default() };
        let config = (Engine::new(config).unwrap(), job(&source, policy("belady")));
        let config = (config.0, JobConfig { seed: run, epochs: Some(3), ..config.1 });
        let loader = config.0.start(&config.1).unwrap();
        assert_eq!(consume(loader, &source).unwrap(), expected(&config.1));
        assert_eq!(source.operations().bytes, from_source, "run {run}");
    }
    // Half the space: what is cached serves the first epoch.
    let source = Arc::new(Synthetic::of_sizes(sizes(), 3));
    let tiers = vec![disk(total / 2)];
    let engine =
        Engine::new(EngineConfig { threads: Some(3), tiers, ..EngineConfig::default() }).unwrap();
    let config = JobConfig { epochs: Some(1), ..job(&source, policy("belady")) };
    let loader = engine.start(&config).unwrap();
    assert_eq!(consume(loader, &source).unwrap(), expected(&config));
    assert!(source.operations().bytes < total, "{} of {total}", source.operations().bytes);
}

#[test]
fn an_earlier_batch_does_not_deadlock_behind_a_later_one() {
    // Samples that a tier loses are put back; near the end of an epoch two batches need the same
    // sample, and the later one may be the first to notice.
    for seed in 0..20 {
        let (source, config) = faulty(FaultSpec::all_at(0.02, seed));
        let config = JobConfig { seed, epochs: Some(8), batch: 3, ..config };
        let loader = impatient(&[20_000, 60_000]).start(&config).unwrap();
        assert_eq!(consume(loader, source.source()).unwrap(), expected(&config));
    }
}

#[test]
fn a_loader_whose_source_hangs_can_be_dropped() {
    let spec = FaultSpec {
        rates: Fault::ALL.map(|fault| if fault == Fault::Hang { 1.0 } else { 0.0 }),
        hang: Duration::from_millis(300),
        ..FaultSpec::default()
    };
    let (_source, config) = faulty(spec);
    let retry = Retry { timeout: Duration::from_mins(1), ..Retry::default() };
    let config = (EngineConfig { threads: Some(2), retry, ..EngineConfig::default() }, config);
    let engine = Engine::new(config.0).unwrap();
    let loader = engine.start(&config.1).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    drop(loader);
    drop(engine);
}

fn faulty(spec: FaultSpec) -> (Arc<Faulty<Synthetic>>, JobConfig) {
    let inner = Synthetic::of_sizes((0..200).map(|k| k * 37 % 3000), 9);
    let source = Arc::new(Faulty::new(inner, spec));
    let dynamic: Arc<dyn Source> = source.clone();
    (source, JobConfig { batch: 7, epochs: Some(5), ..JobConfig::new(dynamic) })
}

fn impatient(tiers: &[u64]) -> Engine {
    let tiers = tiers.iter().map(|&bytes| TierConfig::Ram { capacity: Bytes(bytes) }).collect();
    let retry = Retry {
        attempts: 20,
        backoff: Duration::from_micros(100),
        timeout: Duration::from_millis(60),
    };
    Engine::new(EngineConfig { threads: Some(4), tiers, retry, ..EngineConfig::default() }).unwrap()
}

#[test]
fn faults_of_all_kinds_change_nothing_for_the_consumer() {
    let spec = FaultSpec { hang: Duration::from_millis(120), ..FaultSpec::all_at(0.02, 5) };
    for name in POLICIES {
        let (source, config) = faulty(spec.clone());
        let config = JobConfig { policy: policy(name), ..config };
        let loader = impatient(&[150_000]).start(&config).unwrap();
        let seen = consume(loader, source.source()).unwrap();
        assert_eq!(seen, expected(&config), "{name}");
        assert!(Fault::ALL.iter().any(|&fault| source.count(fault) > 0));
    }
}

#[test]
fn a_bad_sample_is_raised_skipped_or_replaced_as_asked() {
    let spec = FaultSpec { broken: [17, 18].into_iter().collect(), ..FaultSpec::default() };
    for (bad_samples, name) in
        [(BadSamples::Raise, "raise"), (BadSamples::Skip, "skip"), (BadSamples::Replace, "replace")]
    {
        let (source, config) = faulty(spec.clone());
        let config = JobConfig { bad_samples, order: Order::Sequential, epochs: Some(1), ..config };
        let mut loader = impatient(&[50_000]).start(&config).unwrap();
        let (mut ids, mut errors) = (vec![], 0);
        loop {
            match loader.next_batch() {
                Ok(Some(batch)) => {
                    for sample in batch.iter() {
                        assert!(source.source().verify(sample.id, sample.bytes()), "{name}");
                        ids.push(sample.id);
                    }
                }
                Ok(None) => break,
                Err(EngineError::BadSample { error, .. }) => {
                    assert!(error.to_string().contains("17") || error.to_string().contains("18"));
                    errors += 1;
                }
                Err(other) => panic!("{other}"),
            }
        }
        let all = 0..200u32;
        let wanted: Vec<u32> = match bad_samples {
            // 14 to 20 make one batch.
            BadSamples::Raise => all.filter(|k| !(14..21).contains(k)).collect(),
            BadSamples::Skip => all.filter(|k| ![17, 18].contains(k)).collect(),
            BadSamples::Replace => {
                all.map(|k| if [17, 18].contains(&k) { 19 } else { k }).collect()
            }
        };
        assert_eq!((ids, errors), (wanted, u32::from(bad_samples == BadSamples::Raise)), "{name}");
    }
}

/// A source that reads up to 16 samples at once, and records the largest request.
#[derive(Debug)]
struct Several {
    inner: Synthetic,
    most: AtomicUsize,
}

impl Source for Several {
    fn catalog(&self) -> &Catalog {
        self.inner.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        self.most.fetch_max(wants.len(), Ordering::Relaxed);
        self.inner.read(wants)
    }

    fn operations(&self) -> Operations {
        self.inner.operations()
    }

    fn together(&self) -> usize {
        16
    }
}

#[test]
fn a_source_that_reads_several_at_once_is_asked_for_a_threads_part_of_a_batch() {
    for (batch, most) in [(8, 4), (100, 16)] {
        let inner = Synthetic::of_sizes([100; 200], 9);
        let source = Arc::new(Several { inner, most: AtomicUsize::new(0) });
        let job = JobConfig { batch, epochs: Some(1), ..JobConfig::new(source.clone()) };
        let loader = engine(2, &[]).start(&job).unwrap();
        assert_eq!(consume(loader, &source.inner).unwrap(), expected(&job));
        assert_eq!(source.most.load(Ordering::Relaxed), most, "of batches of {batch}");
    }
}

#[test]
fn a_sample_that_cannot_be_read_is_tried_as_often_as_configured() {
    for attempts in [1, 2, 5] {
        let spec = FaultSpec { broken: [2].into_iter().collect(), ..FaultSpec::default() };
        let source = Arc::new(Faulty::new(Synthetic::of_sizes([100; 4], 9), spec));
        let job = JobConfig { batch: 1, epochs: Some(1), ..JobConfig::new(source.clone()) };
        let retry = Retry { attempts, backoff: Duration::from_micros(100), ..Retry::default() };
        let config = EngineConfig { threads: Some(2), retry, ..EngineConfig::default() };
        let mut loader = Engine::new(config).unwrap().start(&job).unwrap();
        let mut tried = vec![];
        loop {
            match loader.next_batch() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(EngineError::BadSample { attempts, .. }) => tried.push(attempts),
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!((tried, source.broken_count()), (vec![attempts], attempts.into()));
    }
}

#[test]
fn a_loader_can_be_dropped_at_any_time() {
    let source = Arc::new(Synthetic::of_sizes(vec![5000; 100], 1));
    let engine = engine(4, &[100_000]);
    for taken in 0..30 {
        let mut loader = engine.start(&job(&source, policy(POLICIES[taken % 7]))).unwrap();
        let held: Vec<_> =
            (0..taken.min(3)).map(|_| loader.next_batch().unwrap().unwrap()).collect();
        drop(loader);
        for sample in held.iter().flat_map(belady_engine::Batch::iter) {
            assert!(source.verify(sample.id, sample.bytes()), "lent memory outlives its loader");
        }
    }
}

#[test]
fn a_policy_of_the_simulator_is_refused_by_name() {
    let source = Arc::new(Synthetic::of_sizes(vec![10; 10], 1));
    let error = engine(1, &[]).start(&job(&source, policy("perfect"))).unwrap_err().to_string();
    assert!(error.contains("`perfect`") && error.contains("belady"), "{error}");
}

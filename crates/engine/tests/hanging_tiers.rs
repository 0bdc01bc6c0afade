//! A cache disk that hangs costs time once, and nothing else: every sample is delivered, exactly.

mod common;

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use belady_base::SampleId;
use belady_control::model::Bytes;
use belady_data::source::{Source, Synthetic, ThrottleSpec, Throttled};
use belady_data::tier::{TierFaults, TierStatus};
use belady_engine::POLICIES;

use belady_engine::{Batch, Engine, EngineConfig, JobConfig, Retry, TierConfig};
use common::{expected, policy};

const NEVER: Duration = Duration::from_mins(10);

struct Seen {
    batches: Vec<Vec<SampleId>>,
    tiers: Vec<TierStatus>,
    timeouts: u64,
}

/// Runs four epochs with a disk that has space for most of the dataset and fails like this, and
/// checks every byte. Fails the test instead of hanging it.
fn run(name: &'static str, faults: TierFaults) -> (JobConfig, Seen) {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || drop(done.send(Box::new(run_here(name, faults)))));
    *outcome.recv_timeout(Duration::from_mins(1)).expect("it ends")
}

fn run_here(name: &str, faults: TierFaults) -> (JobConfig, Seen) {
    let folder = tempfile::tempdir().unwrap();
    let known = Synthetic::of_sizes((0..600).map(|sample| sample * 37 % 3_000), 3);
    let made = Synthetic::of_sizes((0..600).map(|sample| sample * 37 % 3_000), 3);
    // Slower than any disk, which would be bypassed otherwise.
    let slow: ThrottleSpec = "1:20MB/s".parse().unwrap();
    let source: Arc<dyn Source> = Arc::new(Throttled::new(made, slow, 1));
    let impatient = Retry { timeout: Duration::from_millis(50), ..Retry::default() };
    let engine = Engine::new(EngineConfig {
        threads: Some(4),
        tiers: vec![
            TierConfig::Ram { capacity: Bytes(100_000) },
            TierConfig::Disk { directory: folder.path().into(), capacity: Bytes(3_000_000) },
        ],
        retry: if faults.hang.is_zero() { Retry::default() } else { impatient },
        tier_faults: Some((faults, 5)),
        ..EngineConfig::default()
    })
    .unwrap();
    let config = JobConfig {
        policy: policy(name),
        epochs: Some(4),
        batch: 10,
        // For all batches: they are held until the end.
        staging: Bytes(16 << 20),
        ..JobConfig::new(source)
    };
    let mut loader = engine.start(&config).unwrap();
    let mut batches = vec![];
    let mut held = vec![];
    while let Some(batch) = loader.next_batch().unwrap() {
        batches.push(batch.iter().map(|sample| sample.id).collect());
        held.push(batch);
    }
    // A late read would write to a delivered batch now, if it could.
    if faults.hang != NEVER {
        std::thread::sleep(2 * faults.hang);
    }
    for sample in held.iter().flat_map(Batch::iter) {
        assert!(known.verify(sample.id, sample.bytes()), "bytes of sample {}", sample.id);
    }
    let (tiers, timeouts) = (loader.tiers(), engine.metrics().snapshot().timeouts);
    (config, Seen { batches, tiers, timeouts })
}

fn check(name: &'static str, faults: TierFaults) -> Seen {
    let (config, seen) = run(name, faults);
    assert_eq!(seen.batches, expected(&config), "{name}");
    seen
}

fn is_given_up(seen: &Seen) -> bool {
    seen.tiers[1].degraded.as_ref().is_some_and(|why| why.contains("has not returned"))
}

/// Policies that use a disk.
fn policies() -> impl Iterator<Item = &'static str> {
    POLICIES.into_iter().filter(|name| !["staging", "naive"].contains(name))
}

#[test]
fn a_disk_that_does_not_hang_is_not_given_up() {
    let seen = check("belady", TierFaults::default());
    assert!(!is_given_up(&seen) && seen.timeouts == 0);
}

#[test]
fn a_disk_whose_reads_never_return_is_given_up() {
    for name in policies() {
        let seen = check(name, TierFaults { hung_get: 0.02, hang: NEVER, ..TierFaults::default() });
        assert!(is_given_up(&seen) && seen.timeouts > 0, "{name}");
    }
}

#[test]
fn a_disk_whose_writes_never_return_is_given_up_and_batches_are_delivered() {
    for name in policies() {
        let seen = check(name, TierFaults { hung_put: 0.02, hang: NEVER, ..TierFaults::default() });
        assert!(is_given_up(&seen) && seen.timeouts > 0, "{name}");
    }
}

#[test]
fn a_read_that_returns_late_and_wrong_changes_no_batch() {
    // A damaged read is overwritten with other bytes.
    let faults = TierFaults {
        hung_get: 0.05,
        damaged: 0.9,
        hang: Duration::from_millis(120),
        ..TierFaults::default()
    };
    for name in policies() {
        check(name, faults);
    }
}

//! Faults that must not end a run, and the errors of a run that has ended.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::sampler::Order;
use belady_data::source::{
    Catalog, Fault, FaultSpec, Faulty, Operations, ReadError, Source, Synthetic, Want,
};
use belady_data::tier::TierFaults;
use belady_engine::POLICIES;
use belady_engine::{
    Engine, EngineConfig, EngineError, JobConfig, Lend, Loader, NODE_STAGING, Retry, TierConfig,
    share_of_staging,
};
use common::{consume, expected, policy};

/// Fails the test instead of hanging it.
fn within<T: Send + 'static>(seconds: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    outcome.recv_timeout(Duration::from_secs(seconds)).expect("it ends")
}

/// Counts samples until the end or an error.
fn count(loader: &mut Loader) -> (usize, Result<(), EngineError>) {
    let mut samples = 0;
    loop {
        match loader.next_batch() {
            Ok(Some(batch)) => samples += batch.len(),
            Ok(None) => return (samples, Ok(())),
            Err(error) => return (samples, Err(error)),
        }
    }
}

fn impatient(threads: u32, tiers: Vec<TierConfig>) -> Engine {
    let retry = Retry {
        attempts: 20,
        backoff: Duration::from_micros(100),
        timeout: Duration::from_millis(60),
    };
    let config = EngineConfig { threads: Some(threads), tiers, retry, ..EngineConfig::default() };
    Engine::new(config).unwrap()
}

fn one_epoch(source: impl Source + 'static) -> JobConfig {
    let source: Arc<dyn Source> = Arc::new(source);
    JobConfig { batch: 7, epochs: Some(1), ..JobConfig::new(source) }
}

/// A source that sleeps or panics on purpose.
#[derive(Debug)]
struct Trick {
    inner: Synthetic,
    calls: AtomicU32,
    /// The thread and the call...
    thread: &'static str,
    at: u32,
    /// ...at which it sleeps so long, or panics.
    sleep: Option<Duration>,
}

impl Trick {
    fn new(thread: &'static str, at: u32, sleep: Option<Duration>) -> Self {
        let inner = Synthetic::of_sizes(vec![1000; 2000], 1);
        Self { inner, calls: AtomicU32::new(0), thread, at, sleep }
    }

    fn play(&self) {
        if std::thread::current().name() == Some(self.thread)
            && self.calls.fetch_add(1, Ordering::SeqCst) == self.at
        {
            match self.sleep {
                Some(time) => std::thread::sleep(time),
                None => panic!("on purpose"),
            }
        }
    }
}

impl Source for Trick {
    fn catalog(&self) -> &Catalog {
        if self.thread == "belady-stage" {
            self.play();
        }
        self.inner.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        if self.thread == "belady-load" {
            self.play();
        }
        self.inner.read(wants)
    }

    fn operations(&self) -> Operations {
        self.inner.operations()
    }
}

/// A source without descriptors for a while.
#[derive(Debug)]
struct Starved {
    inner: Synthetic,
    left: AtomicU32,
}

impl Source for Starved {
    fn catalog(&self) -> &Catalog {
        self.inner.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let spend = |left: u32| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spend).is_ok() {
            let error = std::io::Error::from_raw_os_error(24); // EMFILE
            return Err(ReadError::Io { sample: wants[0].sample, path: "file".into(), error });
        }
        self.inner.read(wants)
    }

    fn operations(&self) -> Operations {
        self.inner.operations()
    }
}

/// Such reads used to fail after the attempts of a sample.
#[test]
fn a_shortage_of_descriptors_is_waited_out_and_fails_no_sample() {
    let (samples, outcome) = within(40, || {
        let inner = Synthetic::of_sizes(vec![1000; 50], 1);
        let job = one_epoch(Starved { inner, left: AtomicU32::new(2000) });
        count(&mut impatient(2, vec![]).start(&job).unwrap())
    });
    assert!(samples == 50 && outcome.is_ok(), "{samples} {outcome:?}");
}

#[test]
fn a_staging_buffer_of_default_size_has_room_for_the_batches() {
    let job = JobConfig { staging: Bytes(1), ..one_epoch(Synthetic::of_sizes(vec![1000; 50], 1)) };
    let refused = impatient(2, vec![]).start(&job);
    assert!(matches!(refused, Err(EngineError::StagingTooSmall { .. })));
    let job = JobConfig { staging_grows: true, ..job };
    let (samples, outcome) = count(&mut impatient(2, vec![]).start(&job).unwrap());
    assert!(samples == 50 && outcome.is_ok(), "{samples} {outcome:?}");
    assert_eq!(share_of_staging(8).0 * 8, NODE_STAGING.0, "a node's processes share it");
}

#[test]
fn a_panic_in_a_read_is_an_error_and_not_a_wait_for_ever() {
    let (_, outcome) = within(20, || {
        let job = one_epoch(Trick::new("belady-load", 17, None));
        // A long timeout, because printing a panic takes time.
        let config = EngineConfig { threads: Some(2), ..EngineConfig::default() };
        count(&mut Engine::new(config).unwrap().start(&job).unwrap())
    });
    assert!(matches!(outcome, Err(EngineError::Defect)), "{outcome:?}");
}

#[test]
fn a_panic_in_the_planner_is_an_error_and_not_the_end_of_the_data() {
    let (samples, outcome) = within(20, || {
        let job = one_epoch(Trick::new("belady-stage", 100, None));
        count(&mut impatient(2, vec![]).start(&job).unwrap())
    });
    assert!(samples < 2000 && matches!(outcome, Err(EngineError::Defect)), "{samples} {outcome:?}");
}

#[test]
fn one_read_that_never_returns_does_not_stop_the_run() {
    // A read alone, and one of several that a thread makes in turn.
    for batch in [7, 64] {
        let (samples, outcome) = within(40, move || {
            let never = Some(Duration::from_mins(10));
            let job = one_epoch(Trick::new("belady-load", 17, never));
            let job = JobConfig { batch, staging: Bytes(400_000), ..job };
            count(&mut impatient(2, vec![]).start(&job).unwrap())
        });
        assert!(samples == 2000 && outcome.is_ok(), "{batch}: {samples} {outcome:?}");
    }
}

fn hanging() -> JobConfig {
    let spec = FaultSpec {
        rates: Fault::ALL.map(|fault| if fault == Fault::Hang { 1.0 } else { 0.0 }),
        hang: Duration::from_secs(1),
        ..FaultSpec::default()
    };
    one_epoch(Faulty::new(Synthetic::of_sizes(vec![100; 200], 1), spec))
}

#[test]
fn after_a_fatal_error_every_further_call_is_an_error_too() {
    within(30, || {
        let mut loader = impatient(1, vec![]).start(&hanging()).unwrap();
        let first = loader.next_batch().unwrap_err();
        assert!(matches!(first, EngineError::SourceHangs { .. }), "{first}");
        for _ in 0..3 {
            assert!(matches!(loader.next_batch(), Err(EngineError::Stopped)));
        }
    });
}

#[test]
fn an_engine_works_again_when_hung_reads_have_come_back() {
    let samples = within(30, || {
        let engine = impatient(1, vec![]);
        let mut loader = engine.start(&hanging()).unwrap();
        assert!(loader.next_batch().is_err());
        drop(loader);
        let job = one_epoch(Synthetic::of_sizes(vec![100; 200], 1));
        count(&mut engine.start(&job).unwrap()).0
    });
    assert_eq!(samples, 200);
}

#[test]
fn the_buffer_for_an_order_with_repeats_is_refused_at_the_start_if_too_small() {
    let mut sizes = vec![10u64; 100];
    sizes[3] = 100_000;
    let order = Order::Given(Arc::new(vec![vec![3; 64]]));
    let source: Arc<dyn Source> = Arc::new(Synthetic::of_sizes(sizes, 1));
    let job = JobConfig {
        batch: 8,
        order,
        staging: Bytes(500_000),
        epochs: Some(1),
        ..JobConfig::new(source)
    };
    let engine = impatient(2, vec![]);
    let Err(EngineError::StagingTooSmall { needed, .. }) = engine.start(&job) else {
        panic!("eight times 100 KB do not fit twice into 500 KB")
    };
    let mut loader = engine.start(&JobConfig { staging: needed, ..job }).unwrap();
    let (samples, outcome) = count(&mut loader);
    assert!(samples == 64 && outcome.is_ok(), "{samples} {outcome:?}");
}

#[test]
fn repeated_samples_are_delivered_as_often_as_the_order_names_them() {
    for round in 0..70u32 {
        let name = POLICIES[round as usize % POLICIES.len()];
        let mut state = round;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        let list = |random: &mut dyn FnMut(u32) -> u32| (0..60).map(|_| random(12)).collect();
        let lists: Vec<Vec<u32>> = (0..6).map(|_| list(&mut random)).collect();
        let tiers = [random(20_000), random(20_000)]
            .map(|bytes| TierConfig::Ram { capacity: Bytes(u64::from(bytes)) });
        let lend = if random(2) == 0 { Lend::Slots } else { Lend::ReadOnly };
        let seen = within(60, move || {
            let spec = FaultSpec {
                hang: Duration::from_millis(120),
                ..FaultSpec::all_at(0.03, u64::from(round))
            };
            let inner = Synthetic::of_sizes((0..12).map(|k| k * 371 % 3000), 9);
            let source = Arc::new(Faulty::new(inner, spec));
            let dynamic: Arc<dyn Source> = source.clone();
            let job = JobConfig {
                batch: 4,
                epochs: Some(6),
                order: Order::Given(Arc::new(lists)),
                policy: policy(name),
                lend,
                staging: Bytes(200_000),
                ..JobConfig::new(dynamic)
            };
            let loader = impatient(4, tiers.into()).start(&job).unwrap();
            (consume(loader, source.source()).unwrap(), expected(&job))
        });
        assert_eq!(seen.0, seen.1, "{round} {name}");
    }
}

#[test]
fn lending_does_not_cost_coverage_however_large_the_buffer() {
    let sizes = vec![1008; 400];
    for staging in [40_000, 1_000_000, 100_000_000] {
        let source = Arc::new(Synthetic::of_sizes(sizes.clone(), 1));
        let dynamic: Arc<dyn Source> = source.clone();
        let job = JobConfig {
            batch: 5,
            epochs: Some(11),
            staging: Bytes(staging),
            lend: Lend::ReadOnly,
            ..JobConfig::new(dynamic)
        };
        let tiers = vec![TierConfig::Ram { capacity: Bytes(200 * 1008) }];
        let loader = impatient(4, tiers).start(&job).unwrap();
        consume(loader, &source).unwrap();
        let later = source.operations().bytes - 400 * 1008;
        let half = 10 * 200 * 1008;
        assert!(later * 100 <= half * 104, "{later} B, half is {half} B, staging {staging}");
    }
}

#[test]
fn tiers_that_lose_refuse_and_damage_change_nothing_for_the_consumer() {
    for name in POLICIES {
        let source = Arc::new(Synthetic::of_sizes((0..300).map(|k| k * 37 % 3000), 9));
        let faults = TierFaults {
            full: 0.05,
            refused: 0.05,
            miss: 0.05,
            damaged: 0.05,
            ..TierFaults::default()
        };
        let tiers = vec![
            TierConfig::Ram { capacity: Bytes(100_000) },
            TierConfig::Ram { capacity: Bytes(150_000) },
        ];
        let config = EngineConfig {
            threads: Some(4),
            tiers,
            tier_faults: Some((faults, 5)),
            ..EngineConfig::default()
        };
        let dynamic: Arc<dyn Source> = source.clone();
        let job = JobConfig {
            batch: 7,
            epochs: Some(6),
            policy: policy(name),
            ..JobConfig::new(dynamic)
        };
        let seen = within(60, move || {
            let loader = Engine::new(config).unwrap().start(&job).unwrap();
            (consume(loader, &source).unwrap(), expected(&job))
        });
        assert_eq!(seen.0, seen.1, "{name}");
    }
}

#[test]
fn a_slow_job_does_not_delay_another() {
    // Half of the reads of the slow job hang; the other job ends nevertheless.
    within(60, || {
        let retry = Retry { timeout: Duration::from_mins(10), ..Retry::default() };
        let config = EngineConfig { threads: Some(4), retry, ..EngineConfig::default() };
        let engine = Engine::new(config).unwrap();
        let spec = FaultSpec {
            rates: Fault::ALL.map(|fault| if fault == Fault::Hang { 0.5 } else { 0.0 }),
            hang: Duration::from_millis(20),
            ..FaultSpec::default()
        };
        let slow = one_epoch(Faulty::new(Synthetic::of_sizes(vec![100; 20_000], 1), spec));
        let mut slow = engine.start(&slow).unwrap();
        let fast = one_epoch(Synthetic::of_sizes(vec![100; 2000], 1));
        assert_eq!(count(&mut engine.start(&fast).unwrap()).0, 2000);
        assert!(slow.next_batch().unwrap().is_some());
    });
}

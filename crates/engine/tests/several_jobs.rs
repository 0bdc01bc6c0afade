//! Several jobs of one engine at once: jobs on the same dataset share what they hold and read.

mod common;

use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use belady_base::SampleId;
use belady_control::model::Bytes;
use belady_data::source::{
    Catalog, FaultSpec, Faulty, Operations, ReadError, Source, Synthetic, Want,
};
use belady_engine::{Engine, EngineConfig, JobConfig, Loader, POLICIES, Retry, TierConfig};
use common::{consume, expected, policy};
use proptest::prelude::*;

fn engine(threads: u32, tiers: &[u64], retry: Retry) -> Engine {
    let tiers = tiers.iter().map(|&bytes| TierConfig::Ram { capacity: Bytes(bytes) }).collect();
    let config = EngineConfig {
        threads: Some(threads),
        tiers,
        retry,
        several_jobs: true,
        ..EngineConfig::default()
    };
    Engine::new(config).unwrap()
}

/// Fails the test instead of hanging it.
fn within<T: Send + 'static>(seconds: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    outcome.recv_timeout(Duration::from_secs(seconds)).expect("it ends")
}

/// A source of which the read of one sample waits until it is opened.
#[derive(Debug)]
struct OneWaits {
    inner: Arc<Synthetic>,
    waits: SampleId,
    /// How many samples were asked for, and whether it is open.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl OneWaits {
    fn new(inner: Arc<Synthetic>, waits: SampleId) -> Arc<Self> {
        Arc::new(Self { inner, waits, state: Mutex::default(), changed: Condvar::new() })
    }

    fn wait_until_all_are_read(&self, samples: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |(read, _)| *read < samples).unwrap());
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl Source for OneWaits {
    fn catalog(&self) -> &Catalog {
        self.inner.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let mut state = self.state.lock().unwrap();
        state.0 += wants.len();
        self.changed.notify_all();
        if wants.iter().any(|want| want.sample == self.waits) {
            state = self.changed.wait_while(state, |(_, is_open)| !*is_open).unwrap();
        }
        drop(state);
        self.inner.read(wants)
    }

    fn operations(&self) -> Operations {
        self.inner.operations()
    }
}

/// Starts all jobs and consumes them at the same time; checks their orders and bytes.
fn run_at_once(engine: &Engine, jobs: &[JobConfig], source: &Synthetic) {
    let loaders: Vec<Loader> = jobs.iter().map(|job| engine.start(job).unwrap()).collect();
    std::thread::scope(|scope| {
        for (loader, job) in loaders.into_iter().zip(jobs) {
            scope.spawn(move || assert_eq!(consume(loader, source).unwrap(), expected(job)));
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_job_gets_its_order_and_the_right_bytes(
        sizes in prop::collection::vec(prop_oneof![Just(0u64), 1..2000u64, 1..60_000u64], 1..120),
        threads in 1u32..5,
        tiers in prop::collection::vec(0u64..800_000, 0..3),
        which in prop::collection::vec((0..POLICIES.len(), 0..2u64, 1u32..20), 1..4),
        faults in prop_oneof![
            Just(FaultSpec::default()),
            (1u64..1000).prop_map(|seed| FaultSpec::all_at(0.05, seed)),
        ],
    ) {
        let inner = Arc::new(Synthetic::of_sizes(sizes, 1));
        let source: Arc<dyn Source> = Arc::new(Faulty::new(inner.clone(), faults));
        let retry = Retry {
            attempts: 30,
            backoff: Duration::from_micros(50),
            timeout: Duration::from_millis(100),
        };
        let engine = engine(threads, &tiers, retry);
        let job = |&(which, seed, batch): &(usize, u64, u32)| JobConfig {
            policy: policy(POLICIES[which]),
            seed,
            batch: batch.min(inner.catalog().len()),
            epochs: Some(3),
            ..JobConfig::new(source.clone())
        };
        let jobs: Vec<JobConfig> = which.iter().map(job).collect();
        within(60, move || run_at_once(&engine, &jobs, &inner));
    }
}

#[test]
fn jobs_read_a_dataset_that_fits_once() {
    for seeds in [[0, 0, 0], [0, 1, 2]] {
        let source = Arc::new(Synthetic::of_sizes(vec![1000; 500], 1));
        let engine = engine(4, &[800_000], Retry::default());
        let job = |seed| JobConfig {
            seed,
            batch: 5,
            epochs: Some(4),
            ..JobConfig::new(source.clone() as Arc<dyn Source>)
        };
        run_at_once(&engine, &seeds.map(job), &source);
        // A job that ends hands its tiers over; a sample that is looked up just then is read again.
        let bytes = source.operations().bytes;
        assert!((500_000..=525_000).contains(&bytes), "{bytes} bytes with the seeds {seeds:?}");
    }
}

#[test]
fn jobs_of_one_order_read_what_no_cache_holds_once() {
    const SIZE: u64 = 1000;
    const BATCH: u64 = 10;
    let read = |jobs: usize, behind: usize| {
        let source = Arc::new(Synthetic::of_sizes(vec![SIZE; 1000], 1));
        // A cache of 60 %, and a staging buffer of four batches.
        let engine = engine(4, &[600_000], Retry::default());
        let job = JobConfig {
            batch: BATCH as u32,
            epochs: Some(4),
            staging: Bytes(4 * BATCH * (SIZE + 64)),
            ..JobConfig::new(source.clone() as Arc<dyn Source>)
        };
        let mut loaders: Vec<Loader> = (0..jobs).map(|_| engine.start(&job).unwrap()).collect();
        let expected = expected(&job);
        for turn in 0..expected.len() + behind {
            for (number, loader) in loaders.iter_mut().enumerate() {
                // The second is some batches behind the first.
                if let Some(batch) = turn.checked_sub(number * behind)
                    && let Some(samples) = expected.get(batch)
                {
                    let got = loader.next_batch().unwrap().unwrap();
                    assert!(got.iter().map(|sample| sample.id).eq(samples.iter().copied()));
                    assert!(got.iter().all(|sample| source.verify(sample.id, sample.bytes())));
                }
            }
        }
        source.operations().bytes
    };
    let of_one = read(1, 0);
    for behind in [0, 1, 2] {
        let of_two = read(2, behind);
        assert!(of_two * 100 <= of_one * 105, "{of_two} bytes in place of {of_one}");
    }
}

#[test]
fn a_sample_that_two_jobs_want_at_once_is_read_once() {
    let inner = Arc::new(Synthetic::of_sizes(vec![1000; 8], 1));
    let source = OneWaits::new(inner.clone(), 0);
    // No cache: only the reads are shared.
    let engine = engine(16, &[], Retry::default());
    let job = JobConfig { batch: 8, ..JobConfig::new(source.clone() as Arc<dyn Source>) };
    let first = engine.start(&job).unwrap();
    source.wait_until_all_are_read(8);
    let second = engine.start(&job).unwrap();
    // The batch of the first waits for one sample; the second copies the others from it.
    let metrics = engine.metrics().clone();
    within(60, move || {
        while metrics.snapshot().ring.samples < 7 {
            std::thread::yield_now();
        }
    });
    source.open();
    for loader in [first, second] {
        assert_eq!(consume(loader, &inner).unwrap(), expected(&job));
    }
    let bytes = inner.operations().bytes;
    assert!(bytes <= 9000, "two jobs read {bytes} bytes of 8 samples");
}

#[test]
fn a_job_that_ends_leaves_its_reads_to_those_that_wait_for_them() {
    let inner = Arc::new(Synthetic::of_sizes(vec![1000; 64], 1));
    for batch in [1, 8, 64] {
        let engine = engine(2, &[], Retry::default());
        let inner = inner.clone();
        within(60, move || {
            for round in 0..30 {
                let source: Arc<dyn Source> = inner.clone();
                let job = JobConfig { batch, ..JobConfig::new(source) };
                let first = engine.start(&job).unwrap();
                let mut leaves = engine.start(&job).unwrap();
                let last = engine.start(&job).unwrap();
                if round % 2 == 0 {
                    leaves.next_batch().unwrap();
                }
                drop(leaves);
                for loader in [last, first] {
                    assert_eq!(consume(loader, &inner).unwrap(), expected(&job));
                }
            }
        });
    }
}

#[test]
fn a_job_leaves_some_of_every_quota_to_later_ones() {
    let source: Arc<dyn Source> = Arc::new(Synthetic::of_sizes(vec![1000; 50], 1));
    let other: Arc<dyn Source> = Arc::new(Synthetic::of_sizes(vec![1000; 50], 2));
    let engine = engine(2, &[1_000_000], Retry::default());
    let job =
        |source: &Arc<dyn Source>| JobConfig { epochs: Some(3), ..JobConfig::new(source.clone()) };
    let first = engine.start(&job(&source)).unwrap();
    let synthetic = Synthetic::of_sizes(vec![1000; 50], 2);
    consume(engine.start(&job(&other)).unwrap(), &synthetic).unwrap();
    assert_eq!(other.operations().bytes, 50_000, "the second job has a cache, too");
    drop(first);
}

//! What is counted of each rank of a node: its waits, and what iterations lose to it.

use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use belady_control::model::Bytes;
use belady_control::sampler::{AccessStream, Order, Scheme, StreamConfig};
use belady_data::source::{Catalog, Operations, ReadError, Source, Synthetic, Want};
use belady_engine::metrics::{MetricsSnapshot, RankSnapshot};
use belady_engine::{Engine, EngineConfig, JobConfig, Loader, policy};

const BATCH: u32 = 4;
const STEPS: u32 = 5;
const SAMPLES: u32 = 2 * BATCH * STEPS;

/// Reads of the slow rank wait until their step is released.
#[derive(Debug)]
struct SlowRank {
    inner: Synthetic,
    /// By sample, the step at which the slow rank uses it.
    step_of: Vec<Option<u32>>,
    /// Steps before this one are released.
    released: Mutex<u32>,
    changed: Condvar,
}

impl SlowRank {
    fn new(slow: u32) -> Arc<Self> {
        let stream = AccessStream::new(StreamConfig {
            samples: SAMPLES,
            ranks: 2,
            batch: 2 * BATCH,
            order: Order::Torch,
            scheme: Scheme::Uniform,
            seed: 0,
            sampler_drop_last: false,
            drop_last: false,
        });
        let order = stream.unwrap().epoch(0);
        let mut step_of = vec![None; SAMPLES as usize];
        for step in 0..STEPS {
            for sample in order.batch(slow, step) {
                step_of[sample as usize] = Some(step);
            }
        }
        let inner = Synthetic::of_sizes(vec![1000; SAMPLES as usize], 7);
        Arc::new(Self { inner, step_of, released: Mutex::new(0), changed: Condvar::new() })
    }

    fn release(&self, step: u32) {
        *self.released.lock().unwrap() = step + 1;
        self.changed.notify_all();
    }
}

impl Source for SlowRank {
    fn catalog(&self) -> &Catalog {
        self.inner.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let step = wants.iter().filter_map(|want| self.step_of[want.sample as usize]).max();
        let mut released = self.released.lock().unwrap();
        while step.is_some_and(|step| step >= *released) {
            released = self.changed.wait(released).unwrap();
        }
        drop(released);
        self.inner.read(wants)
    }

    fn operations(&self) -> Operations {
        self.inner.operations()
    }
}

fn engine() -> Engine {
    Engine::new(EngineConfig { threads: Some(4), ..EngineConfig::default() }).unwrap()
}

fn job(source: Arc<dyn Source>) -> JobConfig {
    // Each rank has threads of its own, so the slow one does not take those of the other.
    job_of("staging", source)
}

fn job_of(name: &str, source: Arc<dyn Source>) -> JobConfig {
    JobConfig {
        batch: BATCH,
        staging: Bytes(1 << 20),
        policy: policy(name).unwrap(),
        ..JobConfig::new(source)
    }
}

/// Both ranks ask for a step at once; `meanwhile` runs when they have.
fn take_together(loaders: &mut [Loader], meanwhile: impl FnOnce()) {
    let barrier = Barrier::new(loaders.len() + 1);
    std::thread::scope(|scope| {
        for loader in loaders.iter_mut() {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                loader.next_batch().unwrap().expect("a batch");
            });
        }
        barrier.wait();
        meanwhile();
    });
}

/// The least wait of both ranks in each step after the first.
const WAIT: Duration = Duration::from_millis(50);

/// Runs a job of two ranks, of which the second one's samples come late; returns what was counted.
fn counted(name: &str) -> MetricsSnapshot {
    let source = SlowRank::new(1);
    let engine = engine();
    let mut loaders = engine.start_ranks(&job_of(name, source.clone()), 2).unwrap();
    let monitor = loaders[0].monitor();
    take_together(&mut loaders, || source.release(0));
    let mut computes_since = Instant::now();
    for step in 1..STEPS {
        // The batch of rank 0 is there, and waits for that of rank 1.
        while !monitor.waiting_for().contains("have arrived") {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        let computed = computes_since.elapsed();
        take_together(&mut loaders, || {
            // Much longer than a twentieth of the compute time.
            std::thread::sleep(computed + WAIT);
            source.release(step);
        });
        computes_since = Instant::now();
    }
    engine.metrics().snapshot()
}

/// Though both ranks wait equally long for a step, of which the first one's batch is there.
#[test]
fn the_rank_that_others_wait_for_is_counted_as_the_straggler() {
    let seen = counted("staging");
    let [first, slow] = seen.ranks[..] else { panic!("{:?}", seen.ranks) };
    assert_eq!((first.rank, slow.rank), (0, 1));
    assert_eq!((first.batches, slow.batches), (u64::from(STEPS), u64::from(STEPS)));
    let least = (WAIT * (STEPS - 1)).as_nanos() as u64;
    assert!(first.blocked_ns > least && slow.blocked_ns > least, "{first:?} {slow:?}");
    assert_eq!((first.straggled, slow.straggled), (0, u64::from(STEPS - 1)), "{slow:?}");
    assert!(slow.straggling_ns > first.straggling_ns, "{slow:?} {first:?}");
    assert_eq!(first.blocked_ns + slow.blocked_ns, seen.blocked_ns);
    assert_eq!(slow.straggling_share(), 0.8);
    let nothing = RankSnapshot { rank: 1, ..RankSnapshot::default() };
    assert_eq!((&seen - &seen).ranks[1], nothing, "between two equal snapshots");
}

/// Regression test: the ranks whose batches pooled threads fill last counted as stragglers.
#[test]
fn ranks_that_share_pooled_threads_wait_alike() {
    let seen = counted("belady");
    let [first, slow] = seen.ranks[..] else { panic!("{:?}", seen.ranks) };
    let least = (WAIT * (STEPS - 1)).as_nanos() as u64;
    assert!(first.blocked_ns > least && slow.blocked_ns > least, "{first:?} {slow:?}");
    assert_eq!((first.straggled, slow.straggled), (0, 0));
}

#[test]
fn a_rank_alone_has_waits_and_no_stragglers() {
    let source: Arc<Synthetic> = Arc::new(Synthetic::of_sizes(vec![1000; 40], 7));
    let engine = engine();
    let mut loader = engine.start(&job(source)).unwrap();
    while loader.next_batch().unwrap().is_some() {}
    let seen = engine.metrics().snapshot();
    let [rank] = seen.ranks[..] else { panic!("{:?}", seen.ranks) };
    assert_eq!((rank.rank, rank.batches, rank.blocked_ns), (0, 10, seen.blocked_ns));
    assert_eq!((rank.straggled, rank.straggling_ns), (0, 0));
}

/// Ranks take their batches in any order and at any distance from each other.
#[test]
fn every_batch_is_counted_once_for_its_rank() {
    let source: Arc<Synthetic> = Arc::new(Synthetic::of_sizes(vec![1000; 3 * 40], 7));
    let engine = engine();
    let job = JobConfig { epochs: Some(3), ..job(source) };
    let loaders = engine.start_ranks(&job, 3).unwrap();
    std::thread::scope(|scope| {
        for (rank, mut loader) in loaders.into_iter().enumerate() {
            scope.spawn(move || {
                let limit = if rank == 1 { 7 } else { usize::MAX };
                for _ in 0..limit {
                    if loader.next_batch().unwrap().is_none() {
                        break;
                    }
                }
            });
        }
    });
    let seen = engine.metrics().snapshot();
    let batches: Vec<u64> = seen.ranks.iter().map(|rank| rank.batches).collect();
    assert_eq!(batches, [30, 7, 30]);
    let blocked: u64 = seen.ranks.iter().map(|rank| rank.blocked_ns).sum();
    assert_eq!(blocked, seen.blocked_ns);
}

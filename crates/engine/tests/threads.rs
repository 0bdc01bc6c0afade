//! The threads of a node: how many load and transform, for which rank, and what is measured.

mod common;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::policy::{FixedDuties, PolicyKind};
use belady_data::source::{Catalog, Operations, ReadError, Source, Synthetic, Want};
use belady_engine::metrics::exposition;
use belady_engine::{
    Delivery, Engine, EngineConfig, FieldSpec, JobConfig, POLICIES, TierConfig, Transform,
    TransformConfig, Transformed, trace,
};
use belady_transform::{Array, Draw, Dtype, Output, Scratch, TransformError};
use common::policy;

/// Holds calls until it is opened, and knows how many were inside at once.
#[derive(Debug, Default)]
struct Latch {
    state: Mutex<LatchState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LatchState {
    is_open: bool,
    inside: u32,
    most: u32,
}

impl Latch {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.inside += 1;
        state.most = state.most.max(state.inside);
        self.changed.notify_all();
        while !state.is_open {
            state = self.changed.wait(state).unwrap();
        }
        state.inside -= 1;
    }

    fn wait_for(&self, inside: u32) {
        let mut state = self.state.lock().unwrap();
        while state.inside < inside {
            let waited = self.changed.wait_timeout(state, Duration::from_secs(30)).unwrap();
            assert!(!waited.1.timed_out(), "{} are inside, not {inside}", waited.0.inside);
            state = waited.0;
        }
    }

    fn open(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }

    fn most(&self) -> u32 {
        self.state.lock().unwrap().most
    }
}

/// A source whose reads wait.
#[derive(Debug)]
struct Latched {
    inner: Synthetic,
    latch: Arc<Latch>,
}

impl Source for Latched {
    fn catalog(&self) -> &Catalog {
        self.inner.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        self.latch.pass();
        self.inner.read(wants)
    }

    fn operations(&self) -> Operations {
        self.inner.operations()
    }
}

/// Returns its input, after a wait.
#[derive(Debug)]
struct Echo {
    output: Output,
    latch: Arc<Latch>,
    nap: Duration,
}

impl Transform for Echo {
    fn output(&self) -> &Output {
        &self.output
    }

    fn run_into(
        &self,
        _: &[u8],
        _: Draw,
        _: &mut Scratch,
        _: &mut [u8],
    ) -> Result<(), TransformError> {
        unreachable!("the shape is not known")
    }

    fn run(&self, sample: &[u8], _: Draw, _: &mut Scratch) -> Result<Array, TransformError> {
        self.latch.pass();
        std::thread::sleep(self.nap);
        Ok(Array { dtype: Dtype::Uint8, shape: vec![sample.len()], bytes: sample.to_vec() })
    }
}

fn transforms(latch: &Arc<Latch>, threads: usize, nap: Duration) -> TransformConfig {
    let output = Output { dtype: Some(Dtype::Uint8), shape: None };
    let echo = Echo { output, latch: latch.clone(), nap };
    let fields = vec![FieldSpec { part: None, transform: Some(Arc::new(echo)) }];
    TransformConfig { fields, threads, depth: 2, ..TransformConfig::default() }
}

/// Takes all batches of all ranks side by side; returns their samples.
fn consume(stages: Vec<Transformed>) -> Vec<Vec<u32>> {
    let consumer = |stage: Transformed| {
        std::thread::spawn(move || {
            let mut seen = vec![];
            loop {
                match stage.next_batch_timeout(Duration::from_mins(1)).unwrap() {
                    Delivery::Batch(batch) => seen.extend_from_slice(&batch.samples),
                    Delivery::Ended => return seen,
                    Delivery::TimedOut => panic!("it waits for {}", stage.waiting_for()),
                }
            }
        })
    };
    let consumers: Vec<_> = stages.into_iter().map(consumer).collect();
    consumers.into_iter().map(|consumer| consumer.join().unwrap()).collect()
}

/// DALI's way: of eight threads, one loads for each of two ranks, and the others transform.
#[test]
fn an_assignment_is_carried_out_for_loads_and_transforms() {
    let (reads, runs) = (Arc::<Latch>::default(), Arc::<Latch>::default());
    let inner = Synthetic::of_sizes(vec![500; 64], 5);
    let config = EngineConfig { threads: Some(8), ..EngineConfig::default() };
    let engine = Engine::new(config).unwrap();
    let job = JobConfig {
        batch: 8,
        policy: PolicyKind::Staging {
            duties: Some(FixedDuties { loading: 1, preprocessing: None }),
        },
        ..JobConfig::new(Arc::new(Latched { inner, latch: reads.clone() }))
    };
    let loaders = engine.start_ranks(&job, 2).unwrap();
    // The stages bring two threads each: twelve in all, of which eight are assigned.
    let stages = loaders
        .into_iter()
        .map(|loader| Transformed::new(loader, transforms(&runs, 2, Duration::ZERO)));
    let stages: Vec<_> = stages.map(Result::unwrap).collect();
    reads.wait_for(2);
    reads.open();
    runs.wait_for(6);
    let assigned = engine.metrics().snapshot().threads.assigned;
    assert_eq!((assigned.loading, assigned.transforming), (6, 6));
    assert_eq!(assigned.loading_by_rank, [1, 1]);
    assert_eq!(assigned.transforming_by_rank, [6, 6]);
    runs.open();
    let mut seen = consume(stages).concat();
    seen.sort_unstable();
    assert_eq!(seen, (0..64).collect::<Vec<u32>>());
    assert_eq!((reads.most(), runs.most()), (2, 6), "never more than assigned");
}

/// So long that there are many fits in a run.
const NAP: Duration = Duration::from_millis(1);

#[test]
fn a_replayed_run_with_measurements_gives_the_same_actions() {
    let folder = tempfile::tempdir().unwrap();
    let open = Arc::<Latch>::default();
    open.open();
    for name in POLICIES {
        let sizes = (0..400).map(|k| 1000 + k * 31 % 9000);
        let source: Arc<dyn Source> = Arc::new(Synthetic::of_sizes(sizes, 4));
        let tiers = vec![TierConfig::Ram { capacity: Bytes(1 << 20) }];
        let config = EngineConfig { threads: Some(4), tiers, ..EngineConfig::default() };
        let engine = Engine::new(config).unwrap();
        let path = folder.path().join(name);
        let job = JobConfig {
            policy: policy(name),
            epochs: Some(3),
            batch: 5,
            staging: Bytes(128 << 10),
            trace: Some(path.clone()),
            ..JobConfig::new(source)
        };
        let loaders = engine.start_ranks(&job, 2).unwrap();
        let planned = loaders[0].job().clone();
        let stages =
            loaders.into_iter().map(|loader| Transformed::new(loader, transforms(&open, 2, NAP)));
        let stages: Vec<_> = stages.map(Result::unwrap).collect();
        assert_eq!(consume(stages).concat().len(), 3 * 400);
        trace::replay(&path, &job.policy, &planned, 0).unwrap();
        let figures = engine.metrics().snapshot().threads;
        assert!(!figures.model.transforms.is_empty(), "{name}");
        let recorded = std::fs::read_to_string(&path).unwrap();
        assert!(recorded.contains("measured"), "{name}");
        if name == "belady" || name == "lobster" {
            assert!(figures.changes > 0, "{name}: {figures:?}");
            assert!(recorded.contains("preprocessing"), "{name} has moved threads");
        }
        let text = exposition::text(&engine.metrics().snapshot());
        for series in [
            "belady_threads{duty=\"transform\"}",
            "belady_rank_threads{duty=\"load\",rank=\"1\"}",
            "belady_model_transform_nanoseconds{bytes=",
            "belady_model_training_nanoseconds",
        ] {
            assert!(text.contains(series), "{name}: no {series}");
        }
    }
}

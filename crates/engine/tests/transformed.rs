//! Transformed batches equal the output of a plain loop over the raw ones, with any number of
//! threads.

mod common;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use belady_control::model::Bytes;
use belady_data::source::{FaultSpec, Faulty, Source, Synthetic};
use belady_engine::metrics::exposition;
use belady_engine::{
    BadSamples, Delivery, Engine, EngineConfig, EngineError, FieldSpec, JobConfig, Lend, Loader,
    OnGone, OutputBatch, OutputColumn, Retry, TierConfig, Transform, TransformConfig, Transformed,
    Value,
};
use belady_transform::{Array, Chain, Draw, Dtype, Output, Scratch, TransformError, TransformStep};
use proptest::prelude::*;

const ROW: usize = 12;

/// Identifies a sample and its draw; sometimes fails, panics or takes long on purpose.
#[derive(Clone, Debug)]
struct Trick {
    output: Output,
    fails: BTreeSet<u32>,
    panics: BTreeSet<u32>,
    nap: Duration,
    /// Waits until this is set.
    gate: Option<Arc<AtomicBool>>,
}

impl Trick {
    /// Rows of one length.
    fn fixed() -> Self {
        let output = Output { dtype: Some(Dtype::Uint32), shape: Some(vec![ROW / 4]) };
        let (fails, panics) = (BTreeSet::new(), BTreeSet::new());
        Self { output, fails, panics, nap: Duration::ZERO, gate: None }
    }

    /// Reverses the sample.
    fn loose() -> Self {
        let output = Output { dtype: Some(Dtype::Uint8), shape: None };
        Self { output, ..Self::fixed() }
    }

    fn failing(self, fails: &BTreeSet<u32>, panics: &BTreeSet<u32>) -> Self {
        Self { fails: fails.clone(), panics: panics.clone(), ..self }
    }

    fn outcome(&self, sample: &[u8], draw: Draw) -> Result<Vec<u8>, TransformError> {
        if self.fails.contains(&draw.sample) {
            return Err(TransformError(format!("sample {} on purpose", draw.sample)));
        }
        if self.output.shape.is_none() {
            return Ok(sample.iter().rev().copied().collect());
        }
        let sum = sample.iter().fold(draw.seed as u32, |sum, &byte| {
            sum.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        Ok([sum, draw.epoch, draw.sample].iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    fn play(&self, draw: Draw) {
        std::thread::sleep(self.nap);
        while self.gate.as_ref().is_some_and(|gate| !gate.load(Ordering::SeqCst)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!self.panics.contains(&draw.sample), "sample {} on purpose", draw.sample);
    }
}

impl Transform for Trick {
    fn output(&self) -> &Output {
        &self.output
    }

    fn run_into(
        &self,
        sample: &[u8],
        draw: Draw,
        _scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        // As a decoder that fails half way does.
        into.fill(0xee);
        self.play(draw);
        into.copy_from_slice(&self.outcome(sample, draw)?);
        Ok(())
    }

    fn run(
        &self,
        sample: &[u8],
        draw: Draw,
        _scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        self.play(draw);
        let bytes = self.outcome(sample, draw)?;
        Ok(Array { dtype: Dtype::Uint8, shape: vec![bytes.len()], bytes })
    }
}

fn field(transform: Trick) -> FieldSpec {
    FieldSpec { part: None, transform: Some(Arc::new(transform)) }
}

fn raw_bytes() -> FieldSpec {
    FieldSpec { part: None, transform: None }
}

fn engine() -> Engine {
    let tiers = vec![TierConfig::Ram { capacity: Bytes(1 << 20) }];
    let retry = Retry { attempts: 1, ..Retry::default() };
    Engine::new(EngineConfig { threads: Some(2), tiers, retry, ..EngineConfig::default() }).unwrap()
}

fn job(source: impl Source + 'static, batch: u32, epochs: u32) -> JobConfig {
    let source: Arc<dyn Source> = Arc::new(source);
    JobConfig {
        batch,
        epochs: Some(epochs),
        lend: Lend::ReadOnly,
        staging: Bytes(4 << 20),
        ..JobConfig::new(source)
    }
}

fn start(source: impl Source + 'static, batch: u32, epochs: u32) -> (Engine, Loader) {
    let engine = engine();
    let loader = engine.start(&job(source, batch, epochs)).unwrap();
    (engine, loader)
}

/// Returns the next batch; fails the test instead of hanging it.
fn next(stage: &Transformed) -> Result<Option<OutputBatch>, EngineError> {
    match stage.next_batch_timeout(Duration::from_mins(1))? {
        Delivery::Batch(made) => Ok(Some(made)),
        Delivery::Ended => Ok(None),
        Delivery::TimedOut => panic!("it waits for {}", stage.waiting_for()),
    }
}

/// Returns the bytes of the rows of a field.
fn rows(made: &OutputBatch, field: usize) -> &[u8] {
    let OutputColumn::Rows(rows) = &made.columns[field] else {
        panic!("field {field} has no rows")
    };
    let Some(block) = &made.block else { return &[] };
    assert_eq!((block.start().as_ptr() as usize + rows.offset) % 64, 0);
    // SAFETY: the batch is ours, and we only read.
    unsafe { block.part(rows.offset, rows.bytes) }
}

fn values(made: &OutputBatch, field: usize) -> &[Value] {
    let OutputColumn::Loose(values) = &made.columns[field] else {
        panic!("field {field} has rows")
    };
    values
}

/// The reference: transforms a batch in a plain loop.
struct Naive {
    ids: Vec<u32>,
    kept: Vec<usize>,
    failed: Vec<u32>,
    fixed: Vec<u8>,
    loose: Vec<Vec<u8>>,
    raw: Vec<Vec<u8>>,
}

fn naive(
    source: &Synthetic,
    ids: &[u32],
    epoch: u32,
    config: &(Trick, Trick, BadSamples),
) -> Naive {
    let (fixed, loose, on_error) = config;
    let bytes = |id: u32| {
        let mut bytes = vec![0; source.catalog().size(id) as usize];
        source.read(&mut [belady_data::source::Want::new(id, &mut bytes)]).unwrap();
        bytes
    };
    let bad =
        |id: u32| [fixed, loose].iter().any(|it| it.fails.contains(&id) || it.panics.contains(&id));
    let good: Vec<usize> = (0..ids.len()).filter(|&at| !bad(ids[at])).collect();
    let kept: Vec<usize> = match on_error {
        BadSamples::Replace if !good.is_empty() => (0..ids.len())
            .map(|at| good.iter().copied().find(|&other| other >= at).unwrap_or(good[0]))
            .collect(),
        _ => good,
    };
    let draw = |id| Draw { seed: 7, epoch: 3 + epoch, sample: id };
    let of = |trick: &Trick, at: usize| trick.outcome(&bytes(ids[at]), draw(ids[at])).unwrap();
    Naive {
        ids: ids.to_vec(),
        failed: ids.iter().copied().filter(|&id| bad(id)).collect(),
        fixed: kept.iter().flat_map(|&at| of(fixed, at)).collect(),
        loose: kept.iter().map(|&at| of(loose, at)).collect(),
        raw: kept.iter().map(|&at| bytes(ids[at])).collect(),
        kept,
    }
}

fn check(made: &OutputBatch, wanted: &Naive) {
    assert_eq!(*made.samples, *wanted.ids);
    assert_eq!(made.rows(), wanted.kept.len());
    if made.failures.is_empty() {
        assert_eq!(made.kept, None);
    } else {
        let kept: Vec<usize> = made.kept.iter().flatten().map(|&at| at as usize).collect();
        assert_eq!(kept, wanted.kept);
    }
    let failed = made.failures.iter().map(|failed| made.samples[failed.position as usize]);
    assert_eq!(failed.collect::<Vec<u32>>(), wanted.failed);
    for failed in &made.failures {
        assert!(failed.error.to_string().contains("on purpose"), "{failed:?}");
    }
    assert_eq!(rows(made, 0), wanted.fixed);
    let OutputColumn::Rows(array) = &made.columns[0] else { unreachable!() };
    assert_eq!(array.shape, [wanted.kept.len(), ROW / 4]);
    let loose = values(made, 1).iter().map(|value| match value {
        Value::Array(array) => array.bytes.clone(),
        Value::Bytes(_) => panic!("a chain gives arrays"),
    });
    assert_eq!(loose.collect::<Vec<_>>(), wanted.loose);
    let raw: Vec<Value> = wanted.raw.iter().cloned().map(Value::Bytes).collect();
    assert_eq!(values(made, 2), raw);
}

fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.to_string().contains("on purpose") {
                usual(info);
            }
        }));
    });
}

#[derive(Clone, Debug)]
struct Scene {
    sizes: Vec<u64>,
    batch: u32,
    threads: usize,
    depth: usize,
    on_error: BadSamples,
    fails: BTreeSet<u32>,
    panics: BTreeSet<u32>,
    /// How many batches the consumer holds, from time to time.
    held: Vec<usize>,
}

fn scenes() -> impl Strategy<Value = Scene> {
    let some = || prop::collection::btree_set(0u32..60, 0..8);
    let errors = [BadSamples::Raise, BadSamples::Skip, BadSamples::Replace];
    (
        prop::collection::vec(0u64..300, 1..60),
        (1u32..12, 1usize..5, 1usize..5),
        prop::sample::select(errors.to_vec()),
        prop_oneof![Just(BTreeSet::new()), some()],
        some(),
        prop::collection::vec(0usize..6, 1..8),
    )
        .prop_map(|(sizes, (batch, threads, depth), on_error, fails, panics, held)| Scene {
            sizes,
            batch,
            threads,
            depth,
            on_error,
            fails,
            panics,
            held,
        })
}

fn play(scene: &Scene) {
    let source = Synthetic::of_sizes(scene.sizes.iter().copied(), 5);
    let tricks = (
        Trick::fixed().failing(&scene.fails, &BTreeSet::new()),
        Trick::loose().failing(&BTreeSet::new(), &scene.panics),
        scene.on_error,
    );
    let config = job(Synthetic::of_sizes(scene.sizes.iter().copied(), 5), scene.batch, 2);
    let engine = engine();
    let stage = Transformed::new(
        engine.start(&config).unwrap(),
        TransformConfig {
            fields: vec![field(tricks.0.clone()), field(tricks.1.clone()), raw_bytes()],
            seed: 7,
            first: belady_control::sampler::Step { epoch: 3, iteration: 0 },
            threads: scene.threads,
            depth: scene.depth,
            on_error: scene.on_error,
            ..TransformConfig::default()
        },
    )
    .unwrap();
    let expected = common::expected(&config);
    let half = expected.len() / 2;
    let mut held = VecDeque::new();
    let mut seen = 0;
    for (at, ids) in expected.iter().enumerate() {
        let wanted = naive(&source, ids, u32::from(at >= half), &tricks);
        match next(&stage) {
            Ok(made) => {
                let made = made.expect("a batch for each that was planned");
                assert!(scene.on_error != BadSamples::Raise || wanted.failed.is_empty());
                check(&made, &wanted);
                seen += made.samples.len();
                held.push_back((made, wanted));
            }
            Err(EngineError::BadTransform { sample, error }) => {
                assert_eq!(scene.on_error, BadSamples::Raise);
                assert_eq!(sample, wanted.failed[0]);
                assert!(error.to_string().contains("on purpose"));
            }
            Err(other) => panic!("{other}"),
        }
        while held.len() > scene.held[at % scene.held.len()] {
            let (made, wanted) = held.pop_front().unwrap();
            check(&made, &wanted);
        }
    }
    assert!(next(&stage).unwrap().is_none());
    assert!(next(&stage).unwrap().is_none(), "the end stays the end");
    drop(stage);
    for (made, wanted) in &held {
        check(made, wanted);
    }
    let figures = engine.metrics().snapshot();
    assert_eq!(figures.delivered.samples, seen as u64);
    let all: usize = expected.iter().map(Vec::len).sum();
    assert_eq!(figures.transform_us.count, all as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_batch_is_the_naive_transform_of_the_raw_one(scene in scenes()) {
        quiet_panics();
        play(&scene);
    }
}

fn plain(fields: Vec<FieldSpec>) -> TransformConfig {
    TransformConfig { fields, threads: 2, depth: 3, ..TransformConfig::default() }
}

#[test]
fn raw_batches_are_released_while_the_consumer_holds_their_output() {
    let staging = Bytes(1 << 20);
    let source = Synthetic::of_sizes(vec![100_000; 64], 1);
    let engine = engine();
    let loader = engine.start(&JobConfig { staging, ..job(source, 4, 1) }).unwrap();
    let stage = Transformed::new(loader, plain(vec![field(Trick::fixed())])).unwrap();
    let held: Vec<OutputBatch> = std::iter::from_fn(|| next(&stage).unwrap()).collect();
    assert_eq!(held.len(), 16, "though two batches fill the staging buffer");
}

#[test]
fn memory_is_used_again() {
    let (_engine, loader) = start(Synthetic::of_sizes(vec![50; 400], 1), 4, 5);
    let stage = Transformed::new(loader, plain(vec![field(Trick::fixed())])).unwrap();
    let (mut blocks, mut batches) = (BTreeSet::new(), 0);
    let mut last = None;
    while let Some(made) = next(&stage).unwrap() {
        blocks.insert(made.block.as_ref().unwrap().start().as_ptr() as usize);
        batches += 1;
        last = Some(made);
    }
    drop(last);
    assert_eq!(batches, 500);
    // Three in the queue; the consumer has one, and the one before it until this one is delivered.
    // The thread that has not finished a batch may still hold it when the other one has.
    assert!(blocks.len() <= 6, "{} blocks for {batches} batches", blocks.len());
}

#[test]
fn announced_memory_is_reported_when_it_is_freed_and_not_before() {
    let gone = Arc::new(AtomicUsize::new(0));
    let told = gone.clone();
    let on_gone = OnGone(Box::new(move |_, length| {
        assert_eq!(length, (4 * ROW).next_multiple_of(64));
        told.fetch_add(1, Ordering::SeqCst);
    }));
    let (_engine, loader) = start(Synthetic::of_sizes(vec![50; 40], 1), 4, 1);
    let config = TransformConfig { on_gone: Some(on_gone), ..plain(vec![field(Trick::fixed())]) };
    let stage = Transformed::new(loader, config).unwrap();
    let held: Vec<OutputBatch> = std::iter::from_fn(|| next(&stage).unwrap()).collect();
    let new = held.iter().filter(|made| made.block.as_ref().unwrap().announce()).count();
    assert_eq!(new, 10);
    drop(stage);
    let mut held = held.into_iter();
    let last = held.next();
    drop(held);
    assert_eq!(gone.load(Ordering::SeqCst), 0);
    drop(last);
    assert_eq!(gone.load(Ordering::SeqCst), new);
}

#[test]
fn a_sample_that_cannot_be_read_is_reported_in_order_and_the_run_goes_on() {
    let broken = BTreeSet::from([9]);
    let faults = FaultSpec { broken, ..FaultSpec::default() };
    let source = Faulty::new(Box::new(Synthetic::of_sizes(vec![50; 40], 1)), faults);
    let config = job(source, 4, 2);
    let wanted = common::expected(&config);
    let engine = engine();
    let loader = engine.start(&config).unwrap();
    let stage = Transformed::new(loader, plain(vec![field(Trick::fixed())])).unwrap();
    for ids in wanted {
        match next(&stage) {
            Ok(made) => assert_eq!(*made.unwrap().samples, *ids),
            Err(EngineError::BadSample { error, .. }) => {
                assert!(error.sample() == 9 && ids.contains(&9));
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(next(&stage).unwrap().is_none());
}

#[test]
fn a_stage_can_be_closed_in_any_state() {
    for round in 0..60 {
        let (_engine, loader) = start(Synthetic::of_sizes(vec![500; 300], 1), 5, 3);
        let nap = Duration::from_micros(if round % 3 == 0 { 200 } else { 0 });
        let config = TransformConfig {
            threads: 1 + round % 4,
            depth: 1 + round % 5,
            ..plain(vec![field(Trick { nap, ..Trick::fixed() })])
        };
        let stage = Transformed::new(loader, config).unwrap();
        let held: Vec<OutputBatch> = (0..round % 7).filter_map(|_| next(&stage).unwrap()).collect();
        if round % 2 == 0 {
            stage.close();
            assert!(matches!(next(&stage), Err(EngineError::Stopped)));
            stage.close();
        }
        drop(stage);
        drop(held);
    }
}

#[test]
fn a_waiting_consumer_gets_an_error_when_the_stage_is_closed() {
    let (_engine, loader) = start(Synthetic::of_sizes(vec![500; 300], 1), 5, 3);
    let slow = Trick { nap: Duration::from_millis(50), ..Trick::fixed() };
    let stage = Transformed::new(loader, plain(vec![field(slow)])).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| while next(&stage).is_ok() {});
        std::thread::sleep(Duration::from_millis(100));
        stage.close();
        waiter.join().unwrap();
    });
}

/// Panics in the threads that assemble batches, which is no fault of a sample.
#[derive(Debug)]
struct Defective(Trick);

impl Transform for Defective {
    fn output(&self) -> &Output {
        let thread = std::thread::current();
        assert!(!thread.name().unwrap_or_default().starts_with("belady-xform"), "on purpose");
        self.0.output()
    }

    fn run_into(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        self.0.run_into(sample, draw, scratch, into)
    }

    fn run(
        &self,
        sample: &[u8],
        draw: Draw,
        scratch: &mut Scratch,
    ) -> Result<Array, TransformError> {
        self.0.run(sample, draw, scratch)
    }
}

#[test]
fn a_panicked_thread_leaves_no_consumer_waiting() {
    quiet_panics();
    let (_engine, loader) = start(Synthetic::of_sizes(vec![50; 40], 1), 4, 1);
    let transform: Option<Arc<dyn Transform>> = Some(Arc::new(Defective(Trick::fixed())));
    let config = TransformConfig { threads: 1, ..plain(vec![FieldSpec { part: None, transform }]) };
    let stage = Transformed::new(loader, config).unwrap();
    assert!(matches!(next(&stage), Err(EngineError::Defect)));
    for _ in 0..2 {
        let again = stage.next_batch_timeout(Duration::from_secs(2));
        assert!(matches!(again, Err(EngineError::Stopped)), "{again:?}");
    }
}

#[test]
fn several_consumers_get_each_batch_once() {
    let config = job(Synthetic::of_sizes(vec![100; 500], 1), 3, 2);
    let loader = engine().start(&config).unwrap();
    let stage = Transformed::new(loader, plain(vec![field(Trick::fixed())])).unwrap();
    let take = || {
        let mut seen = vec![];
        while let Some(made) = next(&stage).unwrap() {
            seen.push((made.step, made.samples.to_vec()));
        }
        seen
    };
    let mut seen = std::thread::scope(|scope| {
        let all: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
        all.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    seen.sort_by_key(|(step, _)| (step.epoch, step.iteration));
    let seen: Vec<Vec<u32>> = seen.into_iter().map(|(_, ids)| ids).collect();
    assert_eq!(seen, common::expected(&config));
}

#[test]
fn a_stage_can_be_waited_for_in_pieces_and_says_what_for() {
    let (engine, loader) = start(Synthetic::of_sizes(vec![500; 8], 1), 8, 1);
    let gate = Arc::new(AtomicBool::new(false));
    let slow = Trick { gate: Some(gate.clone()), ..Trick::fixed() };
    let config = TransformConfig { threads: 1, ..plain(vec![field(slow)]) };
    let stage = Transformed::new(loader, config).unwrap();
    let brief = Duration::from_millis(5);
    let (mut pieces, mut words) = (0, String::new());
    while pieces < 4 || !words.contains("the transform of") {
        assert!(matches!(stage.next_batch_timeout(brief).unwrap(), Delivery::TimedOut));
        pieces += 1;
        words = stage.waiting_for();
    }
    assert_eq!(words, "the transform of 8 of 8 samples of batch 0 of epoch 0");
    gate.store(true, Ordering::SeqCst);
    let made = next(&stage).unwrap().expect("there is a batch");
    assert_eq!(made.samples.len(), 8);
    let figures = engine.metrics().snapshot();
    assert_eq!(figures.wait_us.count, 1, "one wait");
    assert!(figures.blocked_ns >= 4 * brief.as_nanos() as u64, "all pieces count");
    assert_eq!(figures.transform_us.count, 8);
    let text = exposition::text(&figures);
    assert!(text.contains("\nbelady_transform_microseconds_count 8\n"), "{text}");
    assert!(text.contains("\nbelady_transform_failures_total 0\n"));
}

#[test]
fn a_chain_of_plain_data_is_a_transform() {
    let (_engine, loader) = start(Synthetic::of_sizes(vec![24; 10], 1), 4, 1);
    let source = Synthetic::of_sizes(vec![24; 10], 1);
    let step = TransformStep::Raw { dtype: Dtype::Float32, shape: vec![Some(2), Some(3)] };
    let chain = Chain::new(vec![step]).unwrap();
    let stage = Transformed::new(loader, plain(vec![FieldSpec::new(None, Some(chain))])).unwrap();
    while let Some(made) = next(&stage).unwrap() {
        let OutputColumn::Rows(array) = &made.columns[0] else { panic!("a fixed shape") };
        assert_eq!((array.dtype, &array.shape[1..]), (Dtype::Float32, &[2, 3][..]));
        for (row, &id) in rows(&made, 0).chunks(24).zip(&made.samples) {
            assert!(source.verify(id, row));
        }
    }
}

#[test]
fn batches_without_fields_or_samples_are_batches_too() {
    let (_engine, loader) = start(Synthetic::of_sizes(vec![24; 10], 1), 4, 1);
    let stage = Transformed::new(loader, plain(vec![])).unwrap();
    let sizes: Vec<usize> =
        std::iter::from_fn(|| next(&stage).unwrap()).map(|made| made.samples.len()).collect();
    assert_eq!(sizes, [4, 4, 2]);
}

//! Orders that come over time: every order is delivered, and a provider's error is reported when
//! it is due.

mod common;

use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::sampler::orders::{Lists, LoaderOrders, StartAt};
use belady_control::sampler::torch::{Draws, RandomSampler};
use belady_control::sampler::{
    Batching, EpochList, Order, OrderError, OrderProvider, SampleId, Step,
};
use belady_data::source::{Source, Synthetic};
use belady_engine::{
    Delivery, Engine, EngineConfig, EngineError, JobConfig, Lend, Loader, POLICIES, TierConfig,
    trace,
};
use common::policy;
use proptest::prelude::*;

/// A user's sampler, which returns each epoch once, in order.
#[derive(Debug, Default)]
struct Sampler {
    epochs: Vec<EpochList>,
    asked: Mutex<Vec<u32>>,
    /// From this epoch on it blocks until the gate opens.
    gate: Option<(u32, Mutex<bool>, Condvar)>,
    /// The error after its last epoch; otherwise it ends.
    error: Option<&'static str>,
}

impl Sampler {
    fn new(epochs: Vec<EpochList>) -> Self {
        Self { epochs, ..Self::default() }
    }

    fn behind_gate(epochs: Vec<EpochList>, from: u32) -> Self {
        Self { gate: Some((from, Mutex::default(), Condvar::new())), ..Self::new(epochs) }
    }

    fn open(&self) {
        if let Some((_, open, opened)) = &self.gate {
            *open.lock().unwrap() = true;
            opened.notify_all();
        }
    }

    fn asked(&self) -> Vec<u32> {
        self.asked.lock().unwrap().clone()
    }
}

impl OrderProvider for Sampler {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        self.asked.lock().unwrap().push(epoch);
        if let Some((from, open, opened)) = &self.gate
            && epoch >= *from
        {
            drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        }
        match (self.epochs.get(epoch as usize), self.error) {
            (Some(list), _) => Ok(Some(list.clone())),
            (None, Some(error)) => Err(OrderError::failed(epoch, error)),
            (None, None) => Ok(None),
        }
    }
}

fn engine(threads: u32, tiers: &[u64]) -> Engine {
    let tiers = tiers.iter().map(|&bytes| TierConfig::Ram { capacity: Bytes(bytes) }).collect();
    Engine::new(EngineConfig { threads: Some(threads), tiers, ..EngineConfig::default() }).unwrap()
}

fn job(source: &Arc<Synthetic>, orders: Arc<dyn OrderProvider>) -> JobConfig {
    let source: Arc<dyn Source> = source.clone();
    JobConfig { order: Order::Provided(orders), epochs: None, ..JobConfig::new(source) }
}

fn small() -> Arc<Synthetic> {
    Arc::new(Synthetic::of_sizes(vec![100; 20], 1))
}

/// Fails the test instead of hanging it.
fn within<T: Send + 'static>(seconds: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, outcome) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    outcome.recv_timeout(Duration::from_secs(seconds)).expect("it ends")
}

type Delivered = Vec<(Step, Vec<SampleId>)>;

/// Returns all batches until the end or an error; checks their bytes.
fn consume(loader: &mut Loader, source: &Synthetic) -> (Delivered, Result<(), EngineError>) {
    let mut seen = vec![];
    loop {
        match loader.next_batch() {
            Ok(Some(batch)) => {
                for sample in batch.iter() {
                    assert!(source.verify(sample.id, sample.bytes()), "sample {}", sample.id);
                }
                let step = batch.step();
                let of = loader.batches_of(step.epoch).expect("its epoch is staged");
                assert!(step.iteration < of, "{step:?} of {of}");
                seen.push((step, batch.iter().map(|sample| sample.id).collect()));
            }
            Ok(None) => return (seen, Ok(())),
            Err(error) => return (seen, Err(error)),
        }
    }
}

fn expected(epochs: &[EpochList]) -> Delivered {
    let mut all = vec![];
    for (epoch, list) in (0..).zip(epochs) {
        for (iteration, batch) in (0..).zip(list.batches()) {
            all.push((Step { epoch, iteration }, batch.to_vec()));
        }
    }
    all
}

/// Returns lists of any length, ragged or even, that repeat samples and leave some out.
fn lists(samples: u32) -> impl Strategy<Value = EpochList> {
    let one = 0..samples;
    let ragged = prop::collection::vec(prop::collection::vec(one.clone(), 0..8), 0..14);
    let even = (prop::collection::vec(one, 0..90), 1u32..12, any::<bool>());
    // Most orders are permutations or parts of one.
    let order = Just((0..samples).collect::<Vec<_>>()).prop_shuffle();
    let shuffled = (order, 1u32..12, any::<bool>());
    let cut = |(samples, batch, drop_last)| EpochList {
        samples,
        batches: Batching::Every { batch, drop_last },
    };
    prop_oneof![ragged.prop_map(EpochList::of_batches), even.prop_map(cut), shuffled.prop_map(cut)]
}

fn jobs() -> impl Strategy<Value = (Vec<u64>, Vec<EpochList>)> {
    let size = prop_oneof![Just(0u64), 1..2000u64, 1..20_000u64];
    prop::collection::vec(size, 1..60).prop_flat_map(|sizes| {
        let samples = sizes.len() as u32;
        (Just(sizes), prop::collection::vec(lists(samples), 0..7))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_provided_order_is_delivered(
        (sizes, epochs) in jobs(),
        threads in 1u32..5,
        tiers in prop::collection::vec(0u64..150_000, 0..3),
        which in 0..POLICIES.len(),
        ahead: bool,
        read_only: bool,
        known in prop::option::of(0u32..7),
    ) {
        let source = Arc::new(Synthetic::of_sizes(sizes, 1));
        let sampler = Arc::new(Sampler::new(epochs.clone()));
        let orders: Arc<dyn OrderProvider> =
            if ahead { Arc::new(Lists(epochs.clone())) } else { sampler.clone() };
        let config = JobConfig {
            epochs: known,
            policy: policy(POLICIES[which]),
            lend: if read_only { Lend::ReadOnly } else { Lend::Slots },
            staging: Bytes(600_000),
            ..job(&source, orders)
        };
        let mut loader = engine(threads, &tiers).start(&config).unwrap();
        let (seen, outcome) = consume(&mut loader, &source);
        outcome.unwrap();
        let end = known.map_or(epochs.len(), |known| epochs.len().min(known as usize));
        prop_assert_eq!(seen, expected(&epochs[..end]));
        if !ahead {
            // Once each, in order, and not beyond the last.
            let given = epochs.len() as u32 + 1;
            let most = known.map_or(given, |known| known.min(given));
            prop_assert_eq!(sampler.asked(), (0..most).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_sampler_is_asked_one_epoch_ahead_and_no_further() {
    // At most five of an epoch's twenty batches fit into the buffer.
    let source = small();
    let list = || EpochList::of_batches(vec![[1, 2, 3, 4]; 20]);
    for name in POLICIES {
        let sampler = Arc::new(Sampler::new(vec![list(), list(), list(), list()]));
        let config = JobConfig {
            staging: Bytes(3000),
            policy: policy(name),
            ..job(&source, sampler.clone())
        };
        let mut loader = engine(2, &[1000]).start(&config).unwrap();
        for taken in 0..80 {
            let Some(batch) = loader.next_batch().unwrap() else { panic!("{taken}") };
            let epoch = batch.step().epoch;
            drop(batch);
            if taken % 20 < 10 {
                let last = sampler.asked().last().copied();
                assert!(last <= Some(epoch + 1), "{name}: {last:?} in epoch {epoch}");
            }
        }
        assert!(loader.next_batch().unwrap().is_none());
    }
}

#[test]
fn a_samplers_error_follows_all_batches_before_it_unchanged() {
    let source = small();
    let epochs =
        vec![EpochList::of_batches([vec![1, 2], vec![3]]), EpochList::of_batches([[4, 5]])];
    for name in POLICIES {
        let sampler = Sampler { error: Some("out of ideas"), ..Sampler::new(epochs.clone()) };
        let config = JobConfig { policy: policy(name), ..job(&source, Arc::new(sampler)) };
        let mut loader = engine(3, &[1000]).start(&config).unwrap();
        // Gives it time to fail before the first batch is taken.
        std::thread::sleep(Duration::from_millis(20));
        let (seen, outcome) = consume(&mut loader, &source);
        assert_eq!(seen, expected(&epochs), "{name}");
        let Err(EngineError::Order(OrderError::Failed { epoch, error })) = outcome else {
            panic!("{name}: {outcome:?}")
        };
        assert_eq!((epoch, error.to_string().as_str()), (2, "out of ideas"));
        assert!(matches!(loader.next_batch(), Err(EngineError::Stopped)));
    }
}

#[test]
fn a_sample_that_does_not_exist_is_refused_when_its_epoch_comes() {
    let source = small();
    let epochs = vec![EpochList::of_batches([[1, 2]]), EpochList::of_batches([[3, 4], [5, 20]])];
    let orders: Arc<dyn OrderProvider> = Arc::new(Lists(epochs.clone()));
    // In a run that is resumed at epoch 7, epoch 8 is wrong.
    let before = vec![EpochList::of_batches([[0]]); 7];
    let later = Arc::new(Lists(before.into_iter().chain(epochs.clone()).collect()));
    let resumed = Arc::new(StartAt { orders: later, epoch: 7, batch: 0 });
    for (orders, wrong) in [(orders, "epoch 1"), (resumed, "epoch 8")] {
        let mut loader = engine(2, &[]).start(&job(&source, orders)).unwrap();
        let (seen, outcome) = consume(&mut loader, &source);
        assert_eq!(seen, expected(&epochs[..1]));
        let error = outcome.unwrap_err().to_string();
        for part in [wrong, "sample 20", "position 3", "20 samples"] {
            assert!(error.contains(part), "{error}");
        }
    }
}

#[test]
fn a_batch_that_does_not_fit_is_refused_when_it_is_due_with_the_size_that_it_needs() {
    let source = small();
    let epochs = vec![EpochList::of_batches([vec![1; 3], vec![2; 50], vec![3]])];
    let config =
        |staging| JobConfig { staging, ..job(&source, Arc::new(Sampler::new(epochs.clone()))) };
    let engine = engine(2, &[1000]);
    let mut loader = engine.start(&config(Bytes(5000))).unwrap();
    let (seen, outcome) = consume(&mut loader, &source);
    assert_eq!(seen, expected(&epochs)[..1]);
    let Err(EngineError::StagingTooSmall { given: Bytes(5000), needed, batch: 50 }) = outcome
    else {
        panic!("{outcome:?}")
    };
    let mut loader = engine.start(&config(needed)).unwrap();
    let (seen, outcome) = consume(&mut loader, &source);
    assert!(outcome.is_ok() && seen == expected(&epochs), "{outcome:?}");
    // OrderProvider with a known largest batch are refused at the start.
    let lists = Arc::new(Lists(vec![EpochList::of_batches([(0..15).collect::<Vec<_>>()])]));
    let config = JobConfig { staging: Bytes(3000), ..job(&source, lists) };
    let refused = engine.start(&config);
    assert!(matches!(refused, Err(EngineError::StagingTooSmall { batch: 15, .. })), "{refused:?}");
}

#[test]
fn the_first_batches_come_before_the_plan_if_it_takes_long() {
    let lists = vec![EpochList::of_batches([[1, 2], [3, 4], [5, 6]]); 3];
    let sampler = Arc::new(Sampler::behind_gate(lists.clone(), 1));
    let (seen, outcome) = within(40, move || {
        let source = small();
        let engine = engine(2, &[1000]);
        let mut loader = engine.start(&job(&source, sampler.clone())).unwrap();
        // The plan of an epoch needs the order of the next one.
        let first = loader.next_batch().unwrap().unwrap();
        let first = (first.step(), first.iter().map(|sample| sample.id).collect());
        sampler.open();
        let (mut seen, outcome) = consume(&mut loader, &source);
        seen.insert(0, first);
        (seen, outcome)
    });
    assert!(outcome.is_ok() && seen == expected(&lists), "{outcome:?} {seen:?}");
}

#[test]
fn a_sampler_that_never_returns_does_not_delay_a_stop() {
    within(20, || {
        for from in 0..3 {
            let list = EpochList::of_batches([[1, 2], [3, 4]]);
            let sampler = Arc::new(Sampler::behind_gate(vec![list; 4], from));
            let mut loader = engine(2, &[]).start(&job(&small(), sampler.clone())).unwrap();
            // An epoch begins when the order of the next one is known.
            let (waits, long) = (from < 2, Duration::from_mins(10));
            let patience = if waits { Duration::from_millis(30) } else { long };
            let next = loader.next_batch_timeout(patience).unwrap();
            assert_eq!(matches!(next, Delivery::TimedOut), waits);
            drop(loader);
            sampler.open();
        }
    });
}

#[test]
fn repeated_calls_with_a_timeout_count_as_one_wait() {
    let source = small();
    let list = EpochList::of_batches([[1, 2], [3, 4]]);
    for name in POLICIES {
        let sampler = Arc::new(Sampler::behind_gate(vec![list.clone()], 0));
        let engine = engine(2, &[]);
        let config = JobConfig { policy: policy(name), ..job(&source, sampler.clone()) };
        let mut loader = engine.start(&config).unwrap();
        let brief = Duration::from_millis(15);
        for _ in 0..4 {
            assert!(matches!(loader.next_batch_timeout(brief).unwrap(), Delivery::TimedOut));
        }
        assert!(matches!(loader.next_batch_timeout(Duration::ZERO).unwrap(), Delivery::TimedOut));
        sampler.open();
        let long = Duration::MAX;
        let Delivery::Batch(batch) = loader.next_batch_timeout(long).unwrap() else {
            panic!("{name}")
        };
        assert_eq!(batch.iter().map(|sample| sample.id).collect::<Vec<_>>(), [1, 2]);
        let waits = engine.metrics().snapshot();
        assert_eq!(waits.wait_us.count, 1, "{name}");
        // Four waits that timed out count.
        assert!(u128::from(waits.blocked_ns) >= 4 * brief.as_nanos(), "{name}");
        assert!(matches!(loader.next_batch_timeout(long).unwrap(), Delivery::Batch(_)));
        assert!(matches!(loader.next_batch_timeout(long).unwrap(), Delivery::Ended));
        assert!(matches!(loader.next_batch_timeout(long).unwrap(), Delivery::Ended));
    }
}

#[test]
fn epochs_without_a_batch_are_skipped_but_not_for_ever() {
    #[derive(Debug)]
    struct Nothing;
    impl OrderProvider for Nothing {
        fn epoch(&self, _: u32) -> Result<Option<EpochList>, OrderError> {
            Ok(Some(EpochList { samples: vec![], batches: Batching::Ends(vec![]) }))
        }
    }
    within(20, || {
        let (source, engine) = (small(), engine(2, &[]));
        let mut loader = engine.start(&job(&source, Arc::new(Nothing))).unwrap();
        assert!(matches!(loader.next_batch(), Err(EngineError::EmptyEpochs { .. })));
        let config = JobConfig { epochs: Some(1000), ..job(&source, Arc::new(Nothing)) };
        let mut loader = engine.start(&config).unwrap();
        assert!(loader.next_batch().unwrap().is_none());
        assert_eq!((loader.batches_of(999), loader.batches_of(1000)), (Some(0), None));
    });
}

#[test]
fn a_saved_run_is_resumed_where_it_was() {
    let source = small();
    let sampler = || RandomSampler::new(20, 3, Draws::ThroughLoader);
    let whole = Arc::new(LoaderOrders::new(sampler(), 6, false).unwrap());
    let engine = engine(3, &[1200]);
    let run = |orders: Arc<dyn OrderProvider>, epochs| {
        let config = JobConfig { epochs: Some(epochs), ..job(&source, orders) };
        let (seen, outcome) = consume(&mut engine.start(&config).unwrap(), &source);
        outcome.unwrap();
        seen.into_iter().map(|(_, ids)| ids).collect::<Vec<_>>()
    };
    let all = run(whole.clone(), 5);
    for delivered in 0..=20u32 {
        // A position at an epoch's end equals one at the next one's start.
        let (epoch, batch) = (delivered / 4, delivered % 4);
        let places = if batch == 0 && epoch > 0 {
            vec![(epoch, 0), (epoch - 1, 4)]
        } else {
            vec![(epoch, batch)]
        };
        for (epoch, batch) in places {
            let rest = run(Arc::new(StartAt { orders: whole.clone(), epoch, batch }), 5 - epoch);
            assert_eq!(rest, all[delivered as usize..], "{epoch} {batch}");
            // The same from the generator's state.
            let state = whole.before(epoch).state().clone();
            let sampler =
                RandomSampler::from_state(20, Draws::ThroughLoader, u64::from(epoch), state);
            let saved = Arc::new(LoaderOrders::new(sampler, 6, false).unwrap());
            let rest = run(Arc::new(StartAt { orders: saved, epoch: 0, batch }), 5 - epoch);
            assert_eq!(rest, all[delivered as usize..], "{epoch} {batch}");
        }
    }
}

#[test]
fn a_replayed_run_of_provided_orders_gives_the_same_actions() {
    let folder = tempfile::tempdir().unwrap();
    let epoch = |k: u32| {
        let batch = |at: u32| (0..at % 5).map(|j| (at * 7 + j * k) % 20).collect::<Vec<_>>();
        EpochList::of_batches((0..10 + 3 * k).map(batch))
    };
    let epochs: Vec<EpochList> = (0..5).map(epoch).collect();
    for name in POLICIES {
        let source = small();
        let path = folder.path().join(name);
        let config = JobConfig {
            policy: policy(name),
            trace: Some(path.clone()),
            ..job(&source, Arc::new(Lists(epochs.clone())))
        };
        let mut loader = engine(2, &[500, 500]).start(&config).unwrap();
        let (seen, _) = consume(&mut loader, &source);
        assert_eq!(seen, expected(&epochs), "{name}");
        let job = loader.job().clone();
        drop(loader);
        let answers = trace::replay(&path, &config.policy, &job, 0).unwrap();
        assert!(answers >= 2 * (seen.len() as u64 - 10), "{name}: {answers}");
    }
}

#[test]
fn samples_that_a_varying_order_repeats_are_read_once() {
    // Epochs of different lengths over the same half of the samples, which fits.
    let source = Arc::new(Synthetic::of_sizes(vec![1000; 100], 1));
    let epoch = |k: u32| {
        let mut samples: Vec<u32> = (0..50).map(|j| 2 * ((j * 7 + k) % 50)).collect();
        samples.extend_from_within(..(5 * k as usize));
        EpochList { samples, batches: Batching::Every { batch: 4 + k, drop_last: false } }
    };
    let epochs: Vec<EpochList> = (0..5).map(epoch).collect();
    for name in ["belady", "nopfs", "lru", "monarch", "lobster"] {
        for ahead in [true, false] {
            let before = source.operations().bytes;
            let orders: Arc<dyn OrderProvider> = if ahead {
                Arc::new(Lists(epochs.clone()))
            } else {
                Arc::new(Sampler::new(epochs.clone()))
            };
            let config = JobConfig { policy: policy(name), ..job(&source, orders) };
            let mut loader = engine(4, &[60_000]).start(&config).unwrap();
            let (seen, outcome) = consume(&mut loader, &source);
            assert!(outcome.is_ok() && seen == expected(&epochs), "{name}");
            assert_eq!(source.operations().bytes - before, 50_000, "{name}, ahead {ahead}");
        }
    }
}

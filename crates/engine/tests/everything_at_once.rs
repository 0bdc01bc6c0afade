//! All faults at once: a source that fails and hangs, caches that lose, refuse, damage, hang and
//! come back, orders of all kinds, and a second run on the caches of the first. Every batch is
//! exact.

mod common;

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::sampler::orders::Lists;
use belady_control::sampler::{Batching, EpochList, Order, SampleId};
use belady_data::source::{FaultSpec, Faulty, Source, Synthetic, ThrottleSpec, Throttled};
use belady_data::tier::TierFaults;
use belady_engine::{
    Batch, Engine, EngineConfig, JobConfig, Lend, Loader, POLICIES, Retry, RingKind, TierConfig,
};
use common::{expected, policy};
use proptest::prelude::*;

const SAMPLES: u32 = 150;
const HANG: Duration = Duration::from_millis(60);
const TIMEOUT: Duration = Duration::from_millis(25);

#[derive(Clone, Debug)]
struct Case {
    policy: &'static str,
    threads: u32,
    /// Capacity in hundredths of the dataset, and whether it is a disk.
    tiers: Vec<(u64, bool)>,
    faults: [f64; 6],
    source_faults: f64,
    seed: u64,
    runs: Vec<RunCase>,
}

#[derive(Clone, Debug)]
struct RunCase {
    /// Empty for torch's order.
    epochs: Vec<EpochList>,
    lend: Lend,
    ring: RingKind,
    /// Batches that the consumer holds.
    held: usize,
}

fn epoch() -> impl Strategy<Value = EpochList> {
    let ragged = prop::collection::vec(prop::collection::vec(0..SAMPLES, 0..30), 0..20);
    let even = (prop::collection::vec(0..SAMPLES, 0..300), 1u32..20, any::<bool>());
    prop_oneof![
        ragged.prop_map(EpochList::of_batches),
        even.prop_map(|(samples, batch, drop_last)| {
            EpochList { samples, batches: Batching::Every { batch, drop_last } }
        }),
    ]
}

fn run_case() -> impl Strategy<Value = RunCase> {
    let epochs = prop_oneof![Just(vec![]), prop::collection::vec(epoch(), 3)];
    let lend = prop_oneof![Just(Lend::Slots), Just(Lend::ReadOnly)];
    let ring = prop_oneof![Just(RingKind::Private), Just(RingKind::Shared)];
    let all = (epochs, lend, ring, 0usize..4);
    all.prop_map(|(epochs, lend, ring, held)| RunCase { epochs, lend, ring, held })
}

fn case() -> impl Strategy<Value = Case> {
    let fault = |share: f64| prop_oneof![Just(0.0), Just(share)];
    (
        prop::sample::select(POLICIES.to_vec()),
        1u32..7,
        prop::collection::vec((1u64..150, any::<bool>()), 0..4),
        [fault(0.05), fault(0.05), fault(0.05), fault(0.05), fault(0.01), fault(0.01)],
        fault(0.004),
        any::<u64>(),
        prop::collection::vec(run_case(), 2),
    )
        .prop_map(|(policy, threads, tiers, faults, source_faults, seed, runs)| Case {
            policy,
            threads,
            tiers,
            faults,
            source_faults,
            seed,
            runs,
        })
}

fn synthetic() -> Synthetic {
    Synthetic::of_sizes((0..u64::from(SAMPLES)).map(|sample| sample * 37 % 3_000), 3)
}

fn engine(case: &Case, folder: &std::path::Path) -> Engine {
    let total = synthetic().catalog().sizes().total().0;
    let tier = |(at, &(share, disk)): (usize, &(u64, bool))| {
        let capacity = Bytes(total * share / 100);
        if disk {
            TierConfig::Disk { directory: folder.join(at.to_string()), capacity }
        } else {
            TierConfig::Ram { capacity }
        }
    };
    let [full, refused, miss, damaged, hung_put, hung_get] = case.faults;
    let faults = TierFaults { full, refused, miss, damaged, hung_put, hung_get, hang: HANG };
    Engine::new(EngineConfig {
        threads: Some(case.threads),
        tiers: case.tiers.iter().enumerate().map(tier).collect(),
        retry: Retry { attempts: 50, backoff: Duration::from_micros(200), timeout: TIMEOUT },
        tier_faults: Some((faults, case.seed)),
        ..EngineConfig::default()
    })
    .unwrap()
}

fn job(case: &Case, run: &RunCase) -> (JobConfig, Vec<Vec<SampleId>>) {
    let slow: ThrottleSpec = "1:50MB/s".parse().unwrap();
    let faults = FaultSpec { hang: HANG, ..FaultSpec::all_at(case.source_faults, case.seed) };
    let source: Arc<dyn Source> =
        Arc::new(Faulty::new(Throttled::new(synthetic(), slow, 1), faults));
    let mut config = JobConfig {
        policy: policy(case.policy),
        epochs: Some(3),
        batch: 7,
        staging: Bytes(1 << 20),
        lend: run.lend,
        ring: run.ring,
        ..JobConfig::new(source)
    };
    if run.epochs.is_empty() {
        let expected = expected(&config);
        return (config, expected);
    }
    config.order = Order::Provided(Arc::new(Lists(run.epochs.clone())));
    let batches = run.epochs.iter().flat_map(EpochList::batches);
    (config, batches.map(<[SampleId]>::to_vec).collect())
}

/// Returns the batches; checks their bytes when the consumer drops them.
fn consume(loader: &mut Loader, held: usize) -> Vec<Vec<SampleId>> {
    let known = synthetic();
    let look = |batch: Batch| {
        for sample in batch.iter() {
            assert!(known.verify(sample.id, sample.bytes()), "bytes of sample {}", sample.id);
        }
    };
    let (mut batches, mut hands) = (vec![], VecDeque::new());
    while let Some(batch) = loader.next_batch().unwrap() {
        batches.push(batch.iter().map(|sample| sample.id).collect());
        hands.push_back(batch);
        if hands.len() > held {
            hands.pop_front().into_iter().for_each(look);
        }
    }
    hands.into_iter().for_each(look);
    batches
}

fn check(case: &Case) {
    let folder = tempfile::tempdir().unwrap();
    for run in &case.runs {
        let (config, expected) = job(case, run);
        let mut loader = engine(case, folder.path()).start(&config).unwrap();
        assert_eq!(consume(&mut loader, run.held), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_batch_is_what_it_should_be_whatever_goes_wrong(case in case()) {
        let (done, ended) = mpsc::channel();
        let checking = std::thread::spawn(move || {
            check(&case);
            done.send(()).unwrap();
        });
        let outcome = ended.recv_timeout(Duration::from_mins(1));
        assert!(outcome != Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
        prop_assert!(checking.join().is_ok());
    }
}

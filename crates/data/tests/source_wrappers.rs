//! Wrappers of sources and generated sources: synthetic, throttled and faulty ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use belady_base::SampleId;
use belady_data::source::{
    Fault, FaultSpec, Faulty, ReadError, Source, Synthetic, ThrottleSpec, Throttled, Want,
    conformance,
};
use proptest::prelude::*;

fn read(source: &impl Source, sample: SampleId) -> Result<Vec<u8>, ReadError> {
    let mut bytes = vec![0; source.catalog().size(sample) as usize];
    source.read(&mut [Want::new(sample, &mut bytes)]).map(|()| bytes)
}

proptest! {
    #[test]
    fn a_synthetic_sample_is_known_by_its_bytes(
        sizes in prop::collection::vec(0u64..100, 2..6),
        seed in any::<u64>(),
    ) {
        let source = Synthetic::of_sizes(sizes.clone(), seed);
        let other_seed = Synthetic::of_sizes(sizes.clone(), seed ^ 1);
        for (sample, &size) in (0..).zip(&sizes) {
            let bytes = read(&source, sample).unwrap();
            prop_assert_eq!(&bytes, &read(&source, sample).unwrap());
            prop_assert!(source.verify(sample, &bytes));
            prop_assert!(!source.verify(sample, &[&bytes[..], &[0]].concat()));
            for at in 0..size as usize {
                let mut changed = bytes.clone();
                changed[at] ^= 4;
                prop_assert!(!source.verify(sample, &changed));
                prop_assert!(!source.verify(sample, &bytes[..at]));
            }
            // A few bytes may be equal by chance.
            if size >= 8 {
                prop_assert!(!other_seed.verify(sample, &bytes));
                for neighbour in (0..sizes.len() as u32).filter(|&other| other != sample) {
                    prop_assert!(!source.verify(neighbour, &bytes));
                }
            }
        }
        prop_assert_eq!(source.operations().read, 2 * sizes.len() as u64);
        prop_assert_eq!(source.operations().bytes, 2 * sizes.iter().sum::<u64>());
    }
}

fn made_up() -> Synthetic {
    Synthetic::of_sizes([0, 1, 7, 8, 9, 1000, 100_000, 0], 4)
}

fn check_conformance(source: &dyn Source) {
    let original = made_up();
    let expected =
        |sample| conformance::Expected { bytes: read(&original, sample).unwrap(), label: None };
    conformance::check(source, &(0..8).map(expected).collect::<Vec<_>>());
}

#[test]
fn all_pass_the_suite_of_sources() {
    check_conformance(&made_up());
    check_conformance(&throttled(made_up(), "1:1GB/s,4:2GB/s,latency:10us,jitter:50%"));
    check_conformance(&Faulty::new(made_up(), FaultSpec::all_at(0.0, 0)));
}

fn faulty(rates: [f64; 5], checksums: bool) -> Faulty<Synthetic> {
    let spec = FaultSpec { rates, checksums, seed: 3, ..FaultSpec::default() };
    Faulty::new(Synthetic::of_sizes([100; 1000], 9), spec)
}

#[test]
fn each_fault_has_its_error() {
    for (at, fault) in Fault::ALL.into_iter().enumerate() {
        let mut rates = [0.0; 5];
        rates[at] = 1.0;
        let source = faulty(rates, true);
        let error = read(&source, 5).unwrap_err();
        assert_eq!((error.sample(), error.is_transient()), (5, true));
        match (fault, error) {
            (Fault::Error | Fault::Hang, ReadError::Io { .. })
            | (Fault::Damaged | Fault::Corrupt, ReadError::Damaged { .. }) => {}
            (Fault::Short, ReadError::Short { expected: 100, got, .. }) if got < 100 => {}
            (fault, error) => panic!("{fault:?} gave {error}"),
        }
        for counted in Fault::ALL {
            assert_eq!(source.count(counted), u64::from(counted == fault));
        }
    }
}

#[test]
fn without_checksums_a_flipped_bit_is_not_noticed() {
    let source = faulty([0.0, 0.0, 0.0, 0.0, 1.0], false);
    for sample in 0..100 {
        let bytes = read(&source, sample).unwrap();
        assert!(!source.source().verify(sample, &bytes));
        let right = read(source.source(), sample).unwrap();
        let flipped: u32 = bytes.iter().zip(&right).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(flipped, 1);
    }
    assert_eq!(source.count(Fault::Corrupt), 100);
}

#[test]
fn a_hanging_read_does_not_return_before_its_time() {
    let spec = |hang| FaultSpec { rates: [0.0, 0.0, 1.0, 0.0, 0.0], hang, ..FaultSpec::default() };
    let brief = Faulty::new(Synthetic::of_sizes([1], 0), spec(Duration::from_millis(1)));
    assert!(read(&brief, 0).is_err());
    let hanging = Arc::new(Faulty::new(Synthetic::of_sizes([1], 0), spec(Duration::from_hours(1))));
    let source = Arc::clone(&hanging);
    let reader = std::thread::spawn(move || read(&*source, 0).is_err());
    while hanging.count(Fault::Hang) == 0 {
        std::thread::yield_now();
    }
    (0..1000).for_each(|_| std::thread::yield_now());
    assert!(!reader.is_finished());
}

#[test]
fn faults_come_as_often_as_asked_and_the_rest_is_right() {
    let source = faulty([0.05; 5], true);
    let mut failed = 0;
    for _ in 0..10 {
        for sample in 0..1000 {
            match read(&source, sample) {
                Ok(bytes) => assert!(source.source().verify(sample, &bytes)),
                Err(_) => failed += 1,
            }
        }
    }
    let counts = Fault::ALL.map(|fault| source.count(fault));
    assert_eq!(counts.iter().sum::<u64>(), failed);
    // 500 of each are expected, with a standard deviation of 22.
    assert!(counts.iter().all(|count| (400..600).contains(count)), "{counts:?}");
}

#[test]
fn faults_do_not_depend_on_the_order_of_samples() {
    let outcomes = |samples: &mut dyn Iterator<Item = SampleId>| {
        let source = faulty([0.1; 5], true);
        let mut outcomes = vec![Vec::new(); 1000];
        for sample in samples {
            let outcome = read(&source, sample).map_err(|error| error.to_string());
            outcomes[sample as usize].push(outcome);
        }
        outcomes
    };
    let forward = outcomes(&mut (0..3).flat_map(|_| 0..1000));
    let backward = outcomes(&mut (0..1000).rev().flat_map(|sample| [sample; 3]));
    assert_eq!(forward, backward);
    // A later attempt does not repeat the first.
    assert!(forward.iter().any(|tries| tries[0].is_err() && tries[1].is_ok()));
}

#[test]
fn a_request_of_several_fails_with_the_first_and_counts_only_up_to_it() {
    let alone = faulty([0.2, 0.0, 0.0, 0.0, 0.0], true);
    let first_outcomes: Vec<bool> = (0..1000).map(|sample| read(&alone, sample).is_ok()).collect();
    let bad = (1..999).find(|&at| first_outcomes[at - 1] && !first_outcomes[at]).unwrap();
    let together = faulty([0.2, 0.0, 0.0, 0.0, 0.0], true);
    let mut memory = [[0; 100]; 3];
    let mut wants: Vec<Want<'_>> =
        (bad as u32 - 1..).zip(&mut memory).map(|(sample, into)| Want::new(sample, into)).collect();
    assert_eq!(together.read(&mut wants).unwrap_err().sample(), bad as u32);
    assert_eq!(together.count(Fault::Error), 1);
    assert_eq!(read(&together, bad as u32 + 1).is_ok(), first_outcomes[bad + 1]);
}

#[test]
fn broken_samples_always_fail_and_others_never() {
    let spec = FaultSpec { broken: BTreeSet::from([1, 3]), ..FaultSpec::default() };
    let source = Faulty::new(Synthetic::of_sizes([10; 5], 0), spec);
    for _ in 0..50 {
        let failed: Vec<u32> = (0..5).filter(|&sample| read(&source, sample).is_err()).collect();
        assert_eq!(failed, [1, 3]);
    }
    assert_eq!(source.broken_count(), 100);
}

#[test]
fn empty_samples_cannot_be_short_or_corrupt() {
    let spec = FaultSpec { rates: [0.0, 0.5, 0.0, 0.0, 0.5], ..FaultSpec::default() };
    let source = Faulty::new(Synthetic::of_sizes([0; 10], 0), spec);
    assert!((0..10).all(|sample| read(&source, sample).is_ok()));
    assert_eq!(source.count(Fault::Corrupt) + source.count(Fault::Short), 0);
}

fn throttled<S: Source>(source: S, spec: &str) -> Throttled<S> {
    Throttled::new(source, spec.parse::<ThrottleSpec>().unwrap(), 1)
}

#[test]
fn a_throttled_source_returns_the_same_bytes() {
    let source = throttled(Synthetic::of_sizes([100_000; 8], 5), "1:10MB/s,4:20MB/s,latency:1ms");
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let source = &source;
            scope.spawn(move || {
                for sample in [reader, reader + 4] {
                    let bytes = read(source, sample).unwrap();
                    assert!(source.source().verify(sample, &bytes));
                }
            });
        }
    });
    assert_eq!(source.operations().read, 8);
}

#[test]
fn a_reader_that_speeds_others_up_wakes_them() {
    // Alone, the first reader needs a quarter of an hour; with the second a moment.
    let source = throttled(Synthetic::of_sizes([100_000; 2], 5), "1:100B/s,2:1GB/s");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| read(&source, 0).map(|_| ()));
        while source.operations().read == 0 {
            std::thread::yield_now();
        }
        (0..1000).for_each(|_| std::thread::yield_now());
        assert!(!first.is_finished(), "it waits for the link, though its bytes are read");
        let second = scope.spawn(|| read(&source, 1).map(|_| ()));
        // Both want the same amount, so little is left for the second when the first is done.
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
    });
}

#[test]
fn a_failed_read_leaves_the_link_to_the_others() {
    let spec = FaultSpec { broken: BTreeSet::from([0]), ..FaultSpec::default() };
    // The broken sample would hold the link for an hour.
    let source = Faulty::new(Synthetic::of_sizes([36_000_000, 100], 0), spec);
    let source = throttled(source, "1:10KB/s");
    for _ in 0..20 {
        assert!(read(&source, 0).is_err());
    }
    assert!(read(&source, 1).is_ok());
}

//! Unit tests of Lobster's model.

use super::threads::{nearest_to_training, node_cost};
use super::*;
use proptest::prelude::*;

const MB: f64 = 1e6;

fn rates() -> ReadRates {
    let curve = |points: &[(u32, f64)]| {
        Curve::new(points.iter().map(|&(n, mb)| (n, Rate(mb * MB))).collect()).unwrap()
    };
    ReadRates {
        local: curve(&[(1, 1000.0), (4, 400.0)]),
        remote: curve(&[(1, 200.0)]),
        source: curve(&[(1, 50.0), (3, 30.0)]),
    }
}

fn mb(n: u64) -> Bytes {
    Bytes(n * 1_000_000)
}

#[test]
fn equation_1_by_hand() {
    let batch = BatchBytes { local: mb(80), remote: mb(40), source: mb(12) };
    let threads = LoadingThreads { local: 4, remote: 2, source: 2 };
    // 80/(4·400) + 40/(2·200) + 12/(2·40)
    let time = loading_time(&rates(), batch, threads);
    assert!((time.0 - (0.05 + 0.1 + 0.15)).abs() < 1e-12);
    let none = LoadingThreads::in_turn(0);
    assert_eq!(loading_time(&rates(), BatchBytes::default(), none), Seconds::ZERO);
    assert_eq!(loading_time(&rates(), batch, none), Seconds(f64::INFINITY));
}

#[test]
fn equations_2_and_3_by_hand() {
    assert_eq!(time_difference(Seconds(0.5), Seconds(0.25), Seconds(1.0)), Seconds(-0.25));
    assert_eq!(spread([Seconds(0.5), Seconds(2.0), Seconds(1.0)]), Seconds(1.5));
    assert_eq!(spread([]), Seconds::ZERO);
}

#[test]
fn proportional_gives_each_busy_gpu_one() {
    assert_eq!(proportional_threads(&[30, 10], 8), [6, 2]);
    assert_eq!(proportional_threads(&[1, 1, 1000], 4), [1, 1, 2]);
    assert_eq!(proportional_threads(&[1000, 1, 1], 4), [2, 1, 1]);
    assert_eq!(proportional_threads(&[5, 0], 4), [4, 0]);
    assert_eq!(proportional_threads(&[0, 0], 4), [0, 0]);
    assert_eq!(proportional_threads(&[7, 7, 7], 2).iter().sum::<u32>(), 2);
}

#[test]
fn moves_threads_to_the_straggler() {
    // Same queue lengths, but the second GPU's samples come from the source and
    // cost four times as much: work/threads - 1.
    let work = [4.0, 16.0];
    let difference = |gpu: usize, n: u32| Seconds(work[gpu] / f64::from(n) - 1.0);
    assert_eq!(assign_threads(&[10, 10], 20, Seconds(0.01), difference), [4, 16]);
    // With half of the threads the two stay balanced.
    assert_eq!(assign_threads(&[10, 10], 10, Seconds(0.01), difference), [2, 8]);
}

#[test]
fn keeps_the_better_value_and_not_the_last() {
    // Early at 6, late at 3; 4 is nearest.
    let gap = |n: u32| Seconds(12.0 / f64::from(n) - 2.9);
    assert_eq!(nearest_to_training(12, 12, Seconds(0.0), gap), 4);
}

#[test]
fn threads_move_to_loading_when_it_lags() {
    let preprocess = |n: u32| Seconds(0.6 / f64::from(n.min(6)));
    let slow_load = |n: u32| Seconds(4.0 / f64::from(n));
    // 6 + 4 threads: 0.1 + 1.0 s; 3 + 7: 0.2 + 0.571; 2 + 8: 0.3 + 0.5.
    let split = preprocessing_threads(10, 6, Seconds(0.78), preprocess, slow_load);
    assert_eq!(split, StageThreads { preprocessing: 3, loading: 7 });
    let fast_load = |n: u32| Seconds(0.1 / f64::from(n));
    let split = preprocessing_threads(10, 6, Seconds(1.0), preprocess, fast_load);
    assert_eq!(split, StageThreads { preprocessing: 6, loading: 4 });
    let split = preprocessing_threads(1, 6, Seconds(1.0), preprocess, fast_load);
    assert_eq!(split, StageThreads { preprocessing: 1, loading: 0 });
}

/// Every allocation of at most `budget` threads, the least lateness among them.
fn least_lateness(gpus: usize, budget: u32, difference: &dyn Fn(usize, u32) -> Seconds) -> f64 {
    if gpus == 0 {
        return 0.0;
    }
    (0..=budget)
        .map(|n| {
            let rest = least_lateness(gpus - 1, budget - n, difference);
            rest.max(difference(gpus - 1, n).0)
        })
        .fold(f64::INFINITY, f64::min)
}

proptest! {
    #[test]
    fn assignment_lies_between_the_initial_one_and_the_best(
        gpus in proptest::collection::vec((0u32..40, 0.0f64..50.0, 0.0f64..3.0), 1..5),
        budget in 0u32..9,
        tau in 0.0f64..0.5,
    ) {
        let pending: Vec<u32> = gpus.iter().map(|gpu| gpu.0).collect();
        // A fixed part, a part that threads share, and a cost of crowding, so that
        // more threads are not always better.
        let difference = |gpu: usize, n: u32| {
            let (_, work, fixed) = gpus[gpu];
            let shared = if work == 0.0 { 0.0 } else { work / f64::from(n) };
            Seconds(fixed + shared + 0.05 * f64::from(n) - 4.0)
        };
        let result = assign_threads(&pending, budget, Seconds(tau), difference);
        prop_assert_eq!(result.len(), gpus.len());
        prop_assert!(result.iter().sum::<u32>() <= budget);
        let late = node_cost(&result, difference).0.0;
        let initial = node_cost(&proportional_threads(&pending, budget), difference).0.0;
        prop_assert!(late <= initial);
        let best = least_lateness(gpus.len(), budget, &difference);
        prop_assert!(late >= best || best.is_infinite());
    }

    #[test]
    fn proportional_spends_the_budget(
        pending in proptest::collection::vec(0u32..1000, 1..9), budget in 0u32..64,
    ) {
        let threads = proportional_threads(&pending, budget);
        let sum: u32 = threads.iter().sum();
        let busy = pending.iter().filter(|&&n| n > 0).count() as u32;
        prop_assert_eq!(sum, if busy == 0 { 0 } else { budget });
        if busy <= budget {
            prop_assert!(pending.iter().zip(&threads).all(|(&p, &t)| p == 0 || t > 0));
        }
    }

    #[test]
    fn preprocessing_never_lengthens_the_iteration(
        total in 1u32..16, peak in 1u32..9, prep in 0.01f64..4.0, work in 0.01f64..4.0,
    ) {
        let preprocess = |n: u32| Seconds(prep / f64::from(n.min(peak)));
        let load = |n: u32| Seconds(work / f64::from(n));
        let split = preprocessing_threads(total, peak, Seconds(1.0), preprocess, load);
        prop_assert_eq!(split.preprocessing + split.loading, total);
        let first = peak.min(total.saturating_sub(1).max(1));
        let before = load(total - first) + preprocess(first);
        let after = load(split.loading) + preprocess(split.preprocessing);
        prop_assert!(after <= before);
    }
}

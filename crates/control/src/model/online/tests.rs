//! Unit tests of the fitted model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn sum(count: u64, bytes: u64, nanoseconds: u64) -> WorkSum {
    WorkSum { count, bytes, nanoseconds }
}

/// One transform or read: bytes, threads, nanoseconds; the class of a read.
type Timed = (usize, u64, u32, u64);

fn work(transforms: &[Timed], loads: &[Timed]) -> IterationWork {
    let mut work = IterationWork::default();
    for &(_, bytes, threads, time) in transforms {
        *work.transforms.entry((size_class(bytes), threads)).or_default() += sum(1, bytes, time);
    }
    for &(class, bytes, threads, time) in loads {
        *work.loads[class].entry(threads).or_default() += sum(1, bytes, time);
    }
    work
}

/// The reference: the mean time of all that were measured at each count, without counts of which
/// few were.
fn naive_means(all: &[&Timed], per_byte: bool) -> Vec<(u32, f64)> {
    let at = |threads: u32| {
        let here: Vec<_> = all.iter().filter(|timed| timed.2 == threads).collect();
        let time: f64 = here.iter().map(|timed| timed.3 as f64).sum();
        let bytes: f64 = here.iter().map(|timed| timed.1 as f64).sum();
        let units = if per_byte { bytes / f64::from(1 << 20) } else { here.len() as f64 };
        (units > 0.0).then(|| (threads, here.len(), (time / units).round().max(1.0)))
    };
    let known: Vec<_> = (1..9).filter_map(at).collect();
    let count: usize = known.iter().map(|mean| mean.1).sum();
    let enough = known.iter().filter(|mean| 64 * mean.1 >= count);
    enough.map(|&(threads, _, mean)| (threads, mean)).collect()
}

/// The reference: walks from one measured count to the next.
fn naive_at(points: &[(u32, f64)], threads: u32) -> f64 {
    let (first, last) = (points[0], points[points.len() - 1]);
    if threads <= first.0 {
        return first.1;
    }
    for pair in points.windows(2) {
        if threads <= pair[1].0 {
            let share = f64::from(threads - pair[0].0) / f64::from(pair[1].0 - pair[0].0);
            return pair[0].1 * (1.0 - share) + pair[1].1 * share;
        }
    }
    last.1
}

fn timed() -> impl Strategy<Value = Timed> {
    (0usize..3, 0u64..5000, 1u32..9, 0u64..1_000_000)
}

fn few_timed() -> impl Strategy<Value = Vec<Vec<Timed>>> {
    prop::collection::vec(prop::collection::vec(timed(), 0..6), 0..20)
}

proptest! {
    #[test]
    fn the_fit_is_the_mean_at_each_count_and_linear_between(
        transforms in few_timed(), loads in few_timed(), asked in 1u32..12,
    ) {
        let mut window = FitWindow::default();
        let iterations = transforms.len().max(loads.len());
        let of = |all: &[Vec<Timed>], at: usize| all.get(at).cloned().unwrap_or_default();
        for at in 0..iterations {
            window.push(work(&of(&transforms, at), &of(&loads, at)));
        }
        let model = window.fit(4);
        let last = |all: &[Vec<Timed>], keep: &dyn Fn(&Timed) -> bool| -> Vec<Timed> {
            let kept = all.iter().map(|of| of.iter().copied().filter(keep).collect::<Vec<_>>());
            let kept: Vec<_> = kept.filter(|of| !of.is_empty()).collect();
            let aged = kept.iter().rev().take(WINDOW).enumerate();
            aged.flat_map(|(age, of)| of.repeat(1 << (WINDOW - 1 - age))).collect()
        };
        // Iterations without any transform do not count, those without one of this size do.
        let recent = last(&transforms, &|_| true);
        let mut sizes: BTreeMap<u8, Vec<&Timed>> = BTreeMap::new();
        for timed in &recent {
            sizes.entry(size_class(timed.1)).or_default().push(timed);
        }
        prop_assert_eq!(model.transforms.len(), sizes.len());
        for (fit, all) in model.transforms.iter().zip(sizes.values()) {
            prop_assert_eq!(fit.samples, all.len() as u64);
            let means = naive_means(all, false);
            let wanted = naive_at(&means, asked);
            prop_assert!((fit.time.at(asked).unwrap() - wanted).abs() <= 1e-6 * wanted);
        }
        for class in [LOCAL, REMOTE, SOURCE] {
            let recent = last(&loads, &|timed| timed.0 == class);
            let all: Vec<_> = recent.iter().collect();
            let means = naive_means(&all, true);
            match model.loads[class].at(asked) {
                None => prop_assert!(means.is_empty()),
                Some(time) => {
                    let wanted = naive_at(&means, asked);
                    prop_assert!((time - wanted).abs() <= 1e-6 * wanted);
                }
            }
        }
    }

    #[test]
    fn level_threads_are_the_best_of_all_divisions(
        work in prop::collection::vec(0u32..100, 1..5), threads in 0u32..10,
    ) {
        let work: Vec<f64> = work.into_iter().map(f64::from).collect();
        let given = level_threads(&work, threads);
        let cost = |given: &[u32]| {
            let each = work.iter().zip(given).map(|(work, &n)| work / f64::from(n.max(1)));
            each.fold(0.0, f64::max)
        };
        let ranks = work.len() as u32;
        prop_assert_eq!(given.iter().sum::<u32>(), threads);
        prop_assert!(threads < ranks || given.iter().all(|&threads| threads > 0));
        if threads < ranks {
            return Ok(());
        }
        let mut best = f64::INFINITY;
        let mut division = vec![1; work.len()];
        loop {
            if division.iter().sum::<u32>() == threads {
                best = best.min(cost(&division));
            }
            // Counts like an odometer.
            let Some(at) = division.iter().position(|&n| n < threads) else { break };
            division[at] += 1;
            division[..at].fill(1);
        }
        prop_assert!(cost(&given) <= best * (1.0 + 1e-12), "{given:?}: {} > {best}", cost(&given));
    }

    #[test]
    fn every_rank_and_every_duty_gets_a_thread_whatever_is_measured(
        threads in 0u32..20, cores in 1u32..9, last in prop::option::of(0u32..20),
        steps in 0u32..5, training in 0u64..100_000_000,
        transforms in few_timed(), loads in few_timed(),
        ranks in prop::collection::vec((0u64..1000, 0u64..1 << 30, 0u64..1 << 30), 0..6),
    ) {
        let mut window = FitWindow::default();
        window.push(work(&transforms.concat(), &loads.concat()));
        let mut model = window.fit(cores);
        model.training = training;
        let pending = |&(samples, near, far): &(u64, u64, u64)| {
            RankPending { samples, bytes: [near, 0, far], left: [0, 0, far] }
        };
        let ranks: Vec<_> = ranks.iter().map(pending).collect();
        let now = NodeMeasurement { threads, model, steps, ranks };
        let count = now.ranks.len() as u32;
        let Some(split) = split_threads(&now, last) else {
            let measured = !transforms.concat().is_empty();
            prop_assert!(!measured || count == 0 || threads < count + 1);
            return Ok(());
        };
        prop_assert_eq!(split.transforming + split.loading.iter().sum::<u32>(), threads);
        prop_assert!(split.transforming > 0 && split.loading.iter().all(|&threads| threads > 0));
        // No division is faster by more than the tolerance, except where training is slower.
        let (samples, bytes) = now.of_one_step();
        let time = |transforming: u32| {
            let loading = threads - transforming;
            let transform = now.model.transform_time(samples, transforming).unwrap();
            transform.max(now.model.load_time(bytes, loading, f64::from(loading))).0
        };
        let most = (threads - count).min(now.model.most_worth_trying());
        let all = now.model.least_worth_trying().min(most)..=most;
        let best = all.map(time).fold(f64::INFINITY, f64::min);
        let limit = (best * 1.031).max(now.model.training_time().0 * 0.8);
        prop_assert!(time(split.transforming) <= limit);
    }
}

#[test]
fn an_old_iteration_is_forgotten() {
    let mut window = FitWindow::default();
    window.push(work(&[(0, 1000, 2, 100)], &[(SOURCE, 1 << 20, 3, 77)]));
    for _ in 0..WINDOW {
        window.push(work(&[(0, 1000, 2, 900)], &[]));
    }
    let model = window.fit(4);
    assert_eq!(model.transforms[0].time.points(), [(2, 900)]);
    // Nothing was read from the source since.
    assert_eq!(model.loads[SOURCE].points(), [(3, 77)]);
}

#[test]
fn a_count_with_few_measurements_makes_no_knot() {
    let mut window = FitWindow::default();
    let mut one = IterationWork::default();
    one.transforms.insert((10, 4), sum(640, 640_000, 640_000));
    one.transforms.insert((10, 3), sum(9, 9_000, 1_000_000));
    one.transforms.insert((10, 2), sum(320, 320_000, 160_000));
    window.push(one);
    assert_eq!(window.fit(4).transforms[0].time.points(), [(2, 500), (4, 1000)]);
}

#[test]
fn a_recorded_measurement_is_read_back_exactly() {
    let mut window = FitWindow::default();
    window.push(work(&[(0, 1001, 3, 12_345)], &[(LOCAL, 333, 1, 777)]));
    let ranks = vec![RankPending { samples: 3, bytes: [1, 2, 3], left: [0, 1, 3] }];
    let now = NodeMeasurement { threads: 9, model: window.fit(4), steps: 2, ranks };
    let text = serde_json::to_string(&now).unwrap();
    assert_eq!(serde_json::from_str::<NodeMeasurement>(&text).unwrap(), now);
}

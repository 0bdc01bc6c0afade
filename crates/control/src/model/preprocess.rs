//! How long preprocessing takes: every thread at the same rate, or as measured by sample size and
//! thread count.
//!
//! The papers of NoPFS and HDMLP give one thread the rate β, whatever the others do. Lobster
//! (section 4.1) measures: throughput rises with the threads, peaks, and stays flat, since memory
//! bandwidth limits it (its figure 6), and it depends on the sample's size. Such measurements are a
//! [`Portfolio`].

use super::curve::{Curve, CurveError};
use belady_base::units::{Bytes, Rate, Seconds};

/// How fast the threads of a node preprocess.
#[derive(Clone, Debug, PartialEq)]
pub enum PreprocessModel {
    /// β: the rate of each thread.
    PerThread(Rate),
    /// The rate of all threads together, by sample size and thread count.
    Measured(Portfolio),
}

impl From<Rate> for PreprocessModel {
    fn from(beta: Rate) -> Self {
        Self::PerThread(beta)
    }
}

/// Throughput by thread count, measured for several sample sizes. A sample of another size has the
/// throughput of the nearest one (Lobster, section 4.1).
#[derive(Clone, Debug, PartialEq)]
pub struct Portfolio {
    /// Strictly increasing sizes; never empty.
    models: Vec<(Bytes, Curve)>,
}

/// Why measurements make no portfolio. The messages follow the name of the key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum PortfolioError {
    #[error("needs the throughput of at least one sample size")]
    Empty,
    #[error("has the size {0} twice")]
    Duplicate(Bytes),
    #[error("has a size of zero")]
    ZeroSize,
    #[error("for samples of {size} {error}")]
    BadCurve { size: Bytes, error: CurveError },
}

impl Portfolio {
    /// Sorts the throughputs by size.
    ///
    /// # Errors
    /// If there is none, two are for the same size, or a size is zero.
    pub fn new(mut models: Vec<(Bytes, Curve)>) -> Result<Self, PortfolioError> {
        models.sort_by_key(|&(size, _)| size);
        match models.first() {
            None => return Err(PortfolioError::Empty),
            Some((Bytes::ZERO, _)) => return Err(PortfolioError::ZeroSize),
            Some(_) => {}
        }
        match models.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(PortfolioError::Duplicate(pair[0].0)),
            None => Ok(Self { models }),
        }
    }

    /// Fits a portfolio to measurements: the size of a sample, the threads that were at work, and
    /// how long each sample took all of them together. With a knot at each measured count, least
    /// squares is the mean of the times there.
    ///
    /// # Errors
    /// If there is no measurement, a size or a count is zero, or a time is not positive.
    pub fn fit(measurements: &[(Bytes, u32, Seconds)]) -> Result<Self, PortfolioError> {
        let mut sorted = measurements.to_vec();
        sorted.sort_by_key(|&(size, threads, _)| (size, threads));
        let mut models = vec![];
        for of_size in sorted.chunk_by(|a, b| a.0 == b.0) {
            let size = of_size[0].0;
            let points = of_size.chunk_by(|a, b| a.1 == b.1).map(|at_count| {
                let sum: Seconds = at_count.iter().map(|&(.., time)| time).sum();
                (at_count[0].1, Rate(size.as_f64() * at_count.len() as f64 / sum.0))
            });
            let curve = Curve::new(points.collect());
            models.push((size, curve.map_err(|error| PortfolioError::BadCurve { size, error })?));
        }
        Self::new(models)
    }

    /// Returns the index of the nearest size, the smaller of two equally near.
    fn nearest(&self, size: u64) -> usize {
        let after = self.models.partition_point(|&(of, _)| of.0 < size);
        match (after.checked_sub(1), self.models.get(after)) {
            (None, _) => 0,
            (Some(below), None) => below,
            (Some(below), Some(&(above, _))) => {
                if size - self.models[below].0.0 <= above.0 - size {
                    below
                } else {
                    after
                }
            }
        }
    }
}

/// Bytes to preprocess, by the measured size that is nearest to each sample's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreprocessWork(Vec<f64>);

impl PreprocessWork {
    /// Makes it no work.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the bytes of all sizes.
    pub fn bytes(&self) -> f64 {
        self.0.iter().sum()
    }
}

impl PreprocessModel {
    /// Adds a sample to the work.
    #[inline]
    pub fn add(&self, work: &mut PreprocessWork, size: u64) {
        let at = match self {
            Self::PerThread(_) => 0,
            Self::Measured(portfolio) => portfolio.nearest(size),
        };
        if at >= work.0.len() {
            work.0.resize(at + 1, 0.0);
        }
        work.0[at] += size as f64;
    }

    /// Returns the rate of samples of one size with that many threads. The number need not be
    /// whole: a thread that does something else half of the time counts half.
    fn rate(&self, at: usize, threads: f64) -> Rate {
        match self {
            Self::PerThread(beta) => *beta * threads,
            Self::Measured(portfolio) => {
                let curve = &portfolio.models[at].1;
                if threads < 1.0 { curve.at(1) * threads } else { curve.between(threads) }
            }
        }
    }

    /// Returns how long that many threads preprocess the work and store the result, which one
    /// thread does at the rate `store`. Infinite where there is work and no thread.
    pub fn time(&self, work: &PreprocessWork, threads: f64, store: Rate) -> Seconds {
        let time = |(at, &bytes): (usize, &f64)| {
            let rate = self.rate(at, threads).min(store * threads).0;
            if bytes > 0.0 { bytes / rate } else { 0.0 }
        };
        Seconds(work.0.iter().enumerate().map(time).sum())
    }

    /// Returns a time that at most so many threads cannot undercut: each size at its best rate.
    pub fn least_time(&self, work: &PreprocessWork, most: u32) -> Seconds {
        let best = |at: usize| match self {
            Self::PerThread(beta) => *beta * f64::from(most),
            Self::Measured(portfolio) => portfolio.models[at].1.best_up_to(most),
        };
        Seconds(work.0.iter().enumerate().map(|(at, &bytes)| bytes / best(at).0).sum())
    }

    /// Returns the fewest of at most so many threads that preprocess the work in the shortest time.
    /// More only cost memory bandwidth (Lobster, section 3, observation 3).
    pub fn peak_threads(&self, work: &PreprocessWork, most: u32, store: Rate) -> u32 {
        if matches!(self, Self::PerThread(_)) {
            return most.max(1);
        }
        let time = |threads| self.time(work, f64::from(threads), store);
        // Fewer threads for the same time: rounding decides nothing.
        let shorter = |threads, best: u32| time(threads).0 < time(best).0 * (1.0 - 1e-12);
        (2..=most).fold(1, |best, threads| if shorter(threads, best) { threads } else { best })
    }

    /// Returns how long a pool of threads that do either takes to spend `loading` thread seconds on
    /// loading and to preprocess the work, where such work comes again and again: as many threads
    /// preprocess as do not load at that time.
    ///
    /// `pools` alike pools share what the node's threads preprocess.
    pub fn pool_time(
        &self,
        work: &PreprocessWork,
        loading: Seconds,
        (threads, pools): (f64, f64),
        store: Rate,
    ) -> Seconds {
        if let Self::PerThread(beta) = self {
            return Seconds((loading.0 + work.bytes() / beta.min(store).0) / threads);
        }
        let preprocess = |threads: f64| self.time(work, pools * threads, store).0 * pools;
        if loading.0 <= 0.0 || preprocess(threads) <= 0.0 {
            return Seconds(loading.0 / threads + preprocess(threads));
        }
        // With more threads that preprocess, the work takes less time, and loading needs more
        // threads for its part in that time: both fill the pool at one number.
        let (mut low, mut high) = (0.0, threads);
        for _ in 0..48 {
            let middle = f64::midpoint(low, high);
            if middle + loading.0 / preprocess(middle) > threads {
                high = middle;
            } else {
                low = middle;
            }
        }
        Seconds(preprocess(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FAST: Rate = Rate(1e15);

    fn curve(points: &[(u32, f64)]) -> Curve {
        Curve::new(points.iter().map(|&(count, rate)| (count, Rate(rate))).collect()).unwrap()
    }

    fn measured(models: &[(u64, &[(u32, f64)])]) -> PreprocessModel {
        let models = models.iter().map(|&(size, points)| (Bytes(size), curve(points)));
        PreprocessModel::Measured(Portfolio::new(models.collect()).unwrap())
    }

    fn work(model: &PreprocessModel, sizes: &[u64]) -> PreprocessWork {
        let mut work = PreprocessWork::default();
        for &size in sizes {
            model.add(&mut work, size);
        }
        work
    }

    fn close(a: Seconds, b: f64) {
        assert!((a.0 - b).abs() < 1e-9 * b, "{a:?} is not {b}");
    }

    #[test]
    fn throughput_rises_peaks_and_stays_flat() {
        let model = measured(&[(100, &[(1, 100.0), (6, 600.0), (8, 500.0)])]);
        let work = work(&model, &[100, 200]);
        let time = |threads| model.time(&work, threads, FAST);
        close(time(1.0), 3.0);
        close(time(3.0), 1.0);
        close(time(6.0), 0.5);
        close(time(7.0), 300.0 / 550.0);
        close(time(64.0), 0.6);
        // Half a thread is a thread half of the time.
        close(time(0.5), 6.0);
        assert_eq!(time(0.0), Seconds(f64::INFINITY));
        assert_eq!(model.peak_threads(&work, 64, FAST), 6);
        assert_eq!(model.peak_threads(&work, 4, FAST), 4);
        close(model.least_time(&work, 64), 0.5);
        close(model.least_time(&work, 3), 1.0);
    }

    #[test]
    fn a_sample_has_the_throughput_of_the_nearest_size() {
        let model = measured(&[(300, &[(1, 30.0)]), (100, &[(1, 10.0)])]);
        for (size, seconds) in [(1, 0.1), (100, 10.0), (200, 20.0), (201, 6.7), (600, 20.0)] {
            close(model.time(&work(&model, &[size]), 1.0, FAST), seconds);
        }
        close(model.time(&work(&model, &[100, 300]), 4.0, FAST), 20.0);
    }

    #[test]
    fn storing_the_result_limits_each_thread() {
        let beta = PreprocessModel::from(Rate(100.0));
        let done = work(&beta, &[600]);
        close(beta.time(&done, 3.0, FAST), 2.0);
        close(beta.time(&done, 3.0, Rate(50.0)), 4.0);
        close(beta.pool_time(&done, Seconds::ZERO, (3.0, 1.0), Rate(50.0)), 4.0);
        let model = measured(&[(1, &[(2, 200.0)])]);
        close(model.time(&work(&model, &[600]), 2.0, Rate(50.0)), 6.0);
        assert_eq!(beta.peak_threads(&done, 7, FAST), 7);
    }

    #[test]
    fn fit_takes_the_mean_of_measurements_at_a_count() {
        let ms = |time: f64| Seconds(time * 1e-3);
        let sample = Bytes(6_000);
        let fitted = Portfolio::fit(&[
            (sample, 6, ms(2.0)),
            (sample, 1, ms(12.0)),
            (sample, 6, ms(4.0)),
            (Bytes(1_000), 1, ms(1.0)),
        ])
        .unwrap();
        let model = PreprocessModel::Measured(fitted);
        close(model.time(&work(&model, &[6_000]), 1.0, FAST), 0.012);
        close(model.time(&work(&model, &[6_000]), 6.0, FAST), 0.003);
        close(model.time(&work(&model, &[500]), 9.0, FAST), 0.0005);
    }

    #[test]
    fn refuses_broken_measurements() {
        let flat = || Curve::flat(Rate(1.0));
        assert_eq!(Portfolio::new(vec![]), Err(PortfolioError::Empty));
        assert_eq!(Portfolio::fit(&[]), Err(PortfolioError::Empty));
        let zero = Portfolio::new(vec![(Bytes(0), flat())]);
        assert_eq!(zero, Err(PortfolioError::ZeroSize));
        let twice = Portfolio::new(vec![(Bytes(7), flat()), (Bytes(7), flat())]);
        assert_eq!(twice, Err(PortfolioError::Duplicate(Bytes(7))));
        for (threads, time) in [(0, 1.0), (1, 0.0), (1, -1.0), (1, f64::NAN)] {
            let bad = Portfolio::fit(&[(Bytes(7), threads, Seconds(time))]);
            assert!(matches!(bad, Err(PortfolioError::BadCurve { size: Bytes(7), .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_pool_preprocesses_with_the_threads_that_do_not_load() {
        // Each thread at 100 up to 4 threads, then flat.
        let model = measured(&[(1, &[(1, 100.0), (4, 400.0)])]);
        let done = work(&model, &[400]);
        // Of 8 threads 4 preprocess for a second, the others load for 4 thread seconds.
        close(model.pool_time(&done, Seconds(4.0), (8.0, 1.0), FAST), 1.0);
        // Less to load: more than 4 threads could preprocess, to no avail.
        close(model.pool_time(&done, Seconds(1.0), (8.0, 1.0), FAST), 1.0);
        // More to load: 2 preprocess for two seconds.
        close(model.pool_time(&done, Seconds(12.0), (8.0, 1.0), FAST), 2.0);
        // Two pools of four threads share the node's peak.
        close(model.pool_time(&done, Seconds(4.0), (4.0, 2.0), FAST), 2.0);
        close(model.pool_time(&done, Seconds::ZERO, (8.0, 1.0), FAST), 1.0);
        close(model.pool_time(&PreprocessWork::default(), Seconds(4.0), (8.0, 1.0), FAST), 0.5);
    }

    proptest! {
        #[test]
        fn work_takes_what_its_samples_take_one_after_another(
            tables in prop::collection::btree_map(
                1u64..500,
                prop::collection::btree_map(1u32..20, 1.0f64..1e4, 1..5),
                1..5,
            ),
            sizes in prop::collection::vec(1u64..600, 0..40),
            threads in 1u32..24,
            part in 0.0f64..1.0,
            store in 1.0f64..1e4,
        ) {
            let models = tables.iter().map(|(&size, points)| {
                let points: Vec<_> = points.iter().map(|(&n, &rate)| (n, Rate(rate))).collect();
                (Bytes(size), Curve::new(points).unwrap())
            });
            let model = PreprocessModel::Measured(Portfolio::new(models.collect()).unwrap());
            // Every table is looked through, and every line between two counts drawn anew.
            let rate = |size: u64, threads: f64| {
                let table = tables.iter().min_by_key(|(of, _)| (of.abs_diff(size), **of)).unwrap().1;
                let points: Vec<(f64, f64)> =
                    table.iter().map(|(&count, &rate)| (f64::from(count), rate)).collect();
                let below = points.iter().rev().find(|point| point.0 <= threads);
                let above = points.iter().find(|point| point.0 > threads);
                match (below, above) {
                    (Some(a), Some(b)) => a.1 + (b.1 - a.1) * (threads - a.0) / (b.0 - a.0),
                    (Some(only), None) | (None, Some(only)) => only.1,
                    (None, None) => unreachable!(),
                }
            };
            let threads = f64::from(threads) + part;
            let naive: f64 = sizes
                .iter()
                .map(|&size| size as f64 / rate(size, threads).min(store * threads))
                .sum();
            let time = model.time(&work(&model, &sizes), threads, Rate(store)).0;
            prop_assert!((time - naive).abs() <= 1e-9 * naive, "{} is not {}", time, naive);
        }

        #[test]
        fn a_pool_is_never_faster_than_its_parts_and_as_fast_as_it_can_be(
            points in prop::collection::btree_map(1u32..12, 1.0f64..100.0, 1..5),
            bytes in 1u64..1000,
            loading in 0.01f64..50.0,
            threads in 1u32..16,
            pools in 1u32..4,
        ) {
            // Rates that never fall: a pool has one steady state.
            let mut rate = 0.0;
            let points: Vec<_> = points
                .iter()
                .map(|(&count, &more)| { rate += more; (count, Rate(rate)) })
                .collect();
            let curve = Curve::new(points).unwrap();
            let portfolio = Portfolio::new(vec![(Bytes(1), curve)]).unwrap();
            let model = PreprocessModel::Measured(portfolio);
            let (threads, pools) = (f64::from(threads), f64::from(pools));
            let done = work(&model, &[bytes]);
            let time = model.pool_time(&done, Seconds(loading), (threads, pools), FAST).0;
            prop_assert!(time >= model.least_time(&done, 64).0 * pools * (1.0 - 1e-9));
            // In that time the loading threads and the preprocessing ones are the whole pool.
            let preprocessing = threads - loading / time;
            prop_assert!(preprocessing >= 0.0);
            let alone = model.time(&done, pools * preprocessing, FAST).0 * pools;
            prop_assert!((alone - time).abs() <= 1e-6 * time, "{} is not {}", alone, time);
            prop_assert!(time >= model.time(&done, pools * threads, FAST).0 * pools * (1.0 - 1e-9));
            prop_assert!(time >= loading / threads);
        }
    }
}

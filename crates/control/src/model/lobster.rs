//! Lobster's model (seed 002, sections 4.1–4.4): how long co-located GPUs wait for
//! their mini-batches, and how a node's CPU threads are shared so that none waits
//! much longer than the others.
//!
//! A node has a number of threads. First some of them are set aside for
//! preprocessing, as few as reach its peak ([`Portfolio`],
//! [`preprocessing_threads`]); the rest load. Every GPU has its own request queue,
//! and the loading threads are dealt to the queues so that each GPU's loading plus
//! preprocessing ends when its training step does ([`assign_threads`], the paper's
//! Algorithm 1).
//!
//! Algorithm 1 as printed does not do what its text says: line 18 keeps the larger
//! time difference, lines 12–15 give more threads to a GPU that is early and fewer
//! to one that is late, lines 13 and 15 never move from the initial value, and
//! nothing keeps the sum over GPUs within the node's threads. Here each does what
//! the text wants.
#![allow(clippy::doc_markdown, reason = "symbols and names as the papers print them")]

use super::curve::{Curve, CurveError};
use super::nopfs;
use super::system::{Readers, Sharing, System};
use super::units::{Bytes, Rate, Seconds};

/// T_l(α), T_r(β), T_PFS(γ): what *one* I/O thread reads while that many of the GPU's
/// threads do (section 4.3).
#[derive(Clone, Debug, PartialEq)]
pub struct ReadRates {
    pub local: Curve,
    pub remote: Curve,
    pub source: Curve,
}

impl ReadRates {
    /// The same quantities from a [`System`]: the device's aggregate rate at n threads,
    /// divided by n. `readers` is γ, counted as the system's `readers` setting says.
    pub fn from_system(system: &System, tier: usize, readers: u32) -> Result<Self, CurveError> {
        let device = |n| system.tiers[tier].read.at(n);
        // Where γ counts nodes, this is of one of p_0 threads that share the node's part.
        let thread = nopfs::source_rate(system, readers);
        let source = |n: u32| match (system.source.sharing, system.source.readers) {
            (Sharing::PerThread, _) | (Sharing::Aggregate, Readers::Threads) => thread,
            (Sharing::Aggregate, Readers::Nodes) => {
                thread * f64::from(system.staging_threads()) / f64::from(n.max(1))
            }
        };
        let most = system.staging_threads().max(1);
        let curve =
            |rate: &dyn Fn(u32) -> Rate| Curve::new((1..=most).map(|n| (n, rate(n))).collect());
        Ok(Self {
            local: curve(&|n| device(n) / f64::from(n))?,
            remote: curve(&|n| device(n).min(system.network) / f64::from(n))?,
            source: curve(&source)?,
        })
    }
}

/// The bytes of one GPU's mini-batch by where they are: Σ s_k over B_HL, B_HR, B_M.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchBytes {
    pub local: Bytes,
    pub remote: Bytes,
    pub source: Bytes,
}

/// α, β, γ of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadingThreads {
    pub local: u32,
    pub remote: u32,
    pub source: u32,
}

impl LoadingThreads {
    /// All of a GPU's threads on each part in turn. Equation 1 adds the three times,
    /// so the parts follow one another, and Algorithm 1 deals one number a GPU.
    pub fn in_turn(threads: u32) -> Self {
        Self { local: threads, remote: threads, source: threads }
    }
}

/// T_L (eq. 1): how long a GPU's mini-batch takes to load. Infinite when there is
/// something to load and no thread to do it.
pub fn loading_time(rates: &ReadRates, batch: BatchBytes, threads: LoadingThreads) -> Seconds {
    let part = |bytes: Bytes, curve: &Curve, threads: u32| match (bytes, threads) {
        (Bytes::ZERO, _) => Seconds::ZERO,
        (_, 0) => Seconds(f64::INFINITY),
        (bytes, threads) => bytes / (curve.at(threads) * f64::from(threads)),
    };
    part(batch.local, &rates.local, threads.local)
        + part(batch.remote, &rates.remote, threads.remote)
        + part(batch.source, &rates.source, threads.source)
}

/// T_L + T_P − T_train: positive when the data is late. Its absolute value is what
/// eq. 2 minimises.
pub fn time_difference(load: Seconds, preprocess: Seconds, train: Seconds) -> Seconds {
    load + preprocess - train
}

/// T_max − T_min over a node's GPUs: what eq. 3 minimises. Zero for none.
pub fn spread(times: impl IntoIterator<Item = Seconds>) -> Seconds {
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for time in times {
        least = least.min(time.0);
        most = most.max(time.0);
    }
    // Two infinite waits are equally long.
    if most > least { Seconds(most - least) } else { Seconds::ZERO }
}

/// The time to preprocess one sample of a certain size, by the number of threads
/// at it: linear between measured counts, constant outside.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadModel {
    /// Strictly increasing counts; never empty.
    points: Vec<(u32, Seconds)>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortfolioError {
    #[error("a preprocessing model needs at least one measurement")]
    Empty,
    #[error("a preprocessing model has a measurement at zero threads")]
    ZeroThreads,
    #[error("the preprocessing time at {threads} threads must be positive and finite")]
    BadTime { threads: u32 },
    #[error("the portfolio has two models for samples of {0}")]
    Duplicate(Bytes),
}

impl ThreadModel {
    /// Fits the model: with a knot at each measured count, least squares is the mean
    /// of the measurements there.
    pub fn fit(measurements: &[(u32, Seconds)]) -> Result<Self, PortfolioError> {
        let mut sorted = measurements.to_vec();
        sorted.sort_by_key(|&(threads, _)| threads);
        let mut points: Vec<(u32, Seconds)> = Vec::new();
        for group in sorted.chunk_by(|a, b| a.0 == b.0) {
            let threads = group[0].0;
            if threads == 0 {
                return Err(PortfolioError::ZeroThreads);
            }
            let sum: Seconds = group.iter().map(|&(_, time)| time).sum();
            let mean = sum / group.len() as f64;
            if mean.0 <= 0.0 || !mean.0.is_finite() {
                return Err(PortfolioError::BadTime { threads });
            }
            points.push((threads, mean));
        }
        if points.is_empty() { Err(PortfolioError::Empty) } else { Ok(Self { points }) }
    }

    pub fn at(&self, threads: u32) -> Seconds {
        let after = self.points.partition_point(|&(count, _)| count < threads);
        match (after.checked_sub(1).map(|i| self.points[i]), self.points.get(after)) {
            (None, Some(&(_, time))) | (Some((_, time)), None) => time,
            (Some((low, low_time)), Some(&(high, high_time))) => {
                let share = f64::from(threads - low) / f64::from(high - low);
                low_time * (1.0 - share) + high_time * share
            }
            (None, None) => Seconds::ZERO,
        }
    }

    /// The fewest threads that reach the shortest time. More only cost memory
    /// bandwidth (section 3, observation 3).
    pub fn peak_threads(&self) -> u32 {
        self.points
            .iter()
            .fold(self.points[0], |best, &point| if point.1 < best.1 { point } else { best })
            .0
    }
}

/// One [`ThreadModel`] per sample size; a size without one takes the nearest.
#[derive(Clone, Debug, PartialEq)]
pub struct Portfolio {
    /// Strictly increasing sizes; never empty.
    models: Vec<(Bytes, ThreadModel)>,
}

impl Portfolio {
    pub fn new(mut models: Vec<(Bytes, ThreadModel)>) -> Result<Self, PortfolioError> {
        models.sort_by_key(|&(size, _)| size);
        if models.is_empty() {
            return Err(PortfolioError::Empty);
        }
        match models.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(PortfolioError::Duplicate(pair[0].0)),
            None => Ok(Self { models }),
        }
    }

    /// The model of the nearest size, the smaller of two equally near.
    pub fn nearest(&self, size: Bytes) -> &ThreadModel {
        let after = self.models.partition_point(|&(of, _)| of < size);
        let index = match (after.checked_sub(1), self.models.get(after)) {
            (None, _) => 0,
            (Some(below), None) => below,
            (Some(below), Some(&(above, _))) => {
                let down = size.0 - self.models[below].0.0;
                if down <= above.0 - size.0 { below } else { after }
            }
        };
        &self.models[index].1
    }

    /// T_P of a mini-batch: its samples one after another, each with all the threads.
    pub fn batch_time(&self, sizes: impl IntoIterator<Item = Bytes>, threads: u32) -> Seconds {
        if threads == 0 {
            return Seconds(f64::INFINITY);
        }
        sizes.into_iter().map(|size| self.nearest(size).at(threads)).sum()
    }
}

/// Threads in proportion to the pending requests (sections 4.2 and 4.4), summing to
/// `budget`; a GPU with requests gets at least one while threads last.
pub fn proportional_threads(pending: &[u32], budget: u32) -> Vec<u32> {
    let total: u64 = pending.iter().map(|&n| u64::from(n)).sum();
    let mut threads = vec![0u32; pending.len()];
    if total == 0 {
        return threads;
    }
    let mut left = budget;
    let busy = pending.iter().filter(|&&n| n > 0).count() as u32;
    let floor = u32::from(busy <= budget);
    for (thread, &requests) in threads.iter_mut().zip(pending) {
        let share = (u64::from(budget) * u64::from(requests) / total) as u32;
        let minimum = if requests > 0 { floor } else { 0 };
        *thread = share.max(minimum).min(left);
        left -= *thread;
    }
    // The minimum of one may have eaten what later GPUs need for theirs.
    for i in 0..threads.len() {
        if pending[i] > 0 && threads[i] == 0 && floor == 1 && left == 0 {
            let richest = (0..threads.len()).max_by_key(|&j| (threads[j], usize::MAX - j));
            if let Some(j) = richest.filter(|&j| threads[j] > 1) {
                threads[j] -= 1;
                threads[i] = 1;
            }
        }
    }
    // What rounding left over goes where most requests wait for a thread.
    while left > 0 {
        let load = |i: usize| f64::from(pending[i]) / f64::from(threads[i] + 1);
        let Some(i) = (0..threads.len()).max_by(|&a, &b| load(a).total_cmp(&load(b))) else {
            break;
        };
        threads[i] += 1;
        left -= 1;
    }
    threads
}

/// Algorithm 1: loading threads for each GPU of a node.
///
/// `pending` is the length of each GPU's request queue, `budget` the node's loading
/// threads (the paper's T_L in its second meaning), `tau` the threshold below which
/// a GPU is left as it is, and `difference(gpu, threads)` the signed
/// [`time_difference`] of that GPU's next mini-batch.
///
/// Every GPU that is off by τ or more is searched for the number of threads that
/// brings it nearest to its training time. If they want more than there is, threads
/// are taken where it hurts least; if they leave some over, those go to whoever is
/// late. The sum never exceeds `budget`, and the slowest GPU is never slower than
/// under the initial, proportional allocation.
pub fn assign_threads(
    pending: &[u32],
    budget: u32,
    tau: Seconds,
    difference: impl Fn(usize, u32) -> Seconds,
) -> Vec<u32> {
    let initial = proportional_threads(pending, budget);
    let mut threads: Vec<u32> = initial
        .iter()
        .enumerate()
        .map(|(gpu, &first)| nearest_to_training(first, budget, tau, |n| difference(gpu, n)))
        .collect();

    let after = |gpu: usize, threads: u32| difference(gpu, threads).0;
    while threads.iter().sum::<u32>() > budget {
        let Some(gpu) = (0..threads.len())
            .filter(|&gpu| threads[gpu] > 0)
            .min_by(|&a, &b| after(a, threads[a] - 1).total_cmp(&after(b, threads[b] - 1)))
        else {
            break;
        };
        threads[gpu] -= 1;
    }
    while threads.iter().sum::<u32>() < budget {
        let latest = (0..threads.len())
            .max_by(|&a, &b| after(a, threads[a]).total_cmp(&after(b, threads[b])));
        match latest {
            Some(gpu)
                if after(gpu, threads[gpu]) > 0.0
                    && after(gpu, threads[gpu] + 1) < after(gpu, threads[gpu]) =>
            {
                threads[gpu] += 1;
            }
            _ => break,
        }
    }

    let cost = |threads: &[u32]| node_cost(threads, &difference);
    if cost(&threads) <= cost(&initial) { threads } else { initial }
}

/// What an allocation is judged by: how late the latest GPU's data is, then how far
/// apart the GPUs are (eq. 3).
fn node_cost(threads: &[u32], difference: impl Fn(usize, u32) -> Seconds) -> (Seconds, Seconds) {
    let times = || threads.iter().enumerate().map(|(gpu, &n)| difference(gpu, n));
    let late = times().fold(Seconds::ZERO, Seconds::max);
    (late, spread(times()))
}

/// Lines 3–23 of Algorithm 1 for one GPU: binary search for the thread count whose
/// time difference is nearest to zero, the best seen kept.
fn nearest_to_training(
    first: u32,
    most: u32,
    tau: Seconds,
    difference: impl Fn(u32) -> Seconds,
) -> u32 {
    let (mut low, mut high) = (0, most);
    let mut current = first;
    let mut gap = difference(first);
    let mut best = (gap.0.abs(), first);
    // The paper's W: at most as many looks as there are threads.
    for _ in 0..most {
        if gap.0.abs() < tau.0 {
            break;
        }
        if gap.0 > 0.0 {
            low = current;
        } else {
            high = current;
        }
        // Late at `low`, early at `high`: a single step apart, both are seen.
        let next = if low + 1 >= high && current != high { high } else { low.midpoint(high) };
        if next == current {
            break;
        }
        current = next;
        gap = difference(current);
        if gap.0.abs() < best.0 {
            best = (gap.0.abs(), current);
        }
    }
    best.1
}

/// How a node's threads are split between the two stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageThreads {
    pub preprocessing: u32,
    pub loading: u32,
}

/// The two steps of section 4.1. Step 1: preprocessing gets the threads that reach
/// its peak, loading the rest. Step 2: while loading plus preprocessing take longer
/// than training, and preprocessing would not become the bottleneck by it, one
/// thread moves from preprocessing to loading.
///
/// `preprocess(threads)` and `load(threads)` are the stage times of the slowest GPU.
/// Each stage keeps at least one thread when there are two.
pub fn preprocessing_threads(
    total: u32,
    peak: u32,
    train: Seconds,
    preprocess: impl Fn(u32) -> Seconds,
    load: impl Fn(u32) -> Seconds,
) -> StageThreads {
    let mut threads = peak.clamp(1, total.saturating_sub(1).max(1)).min(total);
    let both = |n: u32| load(total - n) + preprocess(n);
    while threads > 1 && both(threads) > train {
        let fewer = threads - 1;
        let others = load(total - fewer).max(train);
        // A thread that does not shorten the whole stays where it is.
        if preprocess(fewer) > others || both(fewer) >= both(threads) {
            break;
        }
        threads = fewer;
    }
    StageThreads { preprocessing: threads, loading: total - threads }
}

#[cfg(test)]
mod tests {
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

    fn model(points: &[(u32, f64)]) -> ThreadModel {
        let points: Vec<_> = points.iter().map(|&(n, ms)| (n, Seconds(ms * 1e-3))).collect();
        ThreadModel::fit(&points).unwrap()
    }

    #[test]
    fn thread_model_is_piecewise_linear_and_knows_its_peak() {
        let model = model(&[(1, 12.0), (6, 2.0), (6, 4.0), (12, 4.0), (24, 3.0)]);
        assert_eq!(model.at(1), Seconds(0.012));
        assert!((model.at(6).0 - 0.003).abs() < 1e-15);
        assert!((model.at(9).0 - 0.0035).abs() < 1e-15);
        assert_eq!(model.at(0), model.at(1));
        assert_eq!(model.at(99), model.at(24));
        assert_eq!(model.peak_threads(), 6);
    }

    #[test]
    fn portfolio_takes_the_nearest_size() {
        let portfolio =
            Portfolio::new(vec![(mb(3), model(&[(1, 30.0)])), (mb(1), model(&[(1, 10.0)]))])
                .unwrap();
        let time = |size| portfolio.batch_time([size], 1).0;
        assert_eq!(time(Bytes(1)), 0.01);
        assert_eq!(time(mb(2)), 0.01);
        assert_eq!(time(Bytes(2_000_001)), 0.03);
        assert_eq!(time(mb(99)), 0.03);
        assert_eq!(portfolio.batch_time([mb(1), mb(3)], 0), Seconds(f64::INFINITY));
    }

    #[test]
    fn refuses_broken_models() {
        assert_eq!(ThreadModel::fit(&[]), Err(PortfolioError::Empty));
        assert_eq!(ThreadModel::fit(&[(0, Seconds(1.0))]), Err(PortfolioError::ZeroThreads));
        let bad = ThreadModel::fit(&[(2, Seconds(-1.0))]);
        assert_eq!(bad, Err(PortfolioError::BadTime { threads: 2 }));
        let twice = Portfolio::new(vec![(mb(1), model(&[(1, 1.0)])), (mb(1), model(&[(1, 2.0)]))]);
        assert_eq!(twice, Err(PortfolioError::Duplicate(mb(1))));
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
    fn preprocessing_gives_threads_up_when_loading_lags() {
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
}

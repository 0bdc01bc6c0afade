//! How a node's threads are split between stages and GPUs.
#![allow(clippy::doc_markdown, reason = "symbols and names as the papers print them")]

use belady_base::units::Seconds;

use super::spread;

/// Assigns threads in proportion to the pending requests (sections 4.2 and 4.4). They sum to
/// `budget`; a GPU with requests gets at least one if there are enough.
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
    // The minimum of one may have used the threads that later GPUs need for theirs.
    for i in 0..threads.len() {
        if pending[i] > 0 && threads[i] == 0 && floor == 1 && left == 0 {
            let richest = (0..threads.len()).max_by_key(|&j| (threads[j], usize::MAX - j));
            if let Some(j) = richest.filter(|&j| threads[j] > 1) {
                threads[j] -= 1;
                threads[i] = 1;
            }
        }
    }
    // What rounding left over goes to the longest queues per thread.
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

/// Assigns loading threads to each GPU of a node (Algorithm 1).
///
/// `pending` is the length of each GPU's request queue, `budget` the node's loading
/// threads (the paper's T_L in its second meaning), `tau` the threshold below which
/// a GPU is left as it is, and `difference(gpu, threads)` the signed
/// [`time_difference`](super::time_difference) of that GPU's next mini-batch.
///
/// Every GPU that is off by τ or more is searched for the number of threads that brings it nearest
/// to its training time. If they need more than `budget`, threads are taken where it costs least;
/// if they leave some over, late GPUs get them. The sum never exceeds `budget`, and the slowest GPU
/// is never slower than under the initial, proportional allocation.
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

/// Returns the cost of an allocation: how late the latest GPU's data is, then how far apart the
/// GPUs are (eq. 3).
pub(super) fn node_cost(
    threads: &[u32],
    difference: impl Fn(usize, u32) -> Seconds,
) -> (Seconds, Seconds) {
    let times = || threads.iter().enumerate().map(|(gpu, &n)| difference(gpu, n));
    let late = times().fold(Seconds::ZERO, Seconds::max);
    (late, spread(times()))
}

/// Searches, for one GPU, the thread count whose time difference is nearest to zero (lines 3–23 of
/// Algorithm 1): a binary search that keeps the best seen.
pub(super) fn nearest_to_training(
    first: u32,
    most: u32,
    tau: Seconds,
    difference: impl Fn(u32) -> Seconds,
) -> u32 {
    let (mut low, mut high) = (0, most);
    let mut current = first;
    let mut gap = difference(first);
    let mut best = (gap.0.abs(), first);
    // The paper's W: at most as many steps as there are threads.
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
    /// Threads that preprocess.
    pub preprocessing: u32,
    /// Threads that load.
    pub loading: u32,
}

/// Splits a node's threads between the stages, in the two steps of section 4.1. Step 1:
/// preprocessing gets the threads that reach its peak, loading the rest. Step 2: while loading plus
/// preprocessing take longer than training, and preprocessing would not become the bottleneck, one
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
        // A move that does not shorten the sum is not made.
        if preprocess(fewer) > others || both(fewer) >= both(threads) {
            break;
        }
        threads = fewer;
    }
    StageThreads { preprocessing: threads, loading: total - threads }
}

//! How a node's threads are divided between duties and ranks, by a measurement.

use belady_base::units::Seconds;

use super::NodeMeasurement;

/// Times that differ by less count as equal: measurements waver by that.
const TOLERANCE: f64 = 1.03;
/// Transforms and loads are to take at most this part of the training step, so that a batch that
/// was late is caught up.
const OF_TRAINING: f64 = 0.8;

/// The threads of each duty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadSplit {
    /// Threads that load, by local rank.
    pub loading: Vec<u32>,
    /// Threads that transform for any rank.
    pub transforming: u32,
}

/// Divides the threads of a node: as few as possible transform, such that a step takes the least
/// time that any division reaches, or clearly less than the training step; the others load, most of
/// them for the rank that has most left to load.
///
/// Loads and transforms overlap, so a step takes as long as the slower duty. `last` is the number
/// that transforms now: it stays unless another division is better by more than measurements
/// waver, or is an attempt with more threads than processors. Returns `None` where there is nothing
/// to divide: no transforms, nothing measured, or too few threads to load for each rank and
/// transform.
pub fn split_threads(now: &NodeMeasurement, last: Option<u32>) -> Option<ThreadSplit> {
    let ranks = now.ranks.len() as u32;
    let most = now.threads.checked_sub(ranks).filter(|&most| most > 0 && ranks > 0)?;
    let most = most.min(now.model.most_worth_trying());
    let least = now.model.least_worth_trying().min(most);
    let (samples, bytes) = now.of_one_step();
    now.model.transform_time(samples, 1)?;
    let time = |transforming: u32| {
        let transform = now.model.transform_time(samples, transforming).unwrap_or(Seconds::ZERO);
        let loading = now.threads - transforming;
        transform.max(now.model.load_time(bytes, loading, f64::from(loading)))
    };
    let best =
        (least..=most).map(|transforming| time(transforming).0).fold(f64::INFINITY, f64::min);
    let target = (Seconds(best) * TOLERANCE).max(now.model.training_time() * OF_TRAINING);
    let fewest = (least..=most).find(|&transforming| time(transforming) <= target).unwrap_or(most);
    let stays = |&last: &u32| {
        last == fewest + 1 && last <= most.min(now.model.cores) && time(last) <= target
    };
    let transforming = last.filter(stays).unwrap_or(fewest);
    let loading = now.threads - transforming;
    let left: Vec<f64> = now
        .ranks
        .iter()
        .map(|rank| now.model.load_time(rank.left.map(|bytes| bytes as f64), loading, 1.0).0)
        .collect();
    Some(ThreadSplit { loading: level_threads(&left, loading), transforming })
}

/// Divides threads among ranks such that the rank with the most work for each of its threads has as
/// little as possible. Each rank gets one, if there are enough. Ranks with the same work get the
/// same number, as far as it divides.
pub fn level_threads(work: &[f64], threads: u32) -> Vec<u32> {
    let mut given: Vec<u32> = (0..work.len() as u32).map(|rank| (rank < threads).into()).collect();
    let each = |given: &[u32], rank: usize| work[rank] / f64::from(given[rank].max(1));
    for _ in work.len() as u32..threads {
        let latest = (0..work.len()).max_by(|&a, &b| {
            let lateness = each(&given, a).total_cmp(&each(&given, b));
            lateness.then(given[b].cmp(&given[a])).then(b.cmp(&a))
        });
        if let Some(latest) = latest {
            given[latest] += 1;
        }
    }
    given
}

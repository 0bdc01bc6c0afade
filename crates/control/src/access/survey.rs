//! Statistics of a run from a subset of its samples.
//!
//! The index-free permutation tells in O(1) which rank reads sample k in epoch e, and when. So a
//! survey follows each sample of a subset through the whole run, in memory that depends on neither
//! F nor the size of the subset. All samples of a random order are alike, so the subset is evenly
//! spaced instead of random.

use belady_base::splitmix::SplitMix64;
use rayon::prelude::*;

use super::reuse::ReuseHistogram;
use crate::model::frequency::{AccessLaw, FrequencyCut};
use crate::sampler::{AccessStream, Permutation, SampleId};

/// Bins of reuse distances.
const BINS_AN_EPOCH: u32 = 20;

/// The statistics of a run. A worker is a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Survey {
    /// Samples followed.
    pub drawn: u32,
    /// Of all (sample, worker) pairs: how many have 0, 1, 2, ... accesses.
    pub frequency: Vec<u64>,
    /// Distances between two uses by the same worker, in twentieths of an epoch.
    pub reuse_by_worker: ReuseHistogram,
    /// Distances between two uses by any worker.
    pub reuse_by_any: ReuseHistogram,
    /// Samples that no worker holds when each holds its most frequent samples, up to its capacity.
    pub uncovered: Uncovered,
    /// The share of workers that read a sample at least `threshold` times: the mean over samples.
    pub above: f64,
    /// The standard error of `above`.
    pub above_error: f64,
}

/// Samples that no worker holds, by how a worker chooses among samples that it reads equally often.
/// The choice matters, since most samples near the cut are read equally often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uncovered {
    /// Lowest index first, as a stable sort by frequency does: all workers prefer the same ones.
    pub ties_by_index: u32,
    /// At random, each worker for itself.
    pub ties_at_random: u32,
}

/// The parameters of a survey.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Question {
    /// E.
    pub epochs: u32,
    /// At most this many samples are followed.
    pub draw: u32,
    /// Count workers that read a sample at least this often.
    pub threshold: u32,
    /// The share of the dataset that one worker can hold.
    pub capacity: f64,
}

/// Follows samples of a stream through the run; `None` unless its order is
/// [`crate::sampler::Order::Permutation`].
pub fn survey(stream: &AccessStream, question: Question) -> Option<Survey> {
    let permutations: Vec<Permutation> =
        (0..question.epochs).map(|epoch| stream.permutation(epoch)).collect::<Option<_>>()?;
    let config = stream.config();
    let drawn = question.draw.min(config.samples);
    let follower = SampleFollower {
        stream,
        permutations: &permutations,
        threshold: question.threshold,
        cut: AccessLaw::new(question.epochs, config.ranks).cut(question.capacity),
    };
    let samples = u64::from(config.samples);
    let seen = (0..u64::from(drawn))
        .into_par_iter()
        .map(|i| (i * samples / u64::from(drawn)) as SampleId)
        .fold(
            || FollowedUses::new(stream),
            |mut seen, sample| {
                follower.follow(sample, &mut seen);
                seen
            },
        )
        .reduce(|| FollowedUses::new(stream), FollowedUses::merge);
    Some(seen.finish(drawn, config.ranks))
}

struct SampleFollower<'a> {
    stream: &'a AccessStream,
    permutations: &'a [Permutation],
    threshold: u32,
    cut: FrequencyCut,
}

/// One thread's tallies and its scratch of one entry a worker.
struct FollowedUses {
    frequency: Vec<u64>,
    by_worker: ReuseHistogram,
    by_any: ReuseHistogram,
    uncovered: Uncovered,
    above: u64,
    above_squares: u64,
    /// Of the sample being followed: accesses and last step by worker.
    workers: Vec<(u32, u64)>,
    touched: Vec<u32>,
}

impl FollowedUses {
    fn new(stream: &AccessStream) -> Self {
        let bin = (stream.iterations() / BINS_AN_EPOCH).max(1);
        Self {
            frequency: Vec::new(),
            by_worker: ReuseHistogram::new(bin),
            by_any: ReuseHistogram::new(bin),
            uncovered: Uncovered::default(),
            above: 0,
            above_squares: 0,
            workers: vec![(0, 0); stream.config().ranks as usize],
            touched: Vec::new(),
        }
    }

    fn merge(mut self, other: Self) -> Self {
        if self.frequency.len() < other.frequency.len() {
            self.frequency.resize(other.frequency.len(), 0);
        }
        for (mine, theirs) in self.frequency.iter_mut().zip(&other.frequency) {
            *mine += theirs;
        }
        self.by_worker = self.by_worker.merge(other.by_worker);
        self.by_any = self.by_any.merge(other.by_any);
        self.uncovered.ties_by_index += other.uncovered.ties_by_index;
        self.uncovered.ties_at_random += other.uncovered.ties_at_random;
        self.above += other.above;
        self.above_squares += other.above_squares;
        self
    }

    fn finish(mut self, drawn: u32, workers: u32) -> Survey {
        let pairs = u64::from(drawn) * u64::from(workers);
        let read: u64 = self.frequency.iter().sum();
        if self.frequency.is_empty() {
            self.frequency.push(0);
        }
        self.frequency[0] = pairs - read;
        let draws = f64::from(drawn);
        let mean = self.above as f64 / draws;
        let variance = (self.above_squares as f64 / draws - mean * mean).max(0.0);
        Survey {
            drawn,
            frequency: self.frequency,
            reuse_by_worker: self.by_worker,
            reuse_by_any: self.by_any,
            uncovered: self.uncovered,
            above: mean / f64::from(workers),
            above_error: (variance / draws).sqrt() / f64::from(workers),
        }
    }
}

impl SampleFollower<'_> {
    fn follow(&self, sample: SampleId, seen: &mut FollowedUses) {
        let iterations = u64::from(self.stream.iterations());
        let mut before = None;
        for (epoch, permutation) in (0u64..).zip(self.permutations) {
            let position = permutation.inverse(u64::from(sample));
            let Some(slot) = self.stream.layout().slot(position) else { continue };
            let now = epoch * iterations + u64::from(slot.iteration);
            if let Some(before) = before.replace(now) {
                seen.by_any.add(now - before);
            }
            let (count, last) = &mut seen.workers[slot.rank as usize];
            if *count == 0 {
                seen.touched.push(slot.rank);
            } else {
                seen.by_worker.add(now - *last);
            }
            *count += 1;
            *last = now;
        }
        seen.by_any.add_last_uses(u64::from(before.is_some()));
        seen.by_worker.add_last_uses(seen.touched.len() as u64);
        self.tally(sample, seen);
    }

    fn tally(&self, sample: SampleId, seen: &mut FollowedUses) {
        let (mut by_index, mut at_random) = (false, false);
        let mut above = 0;
        while let Some(worker) = seen.touched.pop() {
            let count = std::mem::take(&mut seen.workers[worker as usize]).0;
            let at = count as usize;
            if seen.frequency.len() <= at {
                seen.frequency.resize(at + 1, 0);
            }
            seen.frequency[at] += 1;
            above += u64::from(count >= self.threshold);
            if count == self.cut.above {
                by_index |= self.wins_by_index(sample);
                at_random |= self.wins_at_random(sample, worker);
            } else {
                by_index |= count > self.cut.above;
                at_random |= count > self.cut.above;
            }
        }
        seen.above += above;
        seen.above_squares += above * above;
        seen.uncovered.ties_by_index += u32::from(!by_index);
        seen.uncovered.ties_at_random += u32::from(!at_random);
    }

    /// Of samples at the cut, spread evenly over the index, the first `share_at` fit.
    fn wins_by_index(&self, sample: SampleId) -> bool {
        f64::from(sample) < self.cut.share_at * f64::from(self.stream.config().samples)
    }

    fn wins_at_random(&self, sample: SampleId, worker: u32) -> bool {
        let seed = self.stream.config().seed;
        let drawn = hash(hash(seed ^ u64::from(worker)) ^ u64::from(sample));
        ((drawn >> 11) as f64) < self.cut.share_at * (1u64 << 53) as f64
    }
}

/// Returns the first number of the generator that starts at `state`.
fn hash(state: u64) -> u64 {
    SplitMix64::new(state).draw()
}

#[cfg(test)]
mod tests {
    use super::super::{Scope, frequencies, reuse_distances};
    use super::*;
    use crate::sampler::{Order, Scheme, StreamConfig};

    fn stream(samples: u32, ranks: u32) -> AccessStream {
        AccessStream::new(StreamConfig {
            samples,
            ranks,
            batch: 8 * ranks,
            order: Order::Permutation,
            scheme: Scheme::Uniform,
            seed: 42,
            sampler_drop_last: false,
            drop_last: false,
        })
        .unwrap()
    }

    #[test]
    fn following_every_sample_is_counting_everything() {
        let stream = stream(3200, 4);
        let question = Question { epochs: 12, draw: u32::MAX, threshold: 5, capacity: 0.25 };
        let survey = survey(&stream, question).unwrap();
        assert_eq!(survey.drawn, 3200);
        let table = frequencies(&stream, 0..12, 1, 0..4);
        let counts: Vec<u32> = (0..4).flat_map(|node| table.of_node(node)).collect();
        let above = counts.iter().filter(|&&count| count >= 5).count();
        assert!((survey.above - above as f64 / 12_800.0).abs() < 1e-12);
        for (count, &pairs) in survey.frequency.iter().enumerate() {
            let naive = counts.iter().filter(|&&c| c as usize == count).count();
            assert_eq!(pairs, naive as u64);
        }
        let bin = survey.reuse_by_any.bin();
        let reuse = reuse_distances(&stream, 0..12, 1, &[Scope::AllRanks], bin);
        assert_eq!(reuse, [survey.reuse_by_any]);
        let nodes: Vec<Scope> = (0..4).map(Scope::Node).collect();
        let by_worker = reuse_distances(&stream, 0..12, 1, &nodes, bin)
            .into_iter()
            .reduce(ReuseHistogram::merge)
            .unwrap();
        assert_eq!(by_worker, survey.reuse_by_worker);
    }

    /// The exact placement that the cut approximates: each worker holds the first F/N of its
    /// samples, sorted by frequency.
    fn uncovered_by_sorting(
        stream: &AccessStream,
        epochs: u32,
        tie: impl Fn(u32, SampleId) -> u64,
    ) -> f64 {
        let StreamConfig { samples, ranks, .. } = *stream.config();
        let table = frequencies(stream, 0..epochs, 1, 0..ranks);
        let mut held = vec![false; samples as usize];
        for worker in 0..ranks {
            let mut order: Vec<SampleId> = (0..samples).collect();
            order.sort_by_key(|&k| (std::cmp::Reverse(table.get(worker, k)), tie(worker, k)));
            for &k in &order[..(samples / ranks) as usize] {
                held[k as usize] = true;
            }
        }
        held.iter().filter(|&&held| !held).count() as f64 / f64::from(samples)
    }

    /// The shares of the dataset that no worker holds under frequency placement with N·D = S, as
    /// measured when this project was designed.
    #[test]
    fn frequency_placement_leaves_out_what_was_measured() {
        let measured =
            [(4, 10, 0.19), (8, 50, 0.27), (16, 90, 0.31), (64, 90, 0.36), (256, 90, 0.42)];
        for (workers, epochs, expected) in measured {
            let stream = stream(8 * 256 * 20, workers);
            let capacity = 1.0 / f64::from(workers);
            let question = Question { epochs, draw: 40_000, threshold: 1, capacity };
            let survey = survey(&stream, question).unwrap();
            let share = |samples: u32| f64::from(samples) / f64::from(survey.drawn);
            let by_index = share(survey.uncovered.ties_by_index);
            assert!((by_index - expected).abs() < 0.015, "N={workers}: {by_index}, not {expected}");

            // With 160 samples a worker the real cut wanders and blurs the sharp one by
            // 1.5 points at N = 256; with 800 they agree within one.
            let sorted = uncovered_by_sorting(&stream, epochs, |_, k| u64::from(k));
            assert!((by_index - sorted).abs() < 0.02, "N={workers}: {by_index}, sorted {sorted}");
            let at_random = share(survey.uncovered.ties_at_random);
            let tie = |worker, k| hash(u64::from(worker) << 32 | u64::from(k));
            let sorted = uncovered_by_sorting(&stream, epochs, tie);
            assert!((at_random - sorted).abs() < 0.01, "N={workers}: {at_random}, sorted {sorted}");
        }
    }

    #[test]
    fn only_permutations_can_be_surveyed() {
        let mut config = stream(64, 2).config().clone();
        config.order = Order::Sequential;
        let question = Question { epochs: 2, draw: 9, threshold: 1, capacity: 0.5 };
        assert_eq!(survey(&AccessStream::new(config).unwrap(), question), None);
    }
}

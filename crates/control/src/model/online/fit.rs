//! The fitted model.

use belady_base::units::Seconds;
use serde::{Deserialize, Serialize};

use super::work::WorkSum;

/// A thread count with less than this part of the measurements is left out: a few of them may have
/// been disturbed.
const TOO_FEW: u64 = 64;

/// The nanoseconds of one thread for one unit of work, by the number of threads that work at once:
/// linear between measured counts, constant outside. Empty where nothing was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeFit(Vec<(u32, u64)>);

impl TimeFit {
    /// Fits sums by the number of threads, in ascending order. With a knot at each measured count,
    /// least squares is the mean of the measurements there.
    pub(super) fn new(
        by_threads: impl IntoIterator<Item = (u32, WorkSum)>,
        units: impl Fn(WorkSum) -> f64,
    ) -> Self {
        let measured: Vec<_> = by_threads
            .into_iter()
            .filter(|&(threads, sum)| threads > 0 && units(sum) > 0.0)
            .collect();
        let all: u64 = measured.iter().map(|(_, sum)| sum.count).sum();
        let enough = measured.iter().filter(|(_, sum)| sum.count * TOO_FEW >= all);
        // Below a nanosecond a time would be none.
        let mean = |sum: WorkSum| ((sum.nanoseconds as f64 / units(sum)).round() as u64).max(1);
        Self(enough.map(|&(threads, sum)| (threads, mean(sum))).collect())
    }

    /// Returns the measured counts and times.
    pub fn points(&self) -> &[(u32, u64)] {
        &self.0
    }

    /// Returns the nanoseconds of one thread where so many work; `None` where nothing was measured.
    pub fn at(&self, threads: u32) -> Option<f64> {
        let after = self.0.partition_point(|&(count, _)| count < threads);
        let before = after.checked_sub(1).map(|at| self.0[at]);
        Some(match (before, self.0.get(after)) {
            (None, Some(&(_, time))) | (Some((_, time)), None) => time as f64,
            (Some((low, low_time)), Some(&(high, high_time))) => {
                let share = f64::from(threads - low) / f64::from(high - low);
                low_time as f64 + share * (high_time as f64 - low_time as f64)
            }
            (None, None) => return None,
        })
    }

    /// Returns by how much more than at the highest measured count one thread takes at a count
    /// beyond it, if both exceed the number of processors: as the time rises between the two
    /// highest counts.
    fn beyond(&self, threads: u32, cores: u32) -> f64 {
        let &[.., (low, low_time), (high, high_time)] = &*self.0 else { return 0.0 };
        if high <= cores || threads <= high {
            return 0.0;
        }
        let slope = (high_time as f64 - low_time as f64) / f64::from(high - low);
        slope.max(0.0) * f64::from(threads - high)
    }

    /// Returns the most threads that were measured; 0 for none.
    pub fn most_threads(&self) -> u32 {
        self.0.last().map_or(0, |&(threads, _)| threads)
    }
}

/// The transforms of samples of similar size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeFit {
    /// The mean size.
    pub bytes: u64,
    /// The samples that were measured, those of late several times: the weight of the size.
    pub samples: u64,
    /// The time of a sample.
    pub time: TimeFit,
}

/// What was measured in the last iterations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FittedModel {
    /// By size, in ascending order; empty where nothing is transformed.
    pub transforms: Vec<SizeFit>,
    /// The time of a mebibyte by class: from this node, from others, from the source.
    pub loads: [TimeFit; 3],
    /// `T_train`: the least nanoseconds of a consumer between two batches; 0 where it is not known.
    pub training: u64,
    /// The processors of the node.
    pub cores: u32,
}

impl FittedModel {
    /// Returns the most threads of which transforms were measured; 0 for none.
    pub fn most_transforming(&self) -> u32 {
        self.transforms.iter().map(|of_size| of_size.time.most_threads()).max().unwrap_or(0)
    }

    /// Returns the most threads that may transform. More than there are processors help where
    /// transforms wait for something; how much has to be measured, an eighth more at a time.
    pub fn most_worth_trying(&self) -> u32 {
        let most = self.most_transforming();
        self.cores.max(most + most / 8 + 1)
    }

    /// Returns the fewest threads that may transform. That fewer of them are as fast where there
    /// are more than processors is likely and not measured, so their number falls by a quarter at
    /// a time.
    pub fn least_worth_trying(&self) -> u32 {
        let lowest = |of_size: &SizeFit| of_size.time.points().first().map(|point| point.0);
        let lowest = self.transforms.iter().filter_map(lowest).min().unwrap_or(1);
        if lowest > self.cores { (lowest * 3 / 4).max(1) } else { 1 }
    }

    /// Returns the time of so many threads to transform samples of the sizes that were measured;
    /// `None` where none were. Threads that shared processors at the lowest measured count share
    /// them with fewer below it; beyond the highest, they share them with as many more as between
    /// the two highest.
    pub fn transform_time(&self, samples: f64, threads: u32) -> Option<Seconds> {
        let measured: u64 = self.transforms.iter().map(|of_size| of_size.samples).sum();
        if measured == 0 || threads == 0 {
            return None;
        }
        let crowd = |threads: u32| f64::from(threads.max(self.cores));
        let time = |SizeFit { samples, time, .. }: &SizeFit| {
            let &(lowest, _) = time.points().first()?;
            let fewer = crowd(threads.min(lowest)) / crowd(lowest);
            let more = time.beyond(threads, self.cores);
            Some((time.at(threads)? * fewer + more) * *samples as f64 / measured as f64)
        };
        let each: f64 = self.transforms.iter().filter_map(time).sum();
        Some(Seconds(each * 1e-9 * samples / f64::from(threads)))
    }

    /// Returns the fewest of at most so many threads that transform at the highest rate.
    pub fn peak_threads(&self, samples: f64, most: u32) -> u32 {
        let time = |threads: u32| self.transform_time(samples, threads).unwrap_or(Seconds::ZERO);
        let least = self.least_worth_trying().min(most);
        let better = |best, threads| if time(threads) < time(best) { threads } else { best };
        (least..=most).fold(least, better)
    }

    /// Returns the time of so many threads to load bytes by class, one class after the other
    /// (equation 1), while `busy` threads load on this node. A class of which nothing was measured
    /// counts as free.
    pub fn load_time(&self, bytes: [f64; 3], busy: u32, threads: f64) -> Seconds {
        let each = |(fit, bytes): (&TimeFit, f64)| {
            fit.at(busy).map_or(0.0, |time| time * 1e-9 * bytes / f64::from(1 << 20))
        };
        let one_thread: f64 = self.loads.iter().zip(bytes).map(each).sum();
        Seconds(one_thread / threads)
    }

    /// Returns `T_train`.
    pub fn training_time(&self) -> Seconds {
        Seconds(self.training as f64 * 1e-9)
    }
}

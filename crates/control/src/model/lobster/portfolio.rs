//! Preprocessing times by sample size and thread count.
#![allow(clippy::doc_markdown, reason = "symbols and names as the papers print them")]

use belady_base::units::{Bytes, Seconds};

/// The time to preprocess one sample of a certain size, by the number of threads: linear between
/// measured counts, constant outside.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadModel {
    /// Strictly increasing counts; never empty.
    points: Vec<(u32, Seconds)>,
}

/// Why measurements make no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
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

    /// Returns the time with that many threads.
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

    /// Returns the fewest threads that reach the shortest time. More only cost memory bandwidth
    /// (section 3, observation 3).
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
    /// Sorts the models by size.
    ///
    /// # Errors
    /// If there is none, or two are for the same size.
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

    /// Returns the model of the nearest size, the smaller of two equally near.
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

    /// Returns T_P of a mini-batch: its samples one after another, each with all the threads.
    pub fn batch_time(&self, sizes: impl IntoIterator<Item = Bytes>, threads: u32) -> Seconds {
        if threads == 0 {
            return Seconds(f64::INFINITY);
        }
        sizes.into_iter().map(|size| self.nearest(size).at(threads)).sum()
    }
}

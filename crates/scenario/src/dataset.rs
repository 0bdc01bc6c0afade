//! The samples' sizes: drawn from a distribution, or those of real files.
//!
//! Draws are a function of the seed alone. They are made in chunks of fixed length, each with its
//! own generator, so that the result does not depend on the number of threads. A draw outside of
//! `min` and `max` is repeated. Then all are scaled so that the total is what the scenario says,
//! since cutting a tail off moves the mean. With `clamp` draws are clipped instead and the total is
//! not scaled unless it is given.
//!
//! Scaling comes last: the total is exact, and a size may lie beyond `min` or `max` by the scaling
//! factor.

use std::f64::consts::TAU;
use std::path::PathBuf;

use belady_base::splitmix::SplitMix64;
use belady_control::Sizes;
use belady_control::model::Bytes;
use rayon::prelude::*;

use super::{MOST_BYTES, ScenarioError, directory};

/// Draws that share a generator: enough to make starting one free, few enough to
/// keep all cores busy.
const CHUNK: usize = 1 << 16;
/// A range that fewer than one draw in this many falls into is an error.
const MOST_REDRAWS: usize = 100;

/// The `[dataset]` table.
#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioDataset {
    /// Where the sizes come from.
    pub origin: SizeOrigin,
    /// Files that the samples are packed into; one a sample unless given.
    pub files: Option<u32>,
    /// Bytes of one read call, where samples are packed.
    pub read_size: Option<Bytes>,
}

/// Where the samples' sizes come from.
#[derive(Clone, Debug, PartialEq)]
pub enum SizeOrigin {
    /// Drawn.
    Synthetic(SyntheticDataset),
    /// The files of a directory tree, sorted by path.
    Directory(PathBuf),
}

/// A distribution of sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticDataset {
    /// F.
    pub samples: u32,
    /// Of the sizes.
    pub mean: Bytes,
    /// Of the sizes, before `min` and `max`.
    pub stddev: Bytes,
    /// Their shape.
    pub distribution: SizeDistribution,
    /// The smallest draw.
    pub min: Option<Bytes>,
    /// The largest draw.
    pub max: Option<Bytes>,
    /// Samples × mean unless given.
    pub total: Option<Bytes>,
    /// Clip draws to `min` and `max` instead of drawing again.
    pub clamp: bool,
}

/// Shapes with a mean and a standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the shapes")]
pub enum SizeDistribution {
    Normal,
    Lognormal,
    /// Mean ± √3 standard deviations.
    Uniform,
    Constant,
}

impl ScenarioDataset {
    /// Draws the sizes, or reads the directory.
    ///
    /// # Errors
    /// If almost no draw is allowed, or the directory cannot be read.
    pub fn sizes(&self, seed: u64) -> Result<Sizes, ScenarioError> {
        match &self.origin {
            SizeOrigin::Synthetic(synthetic) => synthetic.draw(seed),
            SizeOrigin::Directory(path) => directory::sizes(path).map(Sizes::from_bytes),
        }
    }
}

impl SyntheticDataset {
    fn draw(&self, seed: u64) -> Result<Sizes, ScenarioError> {
        if self.distribution == SizeDistribution::Constant {
            // Equal sizes matter more than an exact total.
            let count = u64::from(self.samples);
            let bytes = self.total.map_or(self.mean.0, |total| (total.0 + count / 2) / count);
            return Ok(Sizes::Equal { bytes, samples: self.samples });
        }
        // One vector holds draws as the bits of an f64 first and sizes afterwards.
        let mut cells = vec![0_u64; self.samples as usize];
        let sums = cells
            .par_chunks_mut(CHUNK)
            .enumerate()
            .map(|(chunk, cells)| self.fill(cells, Generator::new(seed, chunk as u64)))
            .collect::<Result<Vec<f64>, _>>()?;
        let drawn: f64 = sums.iter().sum();
        let target = match self.total {
            Some(total) => Some(total.0),
            None if self.clamp => None,
            None => Some(self.mean.0 * u64::from(self.samples)),
        };
        let factor = target.map_or(1.0, |target| target as f64 / drawn);
        let total: i128 = cells
            .par_chunks_mut(CHUNK)
            .map(|cells| {
                let mut total = 0;
                for cell in cells {
                    *cell = ((f64::from_bits(*cell) * factor).round() as u64).max(1);
                    total += i128::from(*cell);
                }
                total
            })
            .sum();
        match target {
            Some(target) => settle(&mut cells, total, target),
            None if total.unsigned_abs() > MOST_BYTES => {
                let reason = "makes a dataset of more than 4 EiB";
                return Err(ScenarioError::invalid("dataset.min", reason));
            }
            None => {}
        }
        Ok(Sizes::from_bytes(cells))
    }

    /// Draws a chunk; returns its sum.
    fn fill(&self, cells: &mut [u64], mut generator: Generator) -> Result<f64, ScenarioError> {
        let (mean, stddev) = (self.mean.as_f64(), self.stddev.as_f64());
        // Parameters of the logarithm that give this mean and deviation.
        let variance = (1.0 + (stddev / mean).powi(2)).ln();
        let (mu, sigma) = (mean.ln() - variance / 2.0, variance.sqrt());
        // No sample is empty: a size must be more than nothing.
        let min = self.min.map_or(0.0, Bytes::as_f64);
        let max = self.max.map_or(f64::INFINITY, Bytes::as_f64);
        let mut redraws = MOST_REDRAWS * (cells.len() + MOST_REDRAWS);
        let mut sum = 0.0;
        for cell in cells {
            let size = loop {
                let size = match self.distribution {
                    SizeDistribution::Normal => mean + stddev * generator.normal(),
                    SizeDistribution::Lognormal => (mu + sigma * generator.normal()).exp(),
                    SizeDistribution::Uniform => {
                        mean + stddev * 3_f64.sqrt() * (2.0 * generator.random.unit() - 1.0)
                    }
                    SizeDistribution::Constant => mean,
                };
                if self.clamp {
                    break size.max(min.max(1.0)).min(max);
                }
                if size > 0.0 && (min..=max).contains(&size) {
                    break size;
                }
                redraws -= 1;
                if redraws == 0 {
                    return Err(ScenarioError::invalid(
                        if self.min.is_some() { "dataset.min" } else { "dataset.max" },
                        format!(
                            "leaves almost nothing of the distribution: fewer than 1 draw in \
                             {MOST_REDRAWS} is allowed"
                        ),
                    ));
                }
            };
            *cell = size.to_bits();
            sum += size;
        }
        Ok(sum)
    }
}

/// Distributes what rounding left over, so that the total is exact: a byte to evenly spaced
/// samples, and the rest (where most sizes are 1, the smallest) to the first samples that can take
/// it.
fn settle(cells: &mut [u64], total: i128, target: u64) {
    let mut off = i128::from(target) - total;
    let step = (cells.len() as u128 / off.unsigned_abs().max(1)).max(1) as usize;
    for cell in cells.iter_mut().step_by(step) {
        if off == 0 {
            return;
        }
        let before = *cell;
        *cell = before.saturating_add_signed(off.signum() as i64).max(1);
        off -= i128::from(*cell) - i128::from(before);
    }
    for cell in cells {
        let after = (i128::from(*cell) + off).max(1);
        off -= after - i128::from(*cell);
        *cell = after as u64;
    }
}

/// Uniform and normal draws.
struct Generator {
    random: SplitMix64,
    /// Normal draws come in pairs.
    spare: Option<f64>,
}

impl Generator {
    fn new(seed: u64, chunk: u64) -> Self {
        let start = SplitMix64::new(seed).draw().wrapping_add(chunk);
        let random = SplitMix64::new(SplitMix64::new(start).draw());
        Self { random, spare: None }
    }

    /// Box and Muller's: two uniform draws make two normal ones.
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * (1.0 - self.random.unit()).ln()).sqrt();
        let (sin, cos) = (TAU * self.random.unit()).sin_cos();
        self.spare = Some(radius * sin);
        radius * cos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn synthetic(distribution: SizeDistribution, mean: u64, stddev: u64) -> SyntheticDataset {
        SyntheticDataset {
            samples: 200_000,
            mean: Bytes(mean),
            stddev: Bytes(stddev),
            distribution,
            min: None,
            max: None,
            total: None,
            clamp: false,
        }
    }

    /// Mean and standard deviation.
    fn moments(sizes: &Sizes) -> (f64, f64) {
        let count = f64::from(sizes.len());
        let mean = sizes.total().as_f64() / count;
        let squares = (0..sizes.len()).map(|k| (sizes.get(k) as f64 - mean).powi(2)).sum::<f64>();
        (mean, (squares / count).sqrt())
    }

    #[test]
    fn every_shape_has_the_moments_it_was_asked_for() {
        for shape in
            [SizeDistribution::Normal, SizeDistribution::Lognormal, SizeDistribution::Uniform]
        {
            let sizes = synthetic(shape, 1_000_000, 100_000).draw(1).unwrap();
            let (mean, stddev) = moments(&sizes);
            assert_eq!(mean, 1e6, "{shape:?}");
            assert!((stddev / 1e5 - 1.0).abs() < 0.02, "{shape:?}: {stddev}");
        }
    }

    #[test]
    fn a_cut_tail_does_not_move_the_total() {
        let mut wide = synthetic(SizeDistribution::Normal, 107_700, 200_000);
        assert_eq!(wide.draw(3).unwrap().total(), Bytes(107_700 * 200_000));
        wide.total = Some(Bytes(12_345_678_901));
        assert_eq!(wide.draw(3).unwrap().total(), Bytes(12_345_678_901));
        // The mean of max(0, x) for this x is 144.9 KB: clipping moves it there.
        wide = SyntheticDataset { total: None, clamp: true, ..wide };
        let (mean, _) = moments(&wide.draw(3).unwrap());
        assert!((mean / 144_900.0 - 1.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn draws_depend_on_the_seed_and_on_nothing_else() {
        let shape = synthetic(SizeDistribution::Normal, 1_000, 100);
        let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let many = shape.draw(7).unwrap();
        assert_eq!(many, one_thread.install(|| shape.draw(7)).unwrap());
        assert_ne!(many, shape.draw(8).unwrap());
    }

    #[test]
    fn bounds_hold_before_scaling() {
        let mut shape = synthetic(SizeDistribution::Normal, 1_000, 500);
        (shape.min, shape.max, shape.clamp) = (Some(Bytes(800)), Some(Bytes(1_100)), true);
        let sizes = shape.draw(1).unwrap();
        assert!((0..sizes.len()).all(|k| (800..=1_100).contains(&sizes.get(k))));
    }

    #[test]
    fn a_range_that_nothing_falls_into_is_refused_instead_of_searched_forever() {
        let mut shape = synthetic(SizeDistribution::Uniform, 1_000_000, 500_000);
        (shape.min, shape.max) = (Some(Bytes(1_000_000)), Some(Bytes(1_000_000)));
        assert!(shape.draw(1).is_err());
    }

    #[test]
    fn tiny_totals_leave_a_byte_for_each() {
        let mut shape = synthetic(SizeDistribution::Lognormal, 3, 30);
        shape.total = Some(Bytes(200_000));
        let sizes = shape.draw(1).unwrap();
        assert_eq!((sizes.total(), sizes.largest()), (Bytes(200_000), Bytes(1)));
    }
}

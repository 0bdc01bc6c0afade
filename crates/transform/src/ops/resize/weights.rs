//! How much each pixel counts.
//!
//! Weights are computed in `f64` and rounded to 16 bits as torch does, with as many fractional bits
//! as the largest of them leaves. Every output pixel has a window of the same number of pixels, a
//! multiple of four so that kernels take four at a time; weights beyond a filter's support are 0.

/// Pixels that kernels take at a time.
pub(super) const GROUP: usize = 4;

/// Which pixels count, before an image is made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Linear,
    Cubic,
}

/// The weights of one axis.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// Pixels of a window, a multiple of [`GROUP`].
    pub window: usize,
    /// Where the window of each output pixel begins.
    pub starts: Vec<u32>,
    /// `window` for each output pixel.
    pub values: Vec<i16>,
    /// Fractional bits of `values`.
    pub precision: u32,
    exact: Vec<f64>,
}

impl Weights {
    /// For an axis of `from` pixels that becomes one of `to`.
    pub fn compute(&mut self, from: u32, to: u32, filter: Filter, antialias: bool) {
        let scale = f64::from(from) / f64::from(to);
        let wide = if antialias { scale.max(1.0) } else { 1.0 };
        let support = filter.support() * wide;
        let most = (2.0 * support).ceil() as usize;
        self.window = most.min(from as usize).next_multiple_of(GROUP);
        self.starts.clear();
        self.exact.clear();
        self.exact.resize(self.window * to as usize, 0.0);
        let mut largest = 0.0_f64;
        for (place, weights) in self.exact.chunks_exact_mut(self.window).enumerate() {
            let first = if antialias {
                covered(place, from, scale, support, filter, weights)
            } else {
                neighbours(place, from, scale, filter, weights)
            };
            self.starts.push(first as u32);
            largest = weights.iter().fold(largest, |largest, &weight| largest.max(weight));
        }
        self.precision = precision(largest);
        let one = f64::from(1_u32 << self.precision);
        self.values.clear();
        self.values.extend(self.exact.iter().map(|&weight| rounded(weight * one)));
    }

    /// Output pixels, their windows' starts and weights.
    pub fn windows(&self) -> impl Iterator<Item = (usize, &[i16])> {
        self.starts.iter().map(|&start| start as usize).zip(self.values.chunks_exact(self.window))
    }

    /// What is added before the fractional bits are dropped, so that they are rounded.
    pub fn half(&self) -> i32 {
        1 << (self.precision - 1)
    }
}

impl Filter {
    fn support(self) -> f64 {
        match self {
            Self::Linear => 1.0,
            Self::Cubic => 2.0,
        }
    }

    /// Pillow's with antialiasing, where the cubic's `a` is -0.5; torch takes -0.75 without.
    fn at(self, distance: f64, a: f64) -> f64 {
        let x = distance.abs();
        match self {
            Self::Linear if x < 1.0 => 1.0 - x,
            Self::Cubic if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Self::Cubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * a,
            _ => 0.0,
        }
    }
}

/// Weights of all pixels that a filter as wide as an output pixel covers. Gives the first one.
fn covered(
    place: usize,
    from: u32,
    scale: f64,
    support: f64,
    filter: Filter,
    weights: &mut [f64],
) -> usize {
    let center = scale * (place as f64 + 0.5);
    let narrow = if scale >= 1.0 { 1.0 / scale } else { 1.0 };
    let first = (center - support + 0.5) as usize;
    let end = ((center + support + 0.5) as usize).min(from as usize);
    // Where rounding makes it one pixel too many, the last one has no weight.
    let count = (end - first).min(weights.len());
    let weights = &mut weights[..count];
    let mut total = 0.0;
    for (pixel, weight) in (first..).zip(&mut *weights) {
        *weight = filter.at((pixel as f64 - center + 0.5) * narrow, -0.5);
        total += *weight;
    }
    if total != 0.0 {
        for weight in weights {
            *weight /= total;
        }
    }
    first
}

/// Weights of the two or four pixels around an output pixel's center; those beyond the edge count
/// for the edge. Gives the first one.
fn neighbours(place: usize, from: u32, scale: f64, filter: Filter, weights: &mut [f64]) -> usize {
    let last = f64::from(from) - 1.0;
    let center = scale * (place as f64 + 0.5) - 0.5;
    let center = if filter == Filter::Linear { center.max(0.0) } else { center };
    let below = center.floor().min(last);
    let beyond = (center - below).clamp(0.0, 1.0);
    let support = filter.support();
    let first = (below - support + 1.0).max(0.0);
    for step in 0..2 * support as usize {
        let step = step as f64 + 1.0 - support;
        let pixel = (below + step).clamp(0.0, last);
        weights[(pixel - first) as usize] += filter.at(step - beyond, -0.75);
    }
    first as usize
}

/// As many fractional bits as the largest weight leaves in 16 bits, and no more than 22.
fn precision(largest: f64) -> u32 {
    let fits = |bits: &u32| 0.5 + largest * f64::from(1_u32 << (bits + 1)) < f64::from(1 << 15);
    (0..22).find(|bits| !fits(bits)).unwrap_or(22)
}

/// Halves away from zero.
fn rounded(weight: f64) -> i16 {
    (weight + 0.5_f64.copysign(weight)) as i16
}

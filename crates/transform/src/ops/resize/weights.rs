//! The weights of a resize filter.
//!
//! Weights are computed in `f64` and rounded to 16 bits like torch's, with as many fractional bits
//! as the largest weight leaves. Every output pixel has a window of the same number of pixels, a
//! multiple of four for the kernels; weights beyond the filter's support are 0.

use std::ops::Range;

use crate::ops::vectorised::vectorised;
use crate::step::Interpolation;

/// Pixels per step of the kernels.
pub(super) const GROUP: usize = 4;

/// A resize filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Linear,
    Cubic,
}

/// A resize of an axis from `from` to `to` pixels, of which `count` from `first` on are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AxisRequest {
    pub from: u32,
    pub to: u32,
    pub first: u32,
    pub count: u32,
    pub filter: Filter,
    pub antialias: bool,
}

/// The parameters of an axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    from: u32,
    /// Input pixels per output pixel.
    scale: f64,
    /// The radius of the filter in input pixels.
    support: f64,
    filter: Filter,
}

/// The weights of one axis.
#[derive(Debug, Default)]
pub(super) struct AxisWeights {
    /// The last request, and the part of the axis that it needs.
    made: Option<(AxisRequest, Range<u32>)>,
    /// Pixels of a window, a multiple of [`GROUP`].
    window: usize,
    /// The start of each output pixel's window, padded to a multiple of [`GROUP`].
    starts: Vec<u32>,
    /// `window` weights per output pixel.
    values: Vec<i16>,
    /// Fractional bits of `values`.
    precision: u32,
    exact: Vec<f64>,
    /// The end of the last window, which may be beyond the axis.
    end: usize,
}

impl AxisWeights {
    /// Computes the weights, unless they are those of the last call: a region decode needs them
    /// before and after decoding. Returns the needed part of the axis, to which the starts are
    /// relative.
    pub fn compute(&mut self, wanted: AxisRequest) -> Range<u32> {
        if let Some((last, needed)) = &self.made
            && *last == wanted
        {
            return needed.clone();
        }
        self.compute_all(wanted);
        let needed = self.keep(wanted.first as usize, wanted.count as usize);
        self.made = Some((wanted, needed.clone()));
        needed
    }

    fn compute_all(&mut self, AxisRequest { from, to, filter, antialias, .. }: AxisRequest) {
        let scale = f64::from(from) / f64::from(to);
        let wide = if antialias { scale.max(1.0) } else { 1.0 };
        let support = filter.support() * wide;
        let most = (2.0 * support).ceil() as usize;
        self.window = most.min(from as usize).next_multiple_of(GROUP);
        self.starts.clear();
        self.exact.clear();
        self.exact.resize(self.window * to as usize, 0.0);
        let axis = Axis { from, scale, support, filter };
        if antialias {
            all_covered(axis, self.window, &mut self.exact, &mut self.starts);
        } else {
            for (place, weights) in self.exact.chunks_exact_mut(self.window).enumerate() {
                self.starts.push(neighbours(place, axis, weights));
            }
        }
        self.precision = precision(self.exact.iter().fold(0.0, |a, &b| if b > a { b } else { a }));
        self.values.clear();
        all_rounded(&self.exact, self.precision, &mut self.values);
    }

    /// Keeps `count` output pixels from `first` on. Returns the part of the axis that these need,
    /// to which the starts are relative afterwards.
    fn keep(&mut self, first: usize, count: usize) -> Range<u32> {
        self.starts.truncate(first + count);
        self.starts.drain(..first);
        self.values.truncate((first + count) * self.window);
        self.values.drain(..first * self.window);
        let start = self.starts.iter().min().copied().unwrap_or(0);
        let mut end = start;
        for (first, weights) in self.starts.iter_mut().zip(self.values.chunks_exact(self.window)) {
            let used = weights.iter().rposition(|&weight| weight != 0).map_or(1, |last| last + 1);
            end = end.max(*first + used as u32);
            *first -= start;
        }
        self.fill_group();
        start..end
    }

    /// Pads the output pixels to a multiple of [`GROUP`] by repeating the last one with weights of
    /// 0.
    fn fill_group(&mut self) {
        self.end = self.starts.iter().max().map_or(0, |&start| start as usize) + self.window;
        let last = self.starts.last().copied().unwrap_or(0);
        self.starts.resize(self.starts.len().next_multiple_of(GROUP), last);
        self.values.resize(self.starts.len() * self.window, 0);
    }

    #[cfg(target_arch = "x86_64")]
    pub fn window(&self) -> usize {
        self.window
    }

    #[cfg(target_arch = "x86_64")]
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }

    pub fn values(&self) -> &[i16] {
        &self.values
    }

    pub fn precision(&self) -> u32 {
        self.precision
    }

    /// Iterates over the starts and weights of all windows.
    pub fn windows(&self) -> impl Iterator<Item = (usize, &[i16])> {
        self.starts.iter().map(|&start| start as usize).zip(self.values.chunks_exact(self.window))
    }

    /// Returns the end of the last window. Weights beyond the axis are 0.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns the rounding term: half of the last kept bit.
    pub fn half(&self) -> i32 {
        1 << (self.precision - 1)
    }
}

impl Filter {
    /// Returns the filter of an interpolation, if it has one.
    pub fn of(interpolation: Interpolation) -> Option<Self> {
        match interpolation {
            Interpolation::Nearest => None,
            Interpolation::Bilinear => Some(Self::Linear),
            Interpolation::Bicubic => Some(Self::Cubic),
        }
    }

    fn support(self) -> f64 {
        match self {
            Self::Linear => 1.0,
            Self::Cubic => 2.0,
        }
    }

    /// Evaluates the filter. The cubic's `a` is -0.5 with antialiasing, as in Pillow, and -0.75
    /// without, as in torch.
    #[inline]
    fn at(self, distance: f64, a: f64) -> f64 {
        let x = distance.abs();
        match self {
            Self::Linear => (1.0 - x).max(0.0),
            Self::Cubic if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Self::Cubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * a,
            Self::Cubic => 0.0,
        }
    }
}

vectorised! {
    fn all_covered(axis: Axis, window: usize, weights: &mut [f64], starts: &mut Vec<u32>) {
        for (place, weights) in weights.chunks_exact_mut(window).enumerate() {
            starts.push(covered(place, axis, weights));
        }
    }
}

/// Computes the weights of all pixels under a filter that is scaled to the output pixel. Returns
/// the first pixel.
#[expect(
    clippy::inline_always,
    reason = "compiled for the caller's target features only if inlined"
)]
#[inline(always)]
fn covered(place: usize, axis: Axis, weights: &mut [f64]) -> u32 {
    let center = axis.scale * (place as f64 + 0.5);
    let narrow = if axis.scale >= 1.0 { 1.0 / axis.scale } else { 1.0 };
    let first = (center - axis.support + 0.5).max(0.0) as u32;
    let end = ((center + axis.support + 0.5) as u32).min(axis.from);
    let mut total = 0.0;
    // Four at a time, for vectorisation.
    for (group, weights) in weights.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
        let begin = first + (group * GROUP) as u32;
        for (step, weight) in weights.iter_mut().enumerate() {
            let pixel = begin + step as u32;
            let inside = axis.filter.at((f64::from(pixel) - center + 0.5) * narrow, -0.5);
            *weight = if pixel < end { inside } else { 0.0 };
        }
        total = weights.iter().fold(total, |total, weight| total + weight);
    }
    if total != 0.0 {
        for weights in weights.as_chunks_mut::<GROUP>().0 {
            *weights = weights.map(|weight| weight / total);
        }
    }
    first
}

/// Computes the weights of the two or four pixels around an output pixel's center. Pixels beyond
/// the edge count for the edge. Returns the first pixel.
fn neighbours(place: usize, axis: Axis, weights: &mut [f64]) -> u32 {
    let last = f64::from(axis.from) - 1.0;
    let center = axis.scale * (place as f64 + 0.5) - 0.5;
    let center = if axis.filter == Filter::Linear { center.max(0.0) } else { center };
    let below = center.floor().min(last);
    let beyond = (center - below).clamp(0.0, 1.0);
    let first = (below - axis.support + 1.0).max(0.0);
    for step in 0..2 * axis.support as usize {
        let step = step as f64 + 1.0 - axis.support;
        let pixel = (below + step).clamp(0.0, last);
        weights[(pixel - first) as usize] += axis.filter.at(step - beyond, -0.75);
    }
    first as u32
}

/// Returns how many fractional bits the largest weight leaves in 16 bits, at most 22.
fn precision(largest: f64) -> u32 {
    let fits = |bits: &u32| 0.5 + largest * f64::from(1_u32 << (bits + 1)) < f64::from(1 << 15);
    (0..22).find(|bits| !fits(bits)).unwrap_or(22)
}

vectorised! {
    fn all_rounded(exact: &[f64], precision: u32, into: &mut Vec<i16>) {
        let one = f64::from(1_u32 << precision);
        // Rounds half away from zero, like torch.
        let rounded = |weight: f64| (weight * one + 0.5_f64.copysign(weight)) as i32 as i16;
        into.extend(exact.iter().map(|&weight| rounded(weight)));
    }
}

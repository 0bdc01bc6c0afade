//! How much each pixel counts.
//!
//! Weights are computed in `f64` and rounded to 16 bits as torch does, with as many fractional bits
//! as the largest of them leaves. Every output pixel has a window of the same number of pixels, a
//! multiple of four so that kernels take four at a time; weights beyond a filter's support are 0.

use std::ops::Range;

use crate::ops::vectorised::vectorised;
use crate::step::Interpolation;

/// Pixels that kernels take at a time.
pub(super) const GROUP: usize = 4;

/// Which pixels count, before an image is made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Linear,
    Cubic,
}

/// An axis of `from` pixels that becomes one of `to`, of which `count` from `first` on are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub from: u32,
    pub to: u32,
    pub first: u32,
    pub count: u32,
    pub filter: Filter,
    pub antialias: bool,
}

/// An axis that changes.
#[derive(Clone, Copy, Debug)]
struct Axis {
    from: u32,
    /// Pixels before for one after.
    scale: f64,
    /// How far from its center an output pixel is influenced.
    support: f64,
    filter: Filter,
}

/// The weights of one axis.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// What these are for, and which part of the axis they need.
    made: Option<(Wanted, Range<u32>)>,
    /// Pixels of a window, a multiple of [`GROUP`].
    window: usize,
    /// Where the window of each output pixel begins; and some more, up to a multiple of [`GROUP`].
    starts: Vec<u32>,
    /// `window` for each output pixel.
    values: Vec<i16>,
    /// Fractional bits of `values`.
    precision: u32,
    exact: Vec<f64>,
    /// Where the last window ends, which may be beyond the axis.
    end: usize,
}

impl Weights {
    /// Computes what is wanted, unless it is what was wanted last: for a region decode it is asked
    /// for before the image is there, and again when it is. Gives the part of the axis that is
    /// needed; windows begin from there.
    pub fn compute(&mut self, wanted: Wanted) -> Range<u32> {
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

    fn compute_all(&mut self, Wanted { from, to, filter, antialias, .. }: Wanted) {
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

    /// Forgets all output pixels but `count` from `first` on. Gives the part of the axis that
    /// these need; windows then begin from there.
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

    /// Kernels take [`GROUP`] output pixels at a time: the last one is there more than once, and
    /// weighs nothing.
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

    /// Output pixels, their windows' starts and weights.
    pub fn windows(&self) -> impl Iterator<Item = (usize, &[i16])> {
        self.starts.iter().map(|&start| start as usize).zip(self.values.chunks_exact(self.window))
    }

    /// Where the last window ends. Its weights beyond the axis are 0.
    pub fn end(&self) -> usize {
        self.end
    }

    /// What is added before the fractional bits are dropped, so that they are rounded.
    pub fn half(&self) -> i32 {
        1 << (self.precision - 1)
    }
}

impl Filter {
    /// That of an interpolation which has one.
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

    /// Pillow's with antialiasing, where the cubic's `a` is -0.5; torch takes -0.75 without.
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

/// Weights of all pixels that a filter as wide as an output pixel covers. Gives the first one.
#[expect(clippy::inline_always, reason = "or it is not compiled for the caller's processor")]
#[inline(always)]
fn covered(place: usize, axis: Axis, weights: &mut [f64]) -> u32 {
    let center = axis.scale * (place as f64 + 0.5);
    let narrow = if axis.scale >= 1.0 { 1.0 / axis.scale } else { 1.0 };
    let first = (center - axis.support + 0.5).max(0.0) as u32;
    let end = ((center + axis.support + 0.5) as u32).min(axis.from);
    let mut total = 0.0;
    // Four at a time, so that they are computed at once.
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

/// Weights of the two or four pixels around an output pixel's center; those beyond the edge count
/// for the edge. Gives the first one.
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

/// As many fractional bits as the largest weight leaves in 16 bits, and no more than 22.
fn precision(largest: f64) -> u32 {
    let fits = |bits: &u32| 0.5 + largest * f64::from(1_u32 << (bits + 1)) < f64::from(1 << 15);
    (0..22).find(|bits| !fits(bits)).unwrap_or(22)
}

vectorised! {
    fn all_rounded(exact: &[f64], precision: u32, into: &mut Vec<i16>) {
        let one = f64::from(1_u32 << precision);
        // Halves away from zero, as torch has it.
        let rounded = |weight: f64| (weight * one + 0.5_f64.copysign(weight)) as i32 as i16;
        into.extend(exact.iter().map(|&weight| rounded(weight)));
    }
}

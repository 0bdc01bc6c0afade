//! A distribution as a shape: density outline, range, middle half and median.
//!
//! All of it comes from quantiles. The density is the slope of the inverse: between two
//! neighbouring quantiles of a hundred lies a hundredth of the mass.

use serde::Serialize;

use super::rounded;
use crate::report::format::shorten;
use crate::report::scale::Scale;
use crate::report::svg::Svg;

/// Enough for a smooth outline at the width of a panel.
const BINS: usize = 48;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoxPlot {
    pub policy: String,
    pub min: f64,
    pub p25: f64,
    pub median: f64,
    pub p75: f64,
    pub p99: f64,
    pub max: f64,
    /// Relative density over the plot's axis, from its start to its end; its peak is 1.
    pub density: Vec<f64>,
}

impl BoxPlot {
    /// From evenly spaced quantiles, 0 to 100 %. `None` if there are none.
    pub fn new(policy: &str, quantiles: &[f64], axis: &Scale) -> Option<Self> {
        let finite: Vec<f64> = quantiles.iter().copied().filter(|q| q.is_finite()).collect();
        let at = |share: f64| quantile(&finite, share).map(rounded);
        Some(Self {
            policy: policy.to_owned(),
            min: at(0.0)?,
            p25: at(0.25)?,
            median: at(0.5)?,
            p75: at(0.75)?,
            p99: at(0.99)?,
            max: at(1.0)?,
            density: density(&finite, axis),
        })
    }

    /// Draws the shape around `y` on the axis it was made for.
    pub fn draw(&self, svg: &mut Svg, class: &str, axis: &Scale, y: f64, half: f64, tip: &str) {
        let (from, to) = (axis.at(f64::MIN), axis.at(f64::MAX));
        let step = (to - from) / BINS as f64;
        let shown: Vec<usize> =
            (0..self.density.len()).filter(|i| self.density[*i] > 0.004).collect();
        if let (Some(first), Some(last)) = (shown.first(), shown.last()) {
            let x = |i: usize| from + (i as f64 + 0.5) * step;
            let edge = |side: f64| {
                (*first..=*last).map(move |i| (x(i), y + side * half * self.density[i]))
            };
            let outline: Vec<_> = edge(-1.0).chain(edge(1.0).rev()).collect();
            svg.path(&format!("violin {class}"), &outline, true, &shorten(tip, 400));
        }
        svg.line(&format!("whisker {class}"), (axis.at(self.min), y), (axis.at(self.max), y));
        let (left, right) = (axis.at(self.p25), axis.at(self.p75));
        svg.rect(&format!("box {class}"), (left, y - 2.5), ((right - left).max(1.0), 5.0), tip);
        svg.circle(&format!("median {class}"), (axis.at(self.median), y), 3.2, tip);
    }
}

/// Linear between the neighbours.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = share * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[(at.ceil() as usize).min(last)]);
    Some(low + (high - low) * at.fract())
}

/// Mass per bin of the axis, smoothed, its peak scaled to 1.
fn density(quantiles: &[f64], axis: &Scale) -> Vec<f64> {
    let mut mass = [0.0; BINS];
    for pair in quantiles.windows(2) {
        let (a, b) = (axis.share(pair[0]) * BINS as f64, axis.share(pair[1]) * BINS as f64);
        spread(&mut mass, a.min(b), a.max(b));
    }
    if quantiles.len() == 1 {
        let at = axis.share(quantiles[0]) * BINS as f64;
        spread(&mut mass, at, at);
    }
    // Binomial weights: softens the steps of a hundred quantiles, keeps separate modes apart.
    let weights = [1.0, 4.0, 6.0, 4.0, 1.0];
    let smooth = |i: usize| -> f64 {
        let near = weights.iter().enumerate();
        near.filter_map(|(k, w)| Some(w * mass.get((i + k).checked_sub(2)?)?)).sum()
    };
    let smoothed: Vec<f64> = (0..BINS).map(smooth).collect();
    let peak = smoothed.iter().copied().fold(0.0, f64::max);
    smoothed.iter().map(|m| if peak > 0.0 { (m / peak * 1e3).round() / 1e3 } else { 0.0 }).collect()
}

/// One unit of mass, evenly from `a` to `b` in bins.
fn spread(mass: &mut [f64; BINS], a: f64, b: f64) {
    let last = BINS - 1;
    if b - a < 1e-9 {
        mass[(a as usize).min(last)] += 1.0;
        return;
    }
    let (first, end) = ((a as usize).min(last), (b as usize).min(last));
    for (bin, m) in mass.iter_mut().enumerate().take(end + 1).skip(first) {
        let overlap = b.min(bin as f64 + 1.0) - a.max(bin as f64);
        *m += (overlap / (b - a)).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[3.0], 0.99), Some(3.0));
        assert_eq!(quantile(&[0.0, 10.0], 0.25), Some(2.5));
    }

    #[test]
    fn an_even_spread_is_flat() {
        let even: Vec<f64> = (0..=100).map(f64::from).collect();
        let density = density(&even, &Scale::linear((0.0, 100.0), (0.0, 1.0)));
        assert!(density[4..44].iter().all(|d| *d > 0.99), "{density:?}");
    }

    #[test]
    fn equal_values_are_one_spike() {
        let density = density(&[5.0; 101], &Scale::linear((0.0, 10.0), (0.0, 1.0)));
        assert_eq!(density.iter().filter(|d| **d > 0.0).count(), 5);
        assert!(density.iter().all(|d| d.is_finite()));
    }
}

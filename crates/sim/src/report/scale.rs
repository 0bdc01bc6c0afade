//! From values to pixels, and the round values between.

/// A linear or logarithmic map from a domain of values to a range of pixels.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    lo: f64,
    hi: f64,
    from: f64,
    to: f64,
    log: bool,
}

impl Scale {
    pub fn linear(domain: (f64, f64), range: (f64, f64)) -> Self {
        let (lo, hi) = widened(domain);
        Self { lo, hi, from: range.0, to: range.1, log: false }
    }

    /// Logarithmic; the domain must be positive, else it falls back to linear.
    pub fn log(domain: (f64, f64), range: (f64, f64)) -> Self {
        let (lo, hi) = widened(domain);
        Self { lo, hi, from: range.0, to: range.1, log: lo > 0.0 }
    }

    pub fn auto(domain: (f64, f64), range: (f64, f64), log: bool) -> Self {
        if log { Self::log(domain, range) } else { Self::linear(domain, range) }
    }

    /// The pixel of a value; values outside the domain stay at its ends.
    pub fn at(&self, value: f64) -> f64 {
        self.from + (self.to - self.from) * self.share(value)
    }

    /// Where the value lies in the domain, 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        if !value.is_finite() {
            return 0.0;
        }
        let v = value.clamp(self.lo, self.hi);
        if self.log {
            (v / self.lo).ln() / (self.hi / self.lo).ln()
        } else {
            (v - self.lo) / (self.hi - self.lo)
        }
    }

    /// About `count` round values within the domain, counted in `unit`s: an axis in
    /// minutes wants whole minutes, not round numbers of seconds.
    pub fn ticks(&self, count: usize, unit: f64) -> Vec<f64> {
        let (lo, hi) = (self.lo / unit, self.hi / unit);
        let raw = if self.log && hi / lo > 5.0 {
            log_ticks(lo, hi, count)
        } else {
            linear_ticks(lo, hi, count)
        };
        raw.into_iter().map(|t| t * unit).collect()
    }
}

/// A domain that has a width even if all values are equal.
fn widened((lo, hi): (f64, f64)) -> (f64, f64) {
    match (lo.is_finite(), hi.is_finite()) {
        (true, true) if hi > lo => (lo, hi),
        (true, _) if lo != 0.0 => (lo - lo.abs() * 0.1, lo + lo.abs() * 0.1),
        _ => (0.0, 1.0),
    }
}

/// Multiples of 1, 2 or 5 times a power of ten.
fn linear_ticks(lo: f64, hi: f64, count: usize) -> Vec<f64> {
    let rough = (hi - lo) / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999);
    let step = step.unwrap_or(power * 10.0);
    let first = (lo / step - 1e-9).ceil() as i64;
    let last = (hi / step + 1e-9).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

/// Decades; with 2 and 5 between where there is room.
fn log_ticks(lo: f64, hi: f64, count: usize) -> Vec<f64> {
    let decades = (hi / lo).log10();
    let between: &[f64] = if decades * 3.0 <= count as f64 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let every = (decades / count.max(1) as f64).ceil().max(1.0) as i32;
    let (first, last) = (lo.log10().floor() as i32, hi.log10().ceil() as i32);
    (first..=last)
        .filter(|d| (d - first) % every == 0)
        .flat_map(|d| between.iter().map(move |m| m * 10f64.powi(d)))
        .filter(|t| *t >= lo * 0.999 && *t <= hi * 1.001)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_map_to_ends_and_nothing_leaves_the_range() {
        for scale in
            [Scale::linear((1.0, 100.0), (0.0, 10.0)), Scale::log((1.0, 100.0), (0.0, 10.0))]
        {
            assert_eq!(scale.at(1.0), 0.0);
            assert_eq!(scale.at(100.0), 10.0);
            assert_eq!(scale.at(1e9), 10.0);
            assert_eq!(scale.at(f64::NAN), 0.0);
        }
        assert!((Scale::log((1.0, 100.0), (0.0, 10.0)).at(10.0) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn empty_domains_are_widened() {
        for domain in [(0.0, 0.0), (3.0, 3.0), (f64::NAN, f64::NAN), (5.0, f64::INFINITY)] {
            for scale in [Scale::linear(domain, (0.0, 1.0)), Scale::log(domain, (0.0, 1.0))] {
                assert!(scale.at(3.0).is_finite());
                assert!(scale.ticks(5, 1.0).iter().all(|t| t.is_finite()));
            }
        }
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(linear_ticks(0.0, 10.0, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(log_ticks(0.5, 200.0, 4), [1.0, 10.0, 100.0]);
        assert_eq!(log_ticks(1.0, 10.0, 5), [1.0, 2.0, 5.0, 10.0]);
        let minutes = Scale::linear((0.0, 600.0), (0.0, 1.0)).ticks(5, 60.0);
        assert_eq!(minutes, [0.0, 120.0, 240.0, 360.0, 480.0, 600.0]);
    }
}

//! A measured throughput as a function of a count (threads, readers): linear between measured
//! points, constant outside them (HDMLP, eq. 4.1).

use belady_base::units::Rate;

/// Throughput by count. Never empty; counts strictly increase; every rate is positive.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<(u32, Rate)>,
}

/// Why points make no curve. The messages follow the name of the key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CurveError {
    #[error("needs at least one [count, rate] pair")]
    Empty,
    #[error("has the count {0} twice")]
    Duplicate(u32),
    #[error("has a rate of zero at count {0}")]
    NotPositive(u32),
    #[error("has a count of zero; counts start at 1")]
    ZeroCount,
}

impl Curve {
    /// Sorts the points and checks them.
    ///
    /// # Errors
    /// If there is no point, a count of zero or twice the same, or a rate that is not positive.
    pub fn new(mut points: Vec<(u32, Rate)>) -> Result<Self, CurveError> {
        points.sort_by_key(|&(count, _)| count);
        if points.is_empty() {
            return Err(CurveError::Empty);
        }
        for &(count, rate) in &points {
            if count == 0 {
                return Err(CurveError::ZeroCount);
            }
            if rate.0 <= 0.0 || !rate.0.is_finite() {
                return Err(CurveError::NotPositive(count));
            }
        }
        if let Some(pair) = points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(CurveError::Duplicate(pair[0].0));
        }
        Ok(Self { points })
    }

    /// Returns a curve with the same rate at every count.
    pub fn flat(rate: Rate) -> Self {
        Self { points: vec![(1, rate)] }
    }

    /// Returns the rate at a count.
    pub fn at(&self, count: u32) -> Rate {
        let after = self.points.partition_point(|&(c, _)| c < count);
        if after == 0 {
            return self.points[0].1;
        }
        let (low, low_rate) = self.points[after - 1];
        match self.points.get(after) {
            None => low_rate,
            Some(&(high, high_rate)) => {
                let share = f64::from(count - low) / f64::from(high - low);
                Rate(low_rate.0 + share * (high_rate.0 - low_rate.0))
            }
        }
    }

    /// Returns the rate at a count that need not be whole.
    pub fn between(&self, count: f64) -> Rate {
        let whole = count.floor();
        let (low, high) = (self.at(whole as u32), self.at(whole as u32 + 1));
        Rate(low.0 + (count - whole) * (high.0 - low.0))
    }

    /// Returns the highest rate at any count from 1 to `limit`.
    pub fn best_up_to(&self, limit: u32) -> Rate {
        self.points
            .iter()
            .filter(|&&(count, _)| count <= limit)
            .map(|&(_, rate)| rate)
            .fold(self.at(limit), Rate::max)
    }

    /// Returns the measured points, by count.
    pub fn points(&self) -> &[(u32, Rate)] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve() -> Curve {
        Curve::new(vec![(1, Rate(66.0)), (2, Rate(86.0)), (4, Rate(146.0))]).unwrap()
    }

    #[test]
    fn interpolates_inside_and_holds_outside() {
        assert_eq!(curve().at(1), Rate(66.0));
        assert_eq!(curve().at(3), Rate(116.0));
        assert_eq!(curve().at(4), Rate(146.0));
        assert_eq!(curve().at(99), Rate(146.0));
        assert_eq!([1.5, 3.0, 4.5].map(|count| curve().between(count).0), [76.0, 116.0, 146.0]);
        assert_eq!(Curve::new(vec![(3, Rate(5.0))]).unwrap().at(1), Rate(5.0));
    }

    #[test]
    fn best_ignores_counts_above_the_limit() {
        let falling = Curve::new(vec![(1, Rate(9.0)), (4, Rate(3.0))]).unwrap();
        assert_eq!(falling.best_up_to(4), Rate(9.0));
        assert_eq!(curve().best_up_to(3), Rate(116.0));
    }

    #[test]
    fn refuses_broken_tables() {
        assert_eq!(Curve::new(vec![]), Err(CurveError::Empty));
        assert_eq!(Curve::new(vec![(1, Rate(0.0))]), Err(CurveError::NotPositive(1)));
        assert_eq!(Curve::new(vec![(1, Rate(1.0)), (1, Rate(2.0))]), Err(CurveError::Duplicate(1)));
    }
}

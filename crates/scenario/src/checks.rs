//! Checks of single values. Each error names the key.

use belady_control::model::curve::CurveError;
use belady_control::model::{Curve, Rate};

use super::ScenarioError;
use super::raw::{Quantity, RawCurve, RawPoint, Whole};
use super::schema::nearest;

/// Below this a simulated run outlasts any number of seconds worth printing.
const SLOWEST: Rate = Rate(1.0);

/// Returns the value, or an error that names the missing key.
pub fn needed<T>(value: Option<T>, key: &str, hint: &'static str) -> Result<T, ScenarioError> {
    value.ok_or_else(|| ScenarioError::Missing { key: key.to_owned(), hint })
}

/// Returns the number if it lies between `min` and `max`.
pub fn whole(key: &str, Whole(value): Whole, min: i64, max: i64) -> Result<i64, ScenarioError> {
    if value < min {
        return Err(ScenarioError::invalid(key, format!("is {value}; it must be at least {min}")));
    }
    if value > max {
        return Err(ScenarioError::invalid(key, format!("is {value}; it must be at most {max}")));
    }
    Ok(value)
}

/// Returns a rate of at least 1 B/s.
pub fn rate(key: &str, value: Option<Quantity<Rate>>) -> Result<Rate, ScenarioError> {
    let Quantity(rate) = needed(value, key, "")?;
    if rate < SLOWEST {
        return Err(ScenarioError::invalid(key, format!("is {rate}; it must be at least 1 B/s")));
    }
    Ok(rate)
}

/// Returns a throughput curve of at least one point.
pub fn curve(key: &str, points: Option<RawCurve>) -> Result<Curve, ScenarioError> {
    let points = needed(points, key, "")?
        .into_iter()
        .map(|RawPoint(count, value)| {
            let count = whole(key, count, 1, u32::MAX.into())? as u32;
            Ok((count, rate(key, Some(value))?))
        })
        .collect::<Result<Vec<_>, ScenarioError>>()?;
    Curve::new(points).map_err(|error: CurveError| ScenarioError::invalid(key, error.to_string()))
}

/// Returns the value that `text` names; an unknown name is answered with the most similar one.
pub fn choice<T: Clone>(key: &str, text: &str, values: &[(&str, T)]) -> Result<T, ScenarioError> {
    if let Some((_, value)) = values.iter().find(|(name, _)| *name == text) {
        return Ok(value.clone());
    }
    let names: Vec<&str> = values.iter().map(|&(name, _)| name).collect();
    let near = nearest(text, names.iter().copied()).map_or("", |(name, _)| name);
    Err(ScenarioError::invalid(
        key,
        format!("is `{text}`; did you mean `{near}`? It takes one of {}", names.join(", ")),
    ))
}

//! One swept key: run time over its values, a line for each policy, with the bound below.

use serde::Serialize;

use super::lines::{self, LineName, PlotFrame, Series};
use super::{Figure, WIDTH, rounded};
use crate::outcome::RunOutcome;
use crate::report::format::{TimeUnit, duration, shorten};
use crate::report::palette::PolicyPalette;
use crate::report::scale::Scale;
use crate::report::svg::Svg;
use crate::report::{swept_keys, swept_value};

/// Beyond this ratio the axis is logarithmic.
const LOG_FROM: f64 = 8.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepData {
    pub key: String,
    pub values: Vec<String>,
    /// The values as numbers, if all are and they increase; else they stand evenly.
    pub numbers: Option<Vec<f64>>,
    pub bound_seconds: Vec<Option<f64>>,
    pub perfect_seconds: Vec<Option<f64>>,
    pub lines: Vec<SweepLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepLine {
    pub policy: String,
    /// For each value of the key; `None` where the policy cannot run.
    pub seconds: Vec<Option<f64>>,
}

pub fn data(outcomes: &[RunOutcome]) -> Option<SweepData> {
    let [key]: [String; 1] = swept_keys(outcomes).try_into().ok()?;
    let mut values: Vec<String> = Vec::new();
    let mut lines: Vec<SweepLine> = Vec::new();
    for o in outcomes {
        let value = swept_value(o, &key)?;
        if !values.iter().any(|v| v == value) {
            values.push(value.to_owned());
        }
        if !lines.iter().any(|l| l.policy == o.policy) {
            lines.push(SweepLine { policy: o.policy.clone(), seconds: Vec::new() });
        }
    }
    let at = |value: &String| {
        let key = &key;
        let value = value.clone();
        outcomes.iter().filter(move |o| o.supported && swept_value(o, key) == Some(&value))
    };
    for line in &mut lines {
        let seconds = |v| at(v).find(|o| o.policy == line.policy).map(|o| rounded(o.seconds));
        line.seconds = values.iter().map(seconds).collect();
    }
    let reference = |of: fn(&RunOutcome) -> f64| {
        values
            .iter()
            .map(|v| at(v).map(of).filter(|s| *s > 0.0).max_by(f64::total_cmp).map(rounded))
            .collect()
    };
    Some(SweepData {
        numbers: numbers(&values),
        bound_seconds: reference(|o| o.bound_seconds),
        perfect_seconds: reference(|o| o.perfect_seconds),
        key,
        values,
        lines,
    })
}

/// `["64 GB", "0.5 TB"]` as numbers; `None` unless each is one and they increase.
fn numbers(values: &[String]) -> Option<Vec<f64>> {
    let parsed: Vec<f64> = values.iter().map(|v| parse(v)).collect::<Option<_>>()?;
    parsed.windows(2).all(|w| w[0] < w[1]).then_some(parsed)
}

/// Only for placing a point on an axis: scenario files have their own, strict parser.
fn parse(value: &str) -> Option<f64> {
    let value = value.trim().replace('_', "");
    let digits = value.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(value.len());
    let number: f64 = value[..digits].parse().ok()?;
    let unit = value[digits..].trim().trim_end_matches("/s");
    let factor = match unit {
        "" | "B" | "s" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "KiB" => 1024.0,
        "MiB" => 1024f64.powi(2),
        "GiB" => 1024f64.powi(3),
        "TiB" => 1024f64.powi(4),
        "us" | "µs" => 1e-6,
        "ms" => 1e-3,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Some(number * factor)
}

const EDGES: [f64; 4] = [74.0, 716.0, 34.0, 350.0];

pub fn draw(data: &SweepData, palette: &PolicyPalette) -> Option<Figure> {
    let places = places(data);
    let all = || {
        let lines = data.lines.iter().flat_map(|l| &l.seconds);
        lines.chain(&data.bound_seconds).chain(&data.perfect_seconds).flatten().copied()
    };
    let max = all().fold(0.0, f64::max);
    if max <= 0.0 {
        return None;
    }
    let min = all().filter(|s| *s > 0.0).fold(max, f64::min);
    let [left, right, top, bottom] = EDGES;
    let log = max / min > LOG_FROM;
    let y = if log {
        Scale::log((min, max), (bottom, top))
    } else {
        Scale::linear((0.0, max), (bottom, top))
    };
    let unit = TimeUnit::of(if log { (min * max).sqrt() } else { max });
    let y_tick = |t: f64| (t, unit.tick(t));
    let frame = PlotFrame {
        x: x_scale(&places, (left + 14.0, right - 14.0)),
        y,
        x_ticks: x_ticks(&places, &data.values),
        y_ticks: y.ticks(8, unit.seconds).into_iter().map(y_tick).collect(),
        title: "run time".to_owned(),
        x_title: data.key.clone(),
        edges: EDGES,
    };
    let mut series = vec![
        reference("bound", &data.bound_seconds, &places),
        reference("perfect", &data.perfect_seconds, &places),
    ];
    // `perfect` has its reference line already.
    for line in data.lines.iter().filter(|l| l.policy != "perfect") {
        let tip = |i: usize, s: f64| {
            format!("{}, {} = {}: {}", line.policy, data.key, data.values[i], duration(s))
        };
        series.push(Series {
            names: vec![LineName::Policy(line.policy.clone())],
            class: palette.class(&line.policy),
            points: points(&line.seconds, &places, tip),
        });
    }
    let mut svg = Svg::new(WIDTH, bottom + 46.0);
    lines::draw(&mut svg, &frame, &series, palette);
    let caption = format!(
        "Run time against {}{}. A line stops where a policy cannot run.",
        data.key,
        if log { ", on a logarithmic axis" } else { "" }
    );
    Some(Figure { heading: "How time follows the swept key", caption, svg })
}

/// Where the values stand on the horizontal axis.
pub(super) fn places(data: &SweepData) -> Vec<f64> {
    match &data.numbers {
        Some(numbers) => numbers.clone(),
        None => (0..data.values.len()).map(|i| i as f64).collect(),
    }
}

/// Values that double from step to step want a logarithmic axis.
pub(super) fn x_scale(places: &[f64], range: (f64, f64)) -> Scale {
    let (lo, hi) = (places.first().copied().unwrap_or(0.0), places.last().copied().unwrap_or(1.0));
    Scale::auto((lo, hi), range, lo > 0.0 && hi / lo >= 4.0)
}

pub(super) fn x_ticks(places: &[f64], values: &[String]) -> Vec<(f64, String)> {
    // More names than this overlap.
    let every = places.len().div_ceil(14).max(1);
    let named = places.iter().zip(values).step_by(every);
    named.map(|(place, value)| (*place, shorten(value, 10))).collect()
}

pub(super) fn points(
    values: &[Option<f64>],
    places: &[f64],
    tip: impl Fn(usize, f64) -> String,
) -> Vec<((f64, f64), String)> {
    let known = values.iter().zip(places).enumerate();
    known.filter_map(|(i, (v, x))| v.map(|v| ((*x, v), tip(i, v)))).collect()
}

fn reference(name: &str, values: &[Option<f64>], places: &[f64]) -> Series {
    Series {
        names: vec![LineName::Reference(name.to_owned())],
        class: "reference".to_owned(),
        points: points(values, places, |_, _| String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_are_numbers() {
        assert_eq!(parse("64 GB"), Some(64e9));
        assert_eq!(parse("1_000"), Some(1000.0));
        assert_eq!(parse("0.5 TB/s"), Some(0.5e12));
        assert_eq!(parse("torch"), None);
        assert_eq!(numbers(&["2".into(), "1".into()]), None);
    }

    #[test]
    fn a_policy_that_cannot_run_leaves_a_gap() {
        let run = |v: &str, supported| RunOutcome {
            policy: "lbann-dynamic".into(),
            supported,
            seconds: 5.0,
            sweep: vec![("k".into(), v.into())],
            ..RunOutcome::default()
        };
        let data = data(&[run("a", false), run("b", true)]).unwrap();
        assert_eq!(data.lines[0].seconds, [None, Some(5.0)]);
        assert_eq!(data.numbers, None);
    }
}

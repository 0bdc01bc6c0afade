//! Two swept keys: run time as a grid, one for each policy (as `NoPFS` Fig. 9), on one
//! colour scale so that grids can be compared.

use std::fmt::Write;

use serde::Serialize;

use super::{Figure, WIDTH, rounded};
use crate::outcome::RunOutcome;
use crate::report::format::{TimeUnit, decimals, duration, grouped, shorten};
use crate::report::palette::PolicyPalette;
use crate::report::scale::Scale;
use crate::report::svg::Svg;
use crate::report::{short_keys, swept_keys, swept_value};

/// Beyond this ratio of slowest to fastest, a linear scale leaves the fast ones one colour.
const LOG_FROM: f64 = 5.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeatmapData {
    /// The first swept key goes down, the second across.
    pub keys: [String; 2],
    pub down: Vec<String>,
    pub across: Vec<String>,
    pub min_seconds: f64,
    pub max_seconds: f64,
    pub log: bool,
    pub maps: Vec<Map>,
    /// Policies that can run in no combination.
    pub never: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Map {
    pub policy: String,
    /// Seconds by row and column; `None` where the policy cannot run or was not run.
    pub cells: Vec<Vec<Option<f64>>>,
}

pub fn data(outcomes: &[RunOutcome]) -> Option<HeatmapData> {
    let keys: [String; 2] = swept_keys(outcomes).try_into().ok()?;
    let [down, across] =
        [0, 1].map(|k| distinct(outcomes.iter().filter_map(|o| swept_value(o, &keys[k]))));
    let policies = distinct(outcomes.iter().map(|o| o.policy.as_str()));
    let cell = |policy: &str, row: &str, column: &str| {
        let here = |o: &&RunOutcome| {
            o.policy == policy
                && swept_value(o, &keys[0]) == Some(row)
                && swept_value(o, &keys[1]) == Some(column)
        };
        outcomes.iter().find(here).filter(|o| o.supported).map(|o| rounded(o.seconds))
    };
    let row = |policy: &str, r: &str| across.iter().map(|c| cell(policy, r, c)).collect();
    let map =
        |p: &String| Map { policy: p.clone(), cells: down.iter().map(|r| row(p, r)).collect() };
    let (maps, empty): (Vec<Map>, Vec<Map>) =
        policies.iter().map(map).partition(|m| m.cells.iter().flatten().any(Option::is_some));
    let never = empty.into_iter().map(|m| m.policy).collect();
    let seconds = || maps.iter().flat_map(|m| &m.cells).flatten().flatten().copied();
    let max = seconds().fold(0.0, f64::max);
    let min = seconds().fold(max, f64::min);
    let log = min > 0.0 && max / min > LOG_FROM;
    Some(HeatmapData { keys, down, across, min_seconds: min, max_seconds: max, log, maps, never })
}

/// In order of first appearance: the order in which the user listed them.
fn distinct<'a>(values: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for value in values {
        if !seen.iter().any(|s| s == value) {
            seen.push(value.to_owned());
        }
    }
    seen
}

/// Steps of the ramp in the style sheet: `.q0` to `.q8`.
const STEPS: f64 = 9.0;
const CELL: f64 = 28.0;

pub fn draw(data: &HeatmapData, palette: &PolicyPalette) -> Option<Figure> {
    if data.maps.is_empty() || data.max_seconds <= 0.0 {
        return None;
    }
    let [down_key, across_key]: [String; 2] = short_keys(&data.keys).try_into().ok()?;
    let widest = data.down.iter().map(|v| v.chars().count()).max().unwrap_or(0).min(12);
    let gutter = 14.0 + widest as f64 * 6.8;
    let column = 60.0f64
        .max(data.across.iter().map(|v| v.chars().count()).max().unwrap_or(0).min(12) as f64 * 7.2);
    let size =
        (gutter + data.across.len() as f64 * column + 26.0, 66.0 + data.down.len() as f64 * CELL);
    let per_row = ((WIDTH / size.0) as usize).clamp(1, data.maps.len());
    let rows = data.maps.len().div_ceil(per_row);
    // A wide grid makes the picture wider; the page lets it scroll.
    let width = WIDTH.max(size.0);
    let mut svg = Svg::new(width, rows as f64 * size.1 + 40.0);
    let scale = Scale::auto((data.min_seconds, data.max_seconds), (0.0, STEPS), data.log);
    let unit = TimeUnit::of(data.min_seconds);
    for (i, map) in data.maps.iter().enumerate() {
        let at = ((i % per_row) as f64 * size.0, (i / per_row) as f64 * size.1);
        palette.label(&mut svg, &map.policy, (at.0 + gutter + 5.0, at.1 + 12.0), false);
        for (c, value) in data.across.iter().enumerate() {
            let x = at.0 + gutter + (c as f64 + 0.5) * column;
            svg.text("tick mid", (x, at.1 + 36.0), &shorten(value, 12));
        }
        for (r, cells) in map.cells.iter().enumerate() {
            let y = at.1 + 42.0 + r as f64 * CELL;
            svg.text(
                "tick end",
                (at.0 + gutter - 6.0, y + CELL / 2.0 + 4.0),
                &shorten(&data.down[r], 12),
            );
            for (c, seconds) in cells.iter().enumerate() {
                let name = format!(
                    "{}: {} = {}, {} = {}",
                    map.policy, data.keys[0], data.down[r], data.keys[1], data.across[c]
                );
                let corner = (at.0 + gutter + c as f64 * column, y);
                cell(&mut svg, *seconds, corner, column, &scale, unit, &name);
            }
        }
    }
    ramp(&mut svg, data, rows as f64 * size.1 + 8.0);
    let mut caption = format!(
        "Run time in {} for each combination: {down_key} down, {across_key} across; stronger ink is \
         slower. All grids share one {}colour scale.",
        match unit.name {
            "s" => "seconds",
            "min" => "minutes",
            "h" => "hours",
            other => other,
        },
        if data.log { "logarithmic " } else { "" }
    );
    if !data.never.is_empty() {
        let _ = write!(caption, " No combination can run {}.", data.never.join(", "));
    }
    Some(Figure { heading: "Which combination is fast enough", caption, svg })
}

fn cell(
    svg: &mut Svg,
    seconds: Option<f64>,
    at: (f64, f64),
    column: f64,
    scale: &Scale,
    unit: TimeUnit,
    name: &str,
) {
    let middle = (at.0 + column / 2.0, at.1 + CELL / 2.0 + 4.0);
    let size = (column - 2.0, CELL - 2.0);
    let Some(seconds) = seconds else {
        svg.rect("none", at, size, &format!("{name}: cannot run"));
        svg.text("mute mid", middle, "–");
        return;
    };
    let step = scale.at(seconds).min(STEPS - 1.0) as usize;
    svg.rect(&format!("q{step}"), at, size, &format!("{name}: {}", duration(seconds)));
    // The ramp's far half needs text in the colour of the page.
    let ink = if step > 4 { "on-deep mid" } else { "on-pale mid" };
    let value = seconds / unit.seconds;
    svg.text(ink, middle, &grouped(value, decimals(value)));
}

fn ramp(svg: &mut Svg, data: &HeatmapData, y: f64) {
    svg.text("tick end", (150.0, y + 10.0), &duration(data.min_seconds));
    for step in 0..STEPS as usize {
        svg.rect(&format!("q{step}"), (158.0 + step as f64 * 22.0, y), (21.0, 12.0), "");
    }
    svg.text("tick", (164.0 + STEPS * 22.0, y + 10.0), &duration(data.max_seconds));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(a: &str, b: &str, seconds: f64) -> RunOutcome {
        RunOutcome {
            policy: "belady".into(),
            supported: seconds > 0.0,
            seconds,
            sweep: vec![("ram".into(), a.into()), ("ssd".into(), b.into())],
            ..RunOutcome::default()
        }
    }

    #[test]
    fn the_first_key_goes_down_and_gaps_stay_gaps() {
        let runs = [run("1", "x", 1.0), run("1", "y", 2.0), run("2", "x", 0.0)];
        let data = data(&runs).unwrap();
        assert_eq!(data.maps[0].cells, [[Some(1.0), Some(2.0)], [None, None]]);
    }

    #[test]
    fn one_key_is_no_grid() {
        assert!(data(&[RunOutcome::default()]).is_none());
    }
}

//! Strong scaling: the same work on more nodes. Speed-up over the smallest run, and what
//! share of the ideal it is.

use serde::Serialize;

use super::lines::{self, LineName, PlotFrame, Series};
use super::sweep::{self, points, x_scale, x_ticks};
use super::{Figure, WIDTH, rounded};
use crate::report::format::{number, percent, tick};
use crate::report::palette::PolicyPalette;
use crate::report::quotient;
use crate::report::scale::Scale;
use crate::report::svg::Svg;

pub const NODES: &str = "cluster.nodes";

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingData {
    pub nodes: Vec<f64>,
    pub lines: Vec<ScalingLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScalingLine {
    pub policy: String,
    /// Over the policy's own run on the fewest nodes, scaled to one node.
    pub speed_up: Vec<Option<f64>>,
    /// Speed-up as a share of the ideal.
    pub efficiency: Vec<Option<f64>>,
}

/// `None` unless the swept key is the number of nodes.
pub fn data(sweep: &sweep::SweepData) -> Option<ScalingData> {
    let nodes =
        sweep.numbers.clone().filter(|n| sweep.key == NODES && n.len() > 1 && n[0] > 0.0)?;
    let line = |l: &sweep::SweepLine| {
        let base = l.seconds.iter().zip(&nodes).find_map(|(s, n)| s.map(|s| s * n))?;
        let speed_up: Vec<Option<f64>> =
            l.seconds.iter().map(|s| quotient(base, (*s)?).map(rounded)).collect();
        let share = |(s, n): (&Option<f64>, &f64)| s.map(|s| rounded(s / n));
        let efficiency = speed_up.iter().zip(&nodes).map(share).collect();
        Some(ScalingLine { policy: l.policy.clone(), speed_up, efficiency })
    };
    let lines = sweep.lines.iter().filter_map(line).collect();
    Some(ScalingData { nodes, lines })
}

const TOP: f64 = 34.0;
const BOTTOM: f64 = 330.0;
const LEFT_PANEL: (f64, f64) = (52.0, 292.0);
const RIGHT_PANEL: (f64, f64) = (532.0, 772.0);

pub fn draw(data: &ScalingData, palette: &PolicyPalette) -> Option<Figure> {
    if data.lines.iter().all(|l| l.speed_up.iter().all(Option::is_none)) {
        return None;
    }
    let names: Vec<String> = data.nodes.iter().map(|n| tick(*n)).collect();
    let frame = |(left, right): (f64, f64), y: Scale, y_ticks, title: &str| PlotFrame {
        x: x_scale(&data.nodes, (left + 8.0, right - 8.0)),
        y,
        x_ticks: x_ticks(&data.nodes, &names),
        y_ticks,
        title: title.to_owned(),
        x_title: "nodes".to_owned(),
        edges: [left, right, TOP, BOTTOM],
    };
    let mut svg = Svg::new(WIDTH, BOTTOM + 46.0);

    let most = data.lines.iter().flat_map(|l| &l.speed_up).flatten().copied();
    let most = most.fold(*data.nodes.last()?, f64::max);
    let least = data
        .lines
        .iter()
        .flat_map(|l| &l.speed_up)
        .flatten()
        .copied()
        .fold(data.nodes[0], f64::min);
    let y = Scale::auto((least, most), (BOTTOM, TOP), least > 0.0 && most / least >= 4.0);
    let y_ticks = data.nodes.iter().map(|n| (*n, format!("{} ×", tick(*n)))).collect();
    let ideal: Vec<Option<f64>> = data.nodes.iter().copied().map(Some).collect();
    let lines = series(data, &ideal, |l| &l.speed_up, |v| format!("{} ×", number(v)), palette);
    lines::draw(&mut svg, &frame(LEFT_PANEL, y, y_ticks, "speed-up"), &lines, palette);

    let best = data.lines.iter().flat_map(|l| &l.efficiency).flatten().copied().fold(1.0, f64::max);
    let y = Scale::linear((0.0, best), (BOTTOM, TOP));
    let y_ticks = y.ticks(5, 1.0).into_iter().map(|t| (t, percent(t))).collect();
    let ideal = vec![Some(1.0); data.nodes.len()];
    let lines = series(data, &ideal, |l| &l.efficiency, percent, palette);
    lines::draw(&mut svg, &frame(RIGHT_PANEL, y, y_ticks, "efficiency"), &lines, palette);

    let caption =
        "Speed-up of each policy over its own run on the fewest nodes, and its share of the \
        ideal, which halves the time when the nodes double. More caches with more nodes can lift a \
        policy above the ideal."
            .to_owned();
    Some(Figure { heading: "Strong scaling", caption, svg })
}

fn series(
    data: &ScalingData,
    ideal: &[Option<f64>],
    of: fn(&ScalingLine) -> &Vec<Option<f64>>,
    text: fn(f64) -> String,
    palette: &PolicyPalette,
) -> Vec<Series> {
    let mut series = vec![Series {
        names: vec![LineName::Reference("ideal".to_owned())],
        class: "reference".to_owned(),
        points: points(ideal, &data.nodes, |_, _| String::new()),
    }];
    series.extend(data.lines.iter().map(|line| Series {
        names: vec![LineName::Policy(line.policy.clone())],
        class: palette.class(&line.policy),
        points: points(of(line), &data.nodes, |i, v| {
            format!("{}, {} nodes: {}", line.policy, tick(data.nodes[i]), text(v))
        }),
    }));
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(key: &str) -> sweep::SweepData {
        sweep::SweepData {
            key: key.into(),
            values: vec!["2".into(), "4".into()],
            numbers: Some(vec![2.0, 4.0]),
            bound_seconds: vec![],
            perfect_seconds: vec![],
            lines: vec![sweep::SweepLine {
                policy: "belady".into(),
                seconds: vec![Some(10.0), Some(8.0)],
            }],
        }
    }

    #[test]
    fn speed_up_is_scaled_to_one_node() {
        let data = data(&sweep(NODES)).unwrap();
        assert_eq!(data.lines[0].speed_up, [Some(2.0), Some(2.5)]);
        assert_eq!(data.lines[0].efficiency, [Some(1.0), Some(0.625)]);
    }

    #[test]
    fn other_keys_do_not_scale() {
        assert!(data(&sweep("dataset.samples")).is_none());
    }
}

//! What each epoch still asks of the source: a line for each policy, between the distinct
//! bytes S that the epoch uses and the least it must fetch when all caches hold N·D.

use serde::Serialize;

use super::lines::{self, LineName, PlotFrame, Series};
use super::{Figure, WIDTH, supported};
use crate::outcome::RunOutcome;
use crate::report::format::{byte_tick, bytes};
use crate::report::palette::PolicyPalette;
use crate::report::scale::Scale;
use crate::report::svg::Svg;

/// Lines closer than this share of the axis everywhere cannot be told apart: draw one.
const SAME_LINE: f64 = 0.004;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceData {
    pub epochs: usize,
    /// S of each epoch.
    pub distinct_bytes: Vec<u64>,
    /// max(0, S − N·D), and S in the first epoch.
    pub least_bytes: Option<Vec<u64>>,
    pub lines: Vec<SourceLine>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SourceLine {
    /// All policies that lie on this line.
    pub policies: Vec<String>,
    pub bytes: Vec<u64>,
}

pub fn data(outcomes: &[&RunOutcome], cache_bytes: Option<u64>) -> SourceData {
    let epochs = supported(outcomes).map(|o| o.source_bytes_per_epoch.len()).max().unwrap_or(0);
    let at =
        |e: usize| supported(outcomes).filter_map(move |o| o.distinct_bytes_per_epoch.get(e)).max();
    let distinct: Vec<u64> = (0..epochs).map_while(|e| at(e).copied()).collect();
    let least = |cache: u64| {
        let of = |(e, s): (usize, &u64)| if e == 0 { *s } else { s.saturating_sub(cache) };
        distinct.iter().enumerate().map(of).collect()
    };
    let least_bytes = cache_bytes.map(least);
    let all = || supported(outcomes).flat_map(|o| &o.source_bytes_per_epoch);
    let close = (all().max().copied().unwrap_or(0) as f64 * SAME_LINE) as u64;
    let mut lines: Vec<SourceLine> = Vec::new();
    for o in supported(outcomes).filter(|o| !o.source_bytes_per_epoch.is_empty()) {
        let own = &o.source_bytes_per_epoch;
        let same = |l: &&mut SourceLine| {
            l.bytes.len() == own.len()
                && l.bytes.iter().zip(own).all(|(a, b)| a.abs_diff(*b) <= close)
        };
        match lines.iter_mut().find(same) {
            Some(line) => line.policies.push(o.policy.clone()),
            None => lines.push(SourceLine { policies: vec![o.policy.clone()], bytes: own.clone() }),
        }
    }
    SourceData { epochs, distinct_bytes: distinct, least_bytes, lines }
}

const EDGES: [f64; 4] = [74.0, 716.0, 34.0, 330.0];

pub fn draw(data: &SourceData, palette: &PolicyPalette) -> Option<Figure> {
    let all = || data.lines.iter().flat_map(|l| &l.bytes).chain(&data.distinct_bytes);
    let max = all().max().copied().unwrap_or(0) as f64;
    if data.lines.is_empty() || max <= 0.0 {
        return None;
    }
    let [left, right, top, bottom] = EDGES;
    // One epoch stands in the middle: a scale from 1 to 1 has no width.
    let span = if data.epochs > 1 { (1.0, data.epochs as f64) } else { (0.0, 2.0) };
    let x = Scale::linear(span, (left, right));
    let y = Scale::linear((0.0, max), (bottom, top));
    let whole = |t: &f64| t.fract() == 0.0 && *t >= 1.0 && *t <= data.epochs as f64;
    let mut epochs: Vec<f64> = x.ticks(12, 1.0).into_iter().filter(whole).collect();
    if epochs.first() != Some(&1.0) {
        epochs.insert(0, 1.0);
    }
    let frame = PlotFrame {
        x,
        y,
        x_ticks: epochs.into_iter().map(|t| (t, format!("{t:.0}"))).collect(),
        y_ticks: y.ticks(7, 1.0).into_iter().map(|t| (t, byte_tick(t))).collect(),
        title: "bytes read from the source".to_owned(),
        x_title: "epoch".to_owned(),
        edges: EDGES,
    };
    let mut svg = Svg::new(WIDTH, bottom + 46.0);
    let reference = |text: &str, values: &[u64]| Series {
        names: vec![LineName::Reference(text.to_owned())],
        class: "reference".to_owned(),
        points: points(values, text),
    };
    let mut series = Vec::new();
    series.push(reference("S, distinct bytes", &data.distinct_bytes));
    series.extend(data.least_bytes.iter().map(|least| reference("least: S − N·D", least)));
    series.extend(data.lines.iter().map(|line| of_line(line, palette)));
    lines::draw(&mut svg, &frame, &series, palette);
    let caption =
        "Bytes are charged to the epoch that uses them. A policy without a cache reads S in \
        every epoch; lines that coincide are drawn once, in grey, with all their names."
            .to_owned();
    Some(Figure { heading: "What each epoch asks of the source", caption, svg })
}

fn of_line(line: &SourceLine, palette: &PolicyPalette) -> Series {
    // A shared line in one policy's colour would read as that policy's alone.
    let class = match &line.policies[..] {
        [only] => palette.class(only),
        _ => "shared".to_owned(),
    };
    Series {
        names: line.policies.iter().cloned().map(LineName::Policy).collect(),
        class,
        points: points(&line.bytes, &line.policies.join(", ")),
    }
}

fn points(values: &[u64], name: &str) -> Vec<((f64, f64), String)> {
    let point = |(e, b): (usize, &u64)| {
        let tip = format!("{name}, epoch {}: {}", e + 1, bytes(*b as f64));
        (((e + 1) as f64, *b as f64), tip)
    };
    values.iter().enumerate().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(policy: &str, bytes: &[u64]) -> RunOutcome {
        RunOutcome {
            policy: policy.into(),
            supported: true,
            source_bytes_per_epoch: bytes.to_vec(),
            distinct_bytes_per_epoch: vec![1000; bytes.len()],
            ..RunOutcome::default()
        }
    }

    #[test]
    fn coinciding_lines_are_one() {
        let all =
            [run("naive", &[1000, 1000]), run("staging", &[1000, 1001]), run("lru", &[1000, 700])];
        let data = data(&all.iter().collect::<Vec<_>>(), None);
        assert_eq!(data.lines[0].policies, ["naive", "staging"]);
        assert_eq!(data.lines.len(), 2);
    }

    #[test]
    fn the_first_epoch_must_read_everything() {
        let only = run("belady", &[1000, 400]);
        assert_eq!(data(&[&only], Some(600)).least_bytes, Some(vec![1000, 400]));
        assert_eq!(data(&[&only], Some(5000)).least_bytes, Some(vec![1000, 0]));
    }
}

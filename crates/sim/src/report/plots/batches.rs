//! Batch times as shapes: the first epoch, which must read everything, apart from the
//! epochs after it.

use serde::Serialize;

use super::distribution::BoxPlot;
use super::{Figure, LEFT, WIDTH, rounded, supported, x_axis};
use crate::outcome::RunOutcome;
use crate::report::format::{TimeUnit, duration};
use crate::report::palette::PolicyPalette;
use crate::report::scale::Scale;
use crate::report::svg::Svg;

/// Beyond this ratio of slowest to fastest batch, a linear axis hides the fast ones.
const LOG_FROM: f64 = 8.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchesData {
    pub min_seconds: f64,
    pub max_seconds: f64,
    pub log: bool,
    pub first_epoch: Vec<BoxPlot>,
    pub later_epochs: Vec<BoxPlot>,
}

pub fn data(outcomes: &[&RunOutcome]) -> BatchesData {
    let of = |o: &RunOutcome| {
        [o.first_epoch_batch_seconds_quantiles.clone(), o.batch_seconds_quantiles.clone()]
    };
    let all: Vec<f64> =
        supported(outcomes).flat_map(of).flatten().filter(|q| *q > 0.0 && q.is_finite()).collect();
    let (lo, hi) =
        (all.iter().copied().fold(f64::MAX, f64::min), all.iter().copied().fold(0.0, f64::max));
    let log = !all.is_empty() && hi / lo > LOG_FROM;
    // Room for the shapes to fade out.
    let (lo, hi) = match (all.is_empty(), log) {
        (true, _) => (0.0, 0.0),
        (_, true) => (lo / (hi / lo).powf(0.06), hi * (hi / lo).powf(0.03)),
        (_, false) => (lo - (hi - lo) * 0.05, hi + (hi - lo) * 0.05),
    };
    let (min_seconds, max_seconds) = (rounded(lo), rounded(hi));
    let axis = Scale::auto((min_seconds, max_seconds), (0.0, 1.0), log);
    let shapes = |of: fn(&RunOutcome) -> &[f64]| {
        supported(outcomes).filter_map(|o| BoxPlot::new(&o.policy, of(o), &axis)).collect()
    };
    BatchesData {
        min_seconds,
        max_seconds,
        log,
        first_epoch: shapes(|o| &o.first_epoch_batch_seconds_quantiles),
        later_epochs: shapes(|o| &o.batch_seconds_quantiles),
    }
}

const END: f64 = 784.0;
const COLUMNS: [f64; 2] = [868.0, WIDTH - 8.0];
const ROW: f64 = 30.0;
const TOP: f64 = 40.0;

pub fn draw(data: &BatchesData, palette: &PolicyPalette) -> Option<Figure> {
    let titled = [("first epoch", &data.first_epoch), ("later epochs", &data.later_epochs)];
    let panels: Vec<_> = titled.into_iter().filter(|(_, shapes)| !shapes.is_empty()).collect();
    let (_, last) = panels.last()?;
    let mut policies: Vec<&str> = Vec::new();
    for shape in last.iter().chain(panels[0].1) {
        if !policies.contains(&shape.policy.as_str()) {
            policies.push(&shape.policy);
        }
    }
    let end = TOP + policies.len() as f64 * ROW;
    let mut svg = Svg::new(WIDTH, end + 28.0);
    let y = |policy: &str| {
        let row = policies.iter().position(|p| *p == policy).unwrap_or(0);
        TOP + (row as f64 + 0.5) * ROW
    };
    for policy in &policies {
        palette.label(&mut svg, policy, (14.0, y(policy)), false);
    }
    let gap = 34.0;
    let width = (END - LEFT + gap) / panels.len() as f64 - gap;
    for (i, (title, shapes)) in panels.iter().enumerate() {
        let from = LEFT + i as f64 * (width + gap);
        let axis =
            Scale::auto((data.min_seconds, data.max_seconds), (from, from + width), data.log);
        frame(&mut svg, &axis, data, (from, end), title, panels.len());
        for shape in *shapes {
            shape.draw(
                &mut svg,
                &palette.class(&shape.policy),
                &axis,
                y(&shape.policy),
                11.0,
                &tip(shape, title),
            );
        }
    }
    let (title, shapes) = panels[panels.len() - 1];
    svg.text("head mid", (f64::midpoint(COLUMNS[0], COLUMNS[1]) - 20.0, 14.0), title);
    for (at, text) in COLUMNS.iter().zip(["median", "99 %"]) {
        svg.text("tick end", (*at, TOP - 8.0), text);
    }
    for shape in shapes {
        for (at, value) in COLUMNS.iter().zip([shape.median, shape.p99]) {
            svg.text("num end", (*at, y(&shape.policy) + 4.0), &duration(value));
        }
    }
    let caption = format!(
        "Time of one batch (iteration), on {} axis. Shape: density; bar: the middle half; \
         thin line: fastest to slowest; dot: median. Narrow and left is good.",
        if data.log { "a logarithmic" } else { "a linear" }
    );
    Some(Figure { heading: "How steady the batches are", caption, svg })
}

fn frame(
    svg: &mut Svg,
    axis: &Scale,
    data: &BatchesData,
    (from, end): (f64, f64),
    title: &str,
    panels: usize,
) {
    svg.text("head", (from, 14.0), title);
    let middle =
        if data.log { (data.min_seconds * data.max_seconds).sqrt() } else { data.max_seconds };
    let unit = TimeUnit::of(middle);
    let ticks = axis.ticks(if panels > 1 { 7 } else { 10 }, unit.seconds);
    x_axis(svg, axis, &ticks, (TOP - 6.0, end), |t| unit.tick(t));
}

fn tip(shape: &BoxPlot, title: &str) -> String {
    format!(
        "{}, {title}: fastest {}, median {}, 99 % within {}, slowest {}",
        shape.policy,
        duration(shape.min),
        duration(shape.median),
        duration(shape.p99),
        duration(shape.max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_epoch_gives_one_panel() {
        let outcome = RunOutcome {
            policy: "belady".into(),
            supported: true,
            first_epoch_batch_seconds_quantiles: vec![0.0; 101],
            ..RunOutcome::default()
        };
        let data = data(&[&outcome]);
        assert!(!data.log && data.later_epochs.is_empty());
        assert!(draw(&data, &PolicyPalette::new(&[outcome])).is_some());
    }
}

//! Where the time goes: a bar for each policy, stacked by what the slowest rank did
//! (as `NoPFS` Fig. 8), with `perfect` and the bound as lines.
//!
//! A very slow policy would squash all others. Bars beyond three times the middle of the
//! field are cut with a visible break and shown whole in a second panel with its own axis.

use std::fmt::Write;

use serde::Serialize;

use super::{Figure, LEFT, WIDTH, rounded, supported, x_axis};
use crate::outcome::RunOutcome;
use crate::report::format::{NONE, TimeUnit, duration, percent, shorten, times};
use crate::report::palette::PolicyPalette;
use crate::report::quotient;
use crate::report::scale::Scale;
use crate::report::svg::Svg;

/// Causes in stacking order: compute, then waits from the fast to the slow place. The style
/// sheet's ramp (`.c1` to `.c5`) grows darker in this order.
const CAUSES: [(&str, &str); 7] = [
    ("compute", "c0"),
    ("preprocessing", "c1"),
    ("local tier", "c2"),
    ("peer", "c3"),
    ("source", "c4"),
    ("preload", "c5"),
    ("other", "c6"),
];

/// Beyond this multiple of the reference a bar is cut. Up to three, the others keep a
/// third of the width.
const OFF_SCALE: f64 = 3.0;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeData {
    pub perfect_seconds: f64,
    pub bound_seconds: f64,
    /// What binds the bound, in words.
    pub bound_by: String,
    /// Where the main axis ends.
    pub axis_seconds: f64,
    pub rows: Vec<TimeRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimeRow {
    pub policy: String,
    /// Why the policy cannot run.
    pub unsupported: Option<String>,
    pub seconds: f64,
    pub over_bound: Option<f64>,
    pub stall_share: Option<f64>,
    /// Seconds by cause, as in `CAUSES`.
    pub parts: [f64; 7],
    /// Longer than the main axis.
    pub off_scale: bool,
}

pub fn data(outcomes: &[&RunOutcome]) -> TimeData {
    let reference = |of: fn(&RunOutcome) -> f64| supported(outcomes).map(of).fold(0.0, f64::max);
    let (perfect, bound) = (reference(|o| o.perfect_seconds), reference(|o| o.bound_seconds));
    let times: Vec<f64> = supported(outcomes).map(|o| o.seconds).collect();
    let middle = times.get(times.len() / 2).copied().unwrap_or(0.0);
    let limit = middle.max(bound).max(perfect) * OFF_SCALE;
    let axis = times.iter().copied().filter(|t| *t <= limit).fold(bound.max(perfect), f64::max);
    let row = |o: &&RunOutcome| TimeRow {
        policy: o.policy.clone(),
        unsupported: (!o.supported).then(|| o.reason.clone().unwrap_or_default()),
        seconds: rounded(o.seconds),
        over_bound: quotient(o.seconds, o.bound_seconds).map(rounded),
        stall_share: quotient(o.stall_seconds, o.seconds).map(rounded),
        parts: parts(o).map(rounded),
        off_scale: o.supported && o.seconds > limit,
    };
    TimeData {
        perfect_seconds: rounded(perfect),
        bound_seconds: rounded(bound),
        bound_by: supported(outcomes).next().map_or_else(String::new, |o| bound_by(&o.bound_by)),
        axis_seconds: rounded(axis),
        rows: outcomes.iter().map(row).collect(),
    }
}

fn parts(outcome: &RunOutcome) -> [f64; 7] {
    let t = outcome.time;
    let named = [t.compute, t.preprocess, t.local, t.peer, t.source, t.preload];
    let rest = outcome.seconds - named.iter().sum::<f64>();
    // Half a percent is below a pixel's width of most bars: rounding, not a cause.
    let other = if rest > outcome.seconds * 0.005 { rest } else { 0.0 };
    let [compute, preprocess, local, peer, source, preload] = named;
    [compute, preprocess, local, peer, source, preload, other]
}

/// `source link in epoch 1, compute in epochs 2–5`.
fn bound_by(epochs: &[String]) -> String {
    let mut spans: Vec<(&str, usize, usize)> = Vec::new();
    for (i, name) in epochs.iter().enumerate() {
        match spans.last_mut() {
            Some((last, _, to)) if *last == name => *to = i + 1,
            _ => spans.push((name, i + 1, i + 1)),
        }
    }
    // More than that is noise between two limits that nearly tie.
    if spans.len() > 4 {
        return "different resources from epoch to epoch".to_owned();
    }
    let words = spans.iter().map(|(name, from, to)| match (from, to) {
        (1, to) if *to == epochs.len() => (*name).to_owned(),
        (from, to) if from == to => format!("{name} in epoch {from}"),
        (from, to) => format!("{name} in epochs {from}–{to}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

const AXIS_END: f64 = 700.0;
const COLUMNS: [f64; 3] = [782.0, 866.0, WIDTH - 8.0];
const ROW: f64 = 25.0;
const BAR: f64 = 15.0;

pub fn draw(data: &TimeData, palette: &PolicyPalette) -> Option<Figure> {
    if data.rows.is_empty() {
        return None;
    }
    if data.rows.iter().all(|r| r.unsupported.is_some()) {
        return Some(only_reasons(data, palette));
    }
    let cut: Vec<&TimeRow> = data.rows.iter().filter(|r| r.off_scale).collect();
    let height = |rows: usize| rows as f64 * ROW + 76.0;
    let second = if cut.is_empty() { 0.0 } else { height(cut.len()) + 22.0 };
    let mut svg = Svg::new(WIDTH, 26.0 + height(data.rows.len()) + second);
    key(&mut svg, data);
    let bottom = panel(
        &mut svg,
        data,
        &data.rows.iter().collect::<Vec<_>>(),
        26.0,
        data.axis_seconds,
        palette,
    );
    if !cut.is_empty() {
        svg.text("head", (LEFT, bottom + 14.0), "Cut above, here in full on an axis of its own");
        let longest = cut.iter().map(|r| r.seconds).fold(0.0, f64::max);
        panel(&mut svg, data, &cut, bottom + 22.0, longest, palette);
    }
    let mut caption = "Each bar is one run from start to end, by what the slowest rank was doing: \
        computing, or waiting for data from the place named."
        .to_owned();
    if data.bound_seconds > 0.0 {
        let by = if data.bound_by.is_empty() {
            String::new()
        } else {
            format!(" (set by: {})", data.bound_by)
        };
        let bound = duration(data.bound_seconds);
        let _ =
            write!(caption, " No policy that reads every sample can beat the bound, {bound}{by}.");
    }
    Some(Figure { heading: "Where the time goes", caption, svg })
}

/// Nothing ran: no axis, only why.
fn only_reasons(data: &TimeData, palette: &PolicyPalette) -> Figure {
    let mut svg = Svg::new(WIDTH, data.rows.len() as f64 * ROW + 8.0);
    for (i, row) in data.rows.iter().enumerate() {
        let reason = row.unsupported.as_deref().unwrap_or_default();
        unsupported(&mut svg, row, reason, (i as f64 + 0.5) * ROW, palette);
    }
    let caption = "Each policy says what it lacks.".to_owned();
    Figure { heading: "Why nothing ran", caption, svg }
}

/// Only causes that occur need explaining.
fn key(svg: &mut Svg, data: &TimeData) {
    let mut x = LEFT;
    for (i, (name, class)) in CAUSES.iter().enumerate() {
        if data.rows.iter().any(|r| r.unsupported.is_none() && r.parts[i] > 0.0) {
            svg.rect(class, (x, 5.0), (11.0, 11.0), "");
            svg.text("soft", (x + 16.0, 14.5), name);
            x += 36.0 + name.chars().count() as f64 * 7.0;
            if i == 0 {
                svg.text("mute", (x, 14.5), "waiting for");
                x += 80.0;
            }
        }
    }
}

/// Draws rows from `top` on and returns where it ended.
fn panel(
    svg: &mut Svg,
    data: &TimeData,
    rows: &[&TimeRow],
    top: f64,
    axis: f64,
    palette: &PolicyPalette,
) -> f64 {
    let x = Scale::linear((0.0, axis), (LEFT, AXIS_END));
    let unit = TimeUnit::of(axis);
    let (first, end) = (top + 42.0, top + 42.0 + rows.len() as f64 * ROW);
    x_axis(svg, &x, &x.ticks(6, unit.seconds), (first - 4.0, end), |t| unit.tick(t));
    for (at, text) in COLUMNS.iter().zip(["time", "× bound", "stall"]) {
        svg.text("tick end", (*at, first - 8.0), text);
    }
    for (i, row) in rows.iter().enumerate() {
        let y = first + (i as f64 + 0.5) * ROW;
        match &row.unsupported {
            Some(reason) => unsupported(svg, row, reason, y, palette),
            None => bar(svg, row, y, &x, axis, palette),
        }
    }
    // The lines end with the bars: rows of words follow.
    let bars = rows.iter().filter(|r| r.unsupported.is_none()).count();
    references(svg, data, &x, axis, (first, first + bars as f64 * ROW));
    end + 26.0
}

fn unsupported(svg: &mut Svg, row: &TimeRow, reason: &str, y: f64, palette: &PolicyPalette) {
    palette.label(svg, &row.policy, (14.0, y), true);
    svg.line("void", (LEFT, y), (LEFT + 14.0, y));
    let text =
        if reason.is_empty() { "cannot run".to_owned() } else { format!("cannot run: {reason}") };
    svg.text_with_tip("mute italic halo", (LEFT + 20.0, y + 4.0), &shorten(&text, 115), &text);
}

fn bar(svg: &mut Svg, row: &TimeRow, y: f64, x: &Scale, axis: f64, palette: &PolicyPalette) {
    palette.label(svg, &row.policy, (14.0, y), false);
    let mut from = 0.0;
    for ((name, class), part) in CAUSES.iter().zip(row.parts) {
        let (left, right) = (x.at(from), x.at(from + part));
        from += part;
        if right > left {
            let share = quotient(part, row.seconds)
                .map_or_else(String::new, |s| format!(", {}", percent(s)));
            let tip = format!("{}: {name} {}{share}", row.policy, duration(part));
            svg.rect(&format!("bar {class}"), (left, y - BAR / 2.0), (right - left, BAR), &tip);
        }
    }
    if row.seconds > axis * 1.001 {
        let (at, half) = (AXIS_END - 16.0, BAR / 2.0 + 2.0);
        for dx in [0.0, 6.0] {
            svg.path("break", &[(at + dx - 3.0, y + half), (at + dx + 3.0, y - half)], false, "");
        }
    }
    let stall = row.stall_share.map_or_else(|| NONE.to_owned(), percent);
    for (at, text) in COLUMNS.iter().zip([duration(row.seconds), times(row.over_bound), stall]) {
        svg.text("num end", (*at, y + 4.0), &text);
    }
}

fn references(svg: &mut Svg, data: &TimeData, x: &Scale, axis: f64, (first, end): (f64, f64)) {
    let (perfect, bound) = (data.perfect_seconds, data.bound_seconds);
    if perfect.max(bound) <= 0.0 {
        return;
    }
    let y = first - 24.0;
    for value in [perfect, bound] {
        if value > 0.0 && value <= axis * 1.001 {
            svg.line("reference", (x.at(value), y + 5.0), (x.at(value), end));
        }
    }
    // Two lines that the eye cannot part get one label.
    if (x.at(bound) - x.at(perfect)).abs() < 1.5 {
        let same = duration(perfect) == duration(bound);
        let joint =
            if same { "perfect =".to_owned() } else { format!("perfect {},", duration(perfect)) };
        svg.text("soft mid", (x.at(bound), y), &format!("{joint} bound {}", duration(bound)));
    } else {
        svg.text("soft end", (x.at(perfect) + 2.0, y), &format!("perfect {}", duration(perfect)));
        svg.text("soft", (x.at(bound) + 8.0, y), &format!("bound {}", duration(bound)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(policy: &str, seconds: f64) -> RunOutcome {
        RunOutcome {
            policy: policy.into(),
            supported: true,
            seconds,
            bound_seconds: 10.0,
            ..RunOutcome::default()
        }
    }

    #[test]
    fn a_very_slow_policy_is_cut_and_does_not_set_the_axis() {
        let all = [run("belady", 11.0), run("nopfs", 12.0), run("naive", 400.0)];
        let data = data(&all.iter().collect::<Vec<_>>());
        assert_eq!(data.axis_seconds, 12.0);
        assert_eq!(data.rows.iter().map(|r| r.off_scale).collect::<Vec<_>>(), [false, false, true]);
    }

    #[test]
    fn a_slow_policy_alone_is_not_cut() {
        let only = run("naive", 400.0);
        assert!(!data(&[&only]).rows[0].off_scale);
    }

    #[test]
    fn time_without_a_cause_is_shown_as_other() {
        assert_eq!(parts(&run("belady", 10.0))[6], 10.0);
    }

    #[test]
    fn epochs_with_the_same_limit_are_shown_as_one_span() {
        let epochs = ["source", "compute", "compute"].map(str::to_owned);
        assert_eq!(bound_by(&epochs), "source in epoch 1, compute in epochs 2–3");
        assert_eq!(bound_by(&epochs[1..]), "compute");
        assert_eq!(bound_by(&[]), "");
    }
}

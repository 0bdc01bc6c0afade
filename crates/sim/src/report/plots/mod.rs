//! The plots: for each, what it shows (`Data`) and how it is drawn (`draw`).
//!
//! | file | question it answers |
//! |---|---|
//! | [`time`] | where does the time go, and how far is each policy from the bound? |
//! | [`batches`] | are batches steady, or is the mean hiding a tail? |
//! | [`balance`] | do some ranks read more from the slow source than others? |
//! | [`source`] | how much does each epoch still ask of the source? |
//! | [`heatmap`] | two swept keys: which combination is fast enough? |
//! | [`sweep`] | one swept key: how does time follow it? |
//! | [`scaling`] | swept nodes: what does a node more bring? |
//!
//! [`distribution`] and [`lines`] are shared by several of them.

pub mod balance;
pub mod batches;
mod distribution;
pub mod heatmap;
mod lines;
pub mod scaling;
pub mod source;
pub mod sweep;
pub mod time;

use serde::Serialize;

use super::combinations;
use super::scale::Scale;
use super::svg::{Point, Svg};
use crate::outcome::RunOutcome;

/// All plots have this width in pixels; the page scales them.
const WIDTH: f64 = 960.0;
/// Left edge of what is drawn beside the policies' names.
const LEFT: f64 = 180.0;

/// Everything the report shows as pictures, before it is drawn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlotData {
    /// One for each combination of swept values; one in all where nothing is swept.
    pub combinations: Vec<CombinationData>,
    /// For two swept keys.
    pub heatmap: Option<heatmap::HeatmapData>,
    /// For one swept key.
    pub sweep: Option<sweep::SweepData>,
    /// If that key is `cluster.nodes`.
    pub scaling: Option<scaling::ScalingData>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CombinationData {
    pub sweep: Vec<(String, String)>,
    pub time: time::TimeData,
    pub batches: batches::BatchesData,
    pub balance: balance::BalanceData,
    pub source: source::SourceData,
}

impl PlotData {
    /// `cache_bytes` is what all nodes together can cache (N·D), where one number fits all
    /// outcomes.
    pub fn new(outcomes: &[RunOutcome], cache_bytes: Option<u64>) -> Self {
        let combinations = combinations(outcomes);
        let of = |c: &super::Combination<'_>| CombinationData {
            sweep: c.sweep.to_vec(),
            time: time::data(&c.outcomes),
            batches: batches::data(&c.outcomes),
            balance: balance::data(&c.outcomes),
            source: source::data(&c.outcomes, cache_bytes),
        };
        let sweep = sweep::data(outcomes);
        Self {
            combinations: combinations.iter().map(of).collect(),
            heatmap: heatmap::data(outcomes),
            scaling: sweep.as_ref().and_then(scaling::data),
            sweep,
        }
    }
}

/// A drawn plot with the words around it.
#[derive(Debug)]
pub struct Figure {
    pub heading: &'static str,
    /// How to read it.
    pub caption: String,
    pub svg: Svg,
}

/// Six digits are more than a plot can show, and few enough that a test that pins the data
/// does not pin the last bits of floating point.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return 0.0;
    }
    let power = 10f64.powi(5 - value.abs().log10().floor() as i32);
    (value * power).round() / power
}

/// Grid lines from `top` to `end` with their values below, as far as these do not overlap.
fn x_axis(
    svg: &mut Svg,
    axis: &Scale,
    ticks: &[f64],
    (top, end): Point,
    text: impl Fn(f64) -> String,
) {
    let mut free = f64::MIN;
    for value in ticks {
        let (x, text) = (axis.at(*value), text(*value));
        svg.line("grid", (x, top), (x, end));
        // 6.6 pixels: a digit of the axis font.
        let half = text.chars().count() as f64 * 3.3;
        if x - half > free {
            svg.text("tick mid", (x, end + 16.0), &text);
            free = x + half + 4.0;
        }
    }
}

fn supported<'a>(outcomes: &[&'a RunOutcome]) -> impl Iterator<Item = &'a RunOutcome> {
    outcomes.iter().copied().filter(|o| o.supported)
}

//! Slow-read balance: which rank reads how much from the source after the first epoch, and
//! how uneven that is within an iteration, where the slowest rank makes all others wait.

use serde::Serialize;

use super::distribution::{BoxPlot, quantile};
use super::{Figure, LEFT, WIDTH, rounded, supported, x_axis};
use crate::outcome::RunOutcome;
use crate::report::format::{byte_tick, bytes, tick, times};
use crate::report::palette::PolicyPalette;
use crate::report::scale::Scale;
use crate::report::svg::Svg;

/// More dots than this in a row are a smear: show their distribution instead.
const DOTS: usize = 32;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BalanceData {
    pub ranks: usize,
    /// Where the axis ends.
    pub axis_bytes: f64,
    pub rows: Vec<BalanceRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BalanceRow {
    pub policy: String,
    pub mean_bytes: f64,
    /// Each rank's bytes, by rank; empty for many ranks.
    pub by_rank: Vec<u64>,
    /// For many ranks.
    pub spread: Option<BoxPlot>,
    /// Largest rank over mean within an iteration, averaged; `None` if nothing was read.
    pub peak_over_mean: Option<f64>,
}

pub fn data(outcomes: &[&RunOutcome]) -> BalanceData {
    let known: Vec<&RunOutcome> =
        supported(outcomes).filter(|o| !o.slow_bytes_by_rank.is_empty()).collect();
    let ranks = known.iter().map(|o| o.slow_bytes_by_rank.len()).max().unwrap_or(0);
    let max = known.iter().flat_map(|o| &o.slow_bytes_by_rank).max().copied().unwrap_or(0) as f64;
    // Room for the rightmost shape to fade out.
    let max = rounded(max * 1.05);
    let axis = Scale::linear((0.0, max), (0.0, 1.0));
    let row = |o: &&RunOutcome| {
        let mut sorted: Vec<f64> = o.slow_bytes_by_rank.iter().map(|b| *b as f64).collect();
        sorted.sort_by(f64::total_cmp);
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        let hundred = || (0..=100).filter_map(|p| quantile(&sorted, f64::from(p) / 100.0));
        let many = sorted.len() > DOTS;
        BalanceRow {
            policy: o.policy.clone(),
            mean_bytes: rounded(mean),
            by_rank: if many { Vec::new() } else { o.slow_bytes_by_rank.clone() },
            spread: many
                .then(|| BoxPlot::new(&o.policy, &hundred().collect::<Vec<_>>(), &axis))
                .flatten(),
            peak_over_mean: Some(rounded(o.slow_bytes_peak_over_mean))
                .filter(|p| mean > 0.0 && *p > 0.0),
        }
    };
    BalanceData { ranks, axis_bytes: max, rows: known.iter().map(row).collect() }
}

const BYTES_END: f64 = 540.0;
const PEAK: (f64, f64) = (616.0, 866.0);
const ROW: f64 = 26.0;
const TOP: f64 = 34.0;

pub fn draw(data: &BalanceData, palette: &PolicyPalette) -> Option<Figure> {
    // One rank is always in balance.
    if data.ranks < 2 || data.axis_bytes <= 0.0 {
        return None;
    }
    let end = TOP + data.rows.len() as f64 * ROW;
    let mut svg = Svg::new(WIDTH, end + 28.0);
    let amount = Scale::linear((0.0, data.axis_bytes), (LEFT, BYTES_END));
    let peaks = data.rows.iter().filter_map(|r| r.peak_over_mean);
    let highest = peaks.fold(1.2, f64::max);
    let peak = Scale::linear((1.0, highest), PEAK);
    svg.text(
        "head",
        (LEFT, 14.0),
        &format!("source bytes of each of {} ranks", tick(data.ranks as f64)),
    );
    svg.text("head", (PEAK.0, 14.0), "peak over mean within an iteration");
    x_axis(&mut svg, &amount, &amount.ticks(4, 1.0), (TOP - 6.0, end), byte_tick);
    x_axis(&mut svg, &peak, &peak.ticks(4, 1.0), (TOP - 6.0, end), |t| format!("{} ×", tick(t)));
    for (i, row) in data.rows.iter().enumerate() {
        let y = TOP + (i as f64 + 0.5) * ROW;
        palette.label(&mut svg, &row.policy, (14.0, y), row.mean_bytes == 0.0);
        let class = palette.class(&row.policy);
        if row.mean_bytes == 0.0 {
            svg.text("mute italic", (LEFT + 8.0, y + 4.0), "reads nothing after the first epoch");
            continue;
        }
        ranks(&mut svg, row, &class, &amount, y);
        if let Some(value) = row.peak_over_mean {
            svg.line(&format!("stem {class}"), (PEAK.0, y), (peak.at(value), y));
            svg.circle(&format!("dot {class}"), (peak.at(value), y), 4.5, "");
            svg.text("num end", (WIDTH - 8.0, y + 4.0), &times(Some(value)));
        }
    }
    let caption =
        "Left: bytes read from the source for each rank after the first epoch; marks far \
        apart mean that some ranks carry more. Right: within an iteration, the largest rank over \
        the mean, averaged; the slowest rank sets the pace, so 1 × is best."
            .to_owned();
    Some(Figure { heading: "Which ranks wait for the source", caption, svg })
}

fn ranks(svg: &mut Svg, row: &BalanceRow, class: &str, axis: &Scale, y: f64) {
    if let Some(spread) = &row.spread {
        let tip = format!(
            "{}: {} to {} a rank, mean {}",
            row.policy,
            bytes(spread.min),
            bytes(spread.max),
            bytes(row.mean_bytes)
        );
        spread.draw(svg, class, axis, y, 10.0, &tip);
        return;
    }
    // Ranks go down the row: equal amounts stand in a column instead of hiding each other.
    let step = if row.by_rank.len() > 1 { 14.0 / (row.by_rank.len() - 1) as f64 } else { 0.0 };
    let top = if row.by_rank.len() > 1 { y - 7.0 } else { y };
    svg.line(
        &format!("mean {class}"),
        (axis.at(row.mean_bytes), y - 10.0),
        (axis.at(row.mean_bytes), y + 10.0),
    );
    for (rank, value) in row.by_rank.iter().enumerate() {
        let tip = format!("{}, rank {rank}: {}", row.policy, bytes(*value as f64));
        svg.circle(
            &format!("dot {class}"),
            (axis.at(*value as f64), top + rank as f64 * step),
            2.6,
            &tip,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_ranks(ranks: usize) -> RunOutcome {
        RunOutcome {
            supported: true,
            slow_bytes_by_rank: (1..=ranks as u64).collect(),
            ..RunOutcome::default()
        }
    }

    #[test]
    fn many_ranks_become_a_distribution() {
        let (few, many) = (with_ranks(4), with_ranks(1024));
        let data = data(&[&few, &many]);
        assert_eq!(data.rows[0].by_rank, [1, 2, 3, 4]);
        assert!(data.rows[1].by_rank.is_empty());
        assert_eq!(data.rows[1].spread.as_ref().unwrap().max, 1024.0);
    }

    #[test]
    fn no_reads_have_no_balance() {
        let none =
            RunOutcome { supported: true, slow_bytes_by_rank: vec![0; 4], ..RunOutcome::default() };
        let data = data(&[&none]);
        assert_eq!(data.rows[0].peak_over_mean, None);
        assert!(draw(&data, &PolicyPalette::new(&[])).is_none());
    }
}

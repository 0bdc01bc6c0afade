//! Lines over an axis, each named where it ends.

use crate::report::palette::PolicyPalette;
use crate::report::scale::Scale;
use crate::report::svg::{Point, Svg};

/// What a line's end says.
#[derive(Clone, Debug)]
pub enum LineName {
    Policy(String),
    Reference(String),
}

#[derive(Clone, Debug)]
pub struct Series {
    /// Several, if lines lie on each other.
    pub names: Vec<LineName>,
    pub class: String,
    /// Value and what its tooltip says; gaps are left out.
    pub points: Vec<(Point, String)>,
}

/// Axes and where they stand.
#[derive(Debug)]
pub struct PlotFrame {
    pub x: Scale,
    pub y: Scale,
    pub x_ticks: Vec<(f64, String)>,
    pub y_ticks: Vec<(f64, String)>,
    pub title: String,
    pub x_title: String,
    /// Left, right, top, bottom in pixels: the same as the scales' ranges.
    pub edges: [f64; 4],
}

/// Above this, markers would touch.
const MARKED_POINTS: usize = 24;
const LINE_HEIGHT: f64 = 15.0;

pub fn draw(svg: &mut Svg, frame: &PlotFrame, series: &[Series], palette: &PolicyPalette) {
    let [left, right, top, bottom] = frame.edges;
    svg.text("head", (left, top - 12.0), &frame.title);
    for (value, text) in &frame.y_ticks {
        let y = frame.y.at(*value);
        svg.line("grid", (left, y), (right, y));
        svg.text("tick end", (left - 8.0, y + 4.0), text);
    }
    for (value, text) in &frame.x_ticks {
        let x = frame.x.at(*value);
        svg.line("notch", (x, bottom), (x, bottom + 4.0));
        svg.text("tick mid", (x, bottom + 18.0), text);
    }
    svg.text("tick mid", (f64::midpoint(left, right), bottom + 36.0), &frame.x_title);
    for line in series {
        let points: Vec<Point> =
            line.points.iter().map(|((x, y), _)| (frame.x.at(*x), frame.y.at(*y))).collect();
        svg.path(&format!("line {}", line.class), &points, false, "");
        if points.len() <= MARKED_POINTS && !line.class.contains("reference") {
            for (at, (_, tip)) in points.iter().zip(&line.points) {
                svg.circle(&format!("dot {}", line.class), *at, 3.2, tip);
            }
        }
    }
    names(svg, frame, series, palette);
}

/// Names beside the ends, moved apart where they would overlap.
fn names(svg: &mut Svg, frame: &PlotFrame, series: &[Series], palette: &PolicyPalette) {
    let [_, right, top, bottom] = frame.edges;
    let mut ends: Vec<(Point, &LineName)> = Vec::new();
    for line in series {
        if let Some(((x, y), _)) = line.points.last() {
            let end = (frame.x.at(*x), frame.y.at(*y));
            ends.extend(line.names.iter().map(|name| (end, name)));
        }
    }
    ends.sort_by(|(a, _), (b, _)| a.1.total_cmp(&b.1));
    let wanted: Vec<f64> = ends.iter().map(|((_, y), _)| *y).collect();
    for (((x, y), name), at) in ends.iter().zip(apart(&wanted, top, bottom + LINE_HEIGHT)) {
        svg.path("leader", &[(x + 5.0, *y), (right + 8.0, *y), (right + 20.0, at)], false, "");
        match name {
            LineName::Policy(policy) => palette.label(svg, policy, (right + 28.0, at), false),
            LineName::Reference(text) => svg.text("mute", (right + 24.0, at + 4.0), text),
        }
    }
}

/// The nearest positions at least a line's height apart, within the bounds where they fit.
/// Neighbours that collide form a block, centred on what its members wanted.
fn apart(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut blocks: Vec<(f64, usize)> = Vec::new();
    for y in wanted {
        blocks.push((*y, 1));
        while let [.., (above, n), (below, m)] = blocks[..] {
            let needed = (n + m) as f64 / 2.0 * LINE_HEIGHT;
            if below - above >= needed {
                break;
            }
            let centre = (above * n as f64 + below * m as f64) / (n + m) as f64;
            blocks.truncate(blocks.len() - 2);
            let half = (n + m - 1) as f64 / 2.0 * LINE_HEIGHT;
            blocks.push((centre.min(bottom - half).max(top + half), n + m));
        }
    }
    let spots = |(centre, n): &(f64, usize)| {
        let first = centre - (*n - 1) as f64 / 2.0 * LINE_HEIGHT;
        (0..*n).map(move |i| first + i as f64 * LINE_HEIGHT).collect::<Vec<_>>()
    };
    blocks.iter().flat_map(spots).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_distance_and_order() {
        let spots = apart(&[10.0, 10.0, 11.0, 100.0, 101.0], 0.0, 200.0);
        assert_eq!(spots.len(), 5);
        assert!(spots.windows(2).all(|w| w[1] - w[0] >= LINE_HEIGHT - 1e-9), "{spots:?}");
        assert!(spots[0] >= 0.0);
    }

    #[test]
    fn a_free_name_stays_at_its_line() {
        assert_eq!(apart(&[10.0, 80.0], 0.0, 100.0), [10.0, 80.0]);
        assert!(apart(&[], 0.0, 100.0).is_empty());
    }
}

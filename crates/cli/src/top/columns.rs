//! The table of nodes: what stands in it, and what of it fits.

use super::watch::{NodeView, Picture, State};
use crate::text::{bytes, percent};

/// Between two columns.
pub const GAP: usize = 2;

/// How much a cell deserves attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Warning,
    Bad,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    pub tone: Tone,
}

/// A column with one cell a node. The smaller `rank`, the longer it stays on a narrow terminal.
#[derive(Clone, Debug)]
pub struct Column {
    pub heading: String,
    rank: u8,
    pub cells: Vec<Cell>,
}

impl Column {
    fn new(heading: &str, rank: u8, nodes: &[NodeView], cell: impl Fn(&NodeView) -> Cell) -> Self {
        Self { heading: heading.to_owned(), rank, cells: nodes.iter().map(cell).collect() }
    }

    pub fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.text.chars().count());
        cells.max().unwrap_or(0).max(self.heading.chars().count())
    }
}

/// Every column, from left to right.
pub fn columns(picture: &Picture) -> Vec<Column> {
    let nodes = &picture.nodes;
    let mut columns = vec![
        Column::new("rank", 0, nodes, |node| plain(node.rank.to_string())),
        Column::new("state", 1, nodes, |node| state(node.state)),
        Column::new("rate", 2, nodes, |node| plain(per_second(node.rate))),
        Column::new("stall", 3, nodes, stall),
        Column::new("source", 4, nodes, |node| {
            // After the first epoch nothing should come from there.
            let tone = if node.source > 0.0 { Tone::Warning } else { Tone::Plain };
            Cell { text: per_second(node.source), tone }
        }),
        Column::new("peers", 5, nodes, |node| plain(per_second(node.peers))),
    ];
    let names = tier_names(nodes);
    for (at, name) in names.iter().enumerate() {
        columns.push(Column::new(name, 8, nodes, |node| {
            plain(node.tiers.get(at).map_or(String::new(), |tier| per_second(tier.rate)))
        }));
    }
    columns.push(Column::new("ring", 9, nodes, |node| plain(per_second(node.ring))));
    for (at, name) in names.iter().enumerate() {
        columns.push(Column::new(&format!("{name} full"), 7, nodes, |node| {
            plain(node.tiers.get(at).map_or(String::new(), |tier| percent(tier.fill)))
        }));
    }
    columns.push(Column::new("reached", 6, nodes, reached));
    columns.push(Column::new("host", 10, nodes, |node| plain(node.host.clone())));
    columns
}

/// Those that fit together, the most important ones at any rate.
pub fn fitting(mut columns: Vec<Column>, width: usize) -> Vec<Column> {
    let needed = |columns: &[Column]| columns.iter().map(|c| c.width() + GAP).sum::<usize>();
    while columns.len() > 1 && needed(&columns) > width + GAP {
        let least = (0..columns.len()).max_by_key(|&at| columns[at].rank);
        columns.remove(least.unwrap_or(0));
    }
    columns
}

/// Of a directory, its own name: columns are narrow.
fn tier_names(nodes: &[NodeView]) -> Vec<String> {
    let most = nodes.iter().map(|node| &node.tiers).max_by_key(|tiers| tiers.len());
    let short = |name: &str| {
        let last = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
        last.chars().take(10).collect()
    };
    most.map(|tiers| tiers.iter().map(|tier| short(&tier.name)).collect()).unwrap_or_default()
}

fn plain(text: String) -> Cell {
    Cell { text, tone: Tone::Plain }
}

fn state(state: State) -> Cell {
    match state {
        State::Awaited => Cell { text: "awaited".into(), tone: Tone::Warning },
        State::Up => Cell { text: "up".into(), tone: Tone::Good },
        State::Ended => Cell { text: "ended".into(), tone: Tone::Plain },
        State::Silent(time) => {
            Cell { text: format!("silent {} s", time.as_secs()), tone: Tone::Bad }
        }
    }
}

fn stall(node: &NodeView) -> Cell {
    // What is lost below this is lost in noise.
    let tone = if node.stall > 0.05 { Tone::Warning } else { Tone::Plain };
    Cell { text: percent(node.stall), tone }
}

/// How many of the others it can ask.
fn reached(node: &NodeView) -> Cell {
    let tone = if node.down > 0 { Tone::Bad } else { Tone::Plain };
    Cell { text: format!("{}/{}", node.others.saturating_sub(node.down), node.others), tone }
}

pub fn per_second(rate: f64) -> String {
    format!("{}/s", bytes(rate as u64))
}

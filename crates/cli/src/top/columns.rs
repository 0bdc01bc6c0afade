//! The columns of the table of nodes, and the choice of those that fit.

use super::monitor::{JobView, NodeState, NodeView};
use crate::text::{bytes, percent};

/// The space between two columns.
pub const GAP: usize = 2;

/// The emphasis of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Warning,
    Bad,
}

/// A cell of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    pub tone: Tone,
}

/// A column with one cell for each node. Columns with the largest `rank` are left out first on a
/// narrow terminal.
#[derive(Clone, Debug)]
pub struct VitalsColumn {
    pub heading: String,
    rank: u8,
    pub cells: Vec<Cell>,
}

impl VitalsColumn {
    fn new(heading: &str, rank: u8, nodes: &[NodeView], cell: impl Fn(&NodeView) -> Cell) -> Self {
        Self { heading: heading.to_owned(), rank, cells: nodes.iter().map(cell).collect() }
    }

    /// Returns the width of the widest cell or the heading.
    pub fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.text.chars().count());
        cells.max().unwrap_or(0).max(self.heading.chars().count())
    }
}

/// Returns all columns, from left to right.
pub fn columns(view: &JobView) -> Vec<VitalsColumn> {
    let nodes = &view.nodes;
    let mut columns = vec![
        VitalsColumn::new("rank", 0, nodes, |node| plain(node.rank.to_string())),
        VitalsColumn::new("state", 1, nodes, |node| state(node.state)),
        VitalsColumn::new("rate", 2, nodes, |node| plain(per_second(node.rate))),
        VitalsColumn::new("stall", 3, nodes, stall),
        VitalsColumn::new("source", 4, nodes, |node| {
            // After the first epoch, reads of the source are not expected.
            let tone = if node.source > 0.0 { Tone::Warning } else { Tone::Plain };
            Cell { text: per_second(node.source), tone }
        }),
        VitalsColumn::new("peers", 5, nodes, |node| plain(per_second(node.peers))),
    ];
    let names = tier_names(nodes);
    for (at, name) in names.iter().enumerate() {
        columns.push(VitalsColumn::new(name, 8, nodes, |node| {
            plain(node.tiers.get(at).map_or(String::new(), |tier| per_second(tier.rate)))
        }));
    }
    columns.push(VitalsColumn::new("ring", 9, nodes, |node| plain(per_second(node.ring))));
    for (at, name) in names.iter().enumerate() {
        columns.push(VitalsColumn::new(&format!("{name} full"), 7, nodes, |node| {
            plain(node.tiers.get(at).map_or(String::new(), |tier| percent(tier.fill)))
        }));
    }
    columns.push(VitalsColumn::new("reached", 6, nodes, reached));
    columns.push(VitalsColumn::new("host", 10, nodes, |node| plain(node.host.clone())));
    columns
}

/// Returns the most important columns that fit into `width`, at least one.
pub fn fitting(mut columns: Vec<VitalsColumn>, width: usize) -> Vec<VitalsColumn> {
    let needed = |columns: &[VitalsColumn]| columns.iter().map(|c| c.width() + GAP).sum::<usize>();
    while columns.len() > 1 && needed(&columns) > width + GAP {
        let least = (0..columns.len()).max_by_key(|&at| columns[at].rank);
        columns.remove(least.unwrap_or(0));
    }
    columns
}

/// Returns the tiers' names; for a directory, its last component, since columns are narrow.
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

fn state(state: NodeState) -> Cell {
    match state {
        NodeState::Awaited => Cell { text: "awaited".into(), tone: Tone::Warning },
        NodeState::Up => Cell { text: "up".into(), tone: Tone::Good },
        NodeState::Ended => Cell { text: "ended".into(), tone: Tone::Plain },
        NodeState::Silent(time) => {
            Cell { text: format!("silent {} s", time.as_secs()), tone: Tone::Bad }
        }
    }
}

fn stall(node: &NodeView) -> Cell {
    // A smaller stall is noise.
    let tone = if node.stall > 0.05 { Tone::Warning } else { Tone::Plain };
    Cell { text: percent(node.stall), tone }
}

/// Returns how many of its peers a node can reach.
fn reached(node: &NodeView) -> Cell {
    let tone = if node.down > 0 { Tone::Bad } else { Tone::Plain };
    Cell { text: format!("{}/{}", node.others.saturating_sub(node.down), node.others), tone }
}

/// Formats a rate in bytes per second.
pub fn per_second(rate: f64) -> String {
    format!("{}/s", bytes(rate as u64))
}

//! The columns of the table of nodes, and the choice of those that fit.

use belady_engine::metrics::ThreadVitals;

use super::monitor::{JobView, NodeState, NodeView, RankView, TableRow};
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

/// A column with one cell for each line. Columns with the largest `rank` are left out first on a
/// narrow terminal.
#[derive(Clone, Debug)]
pub struct VitalsColumn {
    pub heading: String,
    rank: u8,
    pub cells: Vec<Cell>,
}

impl VitalsColumn {
    /// Returns a column that is empty in the lines of ranks.
    fn new(
        heading: &str,
        rank: u8,
        rows: &[TableRow<'_>],
        cell: impl Fn(&NodeView) -> Cell,
    ) -> Self {
        Self::with_ranks(heading, rank, rows, cell, |_| plain(String::new()))
    }

    fn with_ranks(
        heading: &str,
        rank: u8,
        rows: &[TableRow<'_>],
        of_node: impl Fn(&NodeView) -> Cell,
        of_rank: impl Fn(&RankView) -> Cell,
    ) -> Self {
        let cell = |row: &TableRow<'_>| match row {
            TableRow::Node(node) => of_node(node),
            TableRow::Rank(rank) => of_rank(rank),
        };
        Self { heading: heading.to_owned(), rank, cells: rows.iter().map(cell).collect() }
    }

    /// Returns the width of the widest cell or the heading.
    pub fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| cell.text.chars().count());
        cells.max().unwrap_or(0).max(self.heading.chars().count())
    }
}

/// Returns all columns, from left to right.
pub fn columns(view: &JobView) -> Vec<VitalsColumn> {
    let (nodes, rows) = (&view.nodes, &view.rows());
    let mut columns = vec![
        VitalsColumn::with_ranks(
            "rank",
            0,
            rows,
            |node| plain(node.rank.to_string()),
            |rank| plain(format!("r{}", rank.rank)),
        ),
        VitalsColumn::new("state", 1, rows, |node| state(node.state)),
        VitalsColumn::new("rate", 2, rows, |node| plain(per_second(node.rate))),
        VitalsColumn::with_ranks("stall", 3, rows, |node| stall(node.stall), |it| stall(it.stall)),
        VitalsColumn::new("source", 4, rows, |node| {
            // After the first epoch, reads of the source are not expected.
            let tone = if node.source > 0.0 { Tone::Warning } else { Tone::Plain };
            Cell { text: per_second(node.source), tone }
        }),
        VitalsColumn::new("peers", 5, rows, |node| plain(per_second(node.peers))),
    ];
    columns.push(VitalsColumn::with_ranks(
        "threads",
        10,
        rows,
        |node| threads(node.threads),
        |rank| threads(rank.threads),
    ));
    columns.extend(tier_columns(nodes, rows));
    columns.push(VitalsColumn::new("reached", 6, rows, reached));
    columns.push(VitalsColumn::new("host", 10, rows, |node| plain(node.host.clone())));
    if nodes.iter().any(|node| !node.ranks.is_empty()) {
        columns.splice(4..4, straggling_columns(rows));
    }
    columns
}

/// Returns what iterations lost to ranks, for nodes of several.
fn straggling_columns(rows: &[TableRow<'_>]) -> [VitalsColumn; 2] {
    let of_node = |node: &NodeView| match node.ranks.len() {
        0 => plain(String::new()),
        _ => stall(node.imbalanced),
    };
    let lost = |rank: &RankView| rank.lost;
    let sum = move |node: &NodeView| match node.ranks.len() {
        0 => plain(String::new()),
        _ => stall(node.ranks.iter().map(lost).sum()),
    };
    [
        VitalsColumn::with_ranks("slowest", 3, rows, of_node, |rank| stall(rank.straggling)),
        VitalsColumn::with_ranks("lost", 3, rows, sum, |rank| stall(rank.lost)),
    ]
}

fn tier_columns(nodes: &[NodeView], rows: &[TableRow<'_>]) -> Vec<VitalsColumn> {
    let names = tier_names(nodes);
    let mut columns = vec![];
    for (at, name) in names.iter().enumerate() {
        columns.push(VitalsColumn::new(name, 8, rows, |node| {
            plain(node.tiers.get(at).map_or(String::new(), |tier| per_second(tier.rate)))
        }));
    }
    columns.push(VitalsColumn::new("ring", 9, rows, |node| plain(per_second(node.ring))));
    for (at, name) in names.iter().enumerate() {
        columns.push(VitalsColumn::new(&format!("{name} full"), 7, rows, |node| {
            plain(node.tiers.get(at).map_or(String::new(), |tier| percent(tier.fill)))
        }));
    }
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

/// Returns the threads that load and those that transform: 6+2.
fn threads(ThreadVitals { loading, transforming }: ThreadVitals) -> Cell {
    plain(match (loading, transforming) {
        (0, 0) => String::new(),
        (loading, 0) => loading.to_string(),
        (loading, transforming) => format!("{loading}+{transforming}"),
    })
}

fn stall(share: f64) -> Cell {
    // A smaller stall is noise.
    let tone = if share > 0.05 { Tone::Warning } else { Tone::Plain };
    Cell { text: percent(share), tone }
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

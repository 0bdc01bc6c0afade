//! The terminal table: one row an outcome, at most 100 columns wide.
//!
//! A policy that cannot run has no numbers, so its reason takes their place. In a sweep the
//! swept keys come first; if the row then grows too wide, the least telling columns are left
//! out and a last line says which.

use super::format::TimeUnit;
use super::format::{NONE, bytes, decimals, grouped, percent, shorten, times};
use super::{combinations, is_contender, quotient, short_keys, swept_keys, swept_value};
use crate::outcome::RunOutcome;

/// How the table may look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// ANSI colours; off for pipes and files.
    pub colour: bool,
}

const WIDTH: usize = 100;
const GAP: &str = "  ";
/// The longest policy name has 20 characters.
const POLICY_WIDTH: usize = 24;
const VALUE_WIDTH: usize = 14;

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[32m";
const RESET: &str = "\x1b[0m";

/// A column of numbers: two lines of heading and a cell for each outcome.
struct TableColumn {
    heading: [&'static str; 2],
    /// Higher goes first when the table is too wide.
    dispensable: u8,
    cell: Box<dyn Fn(&RunOutcome) -> String>,
}

impl TableColumn {
    fn new(
        heading: [&'static str; 2],
        dispensable: u8,
        cell: impl Fn(&RunOutcome) -> String + 'static,
    ) -> Self {
        Self { heading, dispensable, cell: Box::new(cell) }
    }

    fn width(&self, outcomes: &[RunOutcome]) -> usize {
        let cells = outcomes.iter().filter(|o| o.supported).map(|o| width(&(self.cell)(o)));
        cells.chain(self.heading.map(width)).max().unwrap_or(0)
    }

    fn name(&self) -> String {
        self.heading.join(" ").trim().to_owned()
    }
}

/// Returns the table without colours.
pub fn table(outcomes: &[RunOutcome]) -> String {
    table_with(outcomes, Style::default())
}

/// Returns one row an outcome, at most 100 columns wide.
pub fn table_with(outcomes: &[RunOutcome], style: Style) -> String {
    if outcomes.is_empty() {
        return "nothing was simulated\n".to_owned();
    }
    let keys = swept_keys(outcomes);
    let heads = leading(&keys, outcomes);
    let head_width = heads.iter().map(|(_, w)| w + GAP.len()).sum::<usize>();
    let (columns, left_out) = fitting(columns(outcomes), outcomes, head_width);

    let mut lines = Vec::new();
    for line in 0..2 {
        let mut text = String::new();
        for (name, w) in &heads {
            text += &(pad_right(if line == 1 { name } else { "" }, *w) + GAP);
        }
        let cells = columns.iter().map(|c| pad_left(c.heading[line], c.width(outcomes)));
        text += &cells.collect::<Vec<_>>().join(GAP);
        lines.push(paint(text.trim_end(), BOLD, style));
    }
    for (i, combination) in combinations(outcomes).iter().enumerate() {
        if i > 0 && keys.len() > 1 {
            lines.push(String::new());
        }
        let fastest = combination.outcomes.iter().position(|o| is_contender(o));
        for (row, outcome) in combination.outcomes.iter().enumerate() {
            let mut text = head(outcome, &keys, &heads);
            if outcome.supported {
                let cells = columns.iter().map(|c| pad_left(&(c.cell)(outcome), c.width(outcomes)));
                text += &cells.collect::<Vec<_>>().join(GAP);
                let ink = if fastest == Some(row) { GREEN } else { "" };
                lines.push(paint(text.trim_end(), ink, style));
            } else {
                let reason = format!(
                    "cannot run: {}",
                    outcome.reason.as_deref().unwrap_or("no reason given")
                );
                for line in wrap(&reason, WIDTH.saturating_sub(head_width).max(24)) {
                    lines.push(paint(&(text + &line), DIM, style));
                    text = " ".repeat(head_width);
                }
            }
        }
    }
    if !left_out.is_empty() {
        let note =
            format!("left out to fit {WIDTH} columns: {}; --json has them", left_out.join(", "));
        lines.extend(wrap(&note, WIDTH).iter().map(|line| paint(line, DIM, style)));
    }
    lines.join("\n") + "\n"
}

/// The columns of numbers, in reading order.
fn columns(outcomes: &[RunOutcome]) -> Vec<TableColumn> {
    let supported = || outcomes.iter().filter(|o| o.supported).map(|o| o.seconds);
    let unit = TimeUnit::common(supported());
    let smallest = supported().filter(|s| *s > 0.0).min_by(f64::total_cmp).unwrap_or(0.0);
    // The same decimals in every row: digits line up.
    let digits = decimals(smallest / unit.seconds);
    let share = |part: f64| format!("{:.0}", (part * 100.0).clamp(0.0, 100.0));
    vec![
        TableColumn::new(["", "time"], 0, move |o| {
            format!("{} {}", grouped(o.seconds / unit.seconds, digits), unit.name)
        }),
        TableColumn::new(["vs", "perfect"], 4, |o| times(quotient(o.seconds, o.perfect_seconds))),
        TableColumn::new(["vs", "bound"], 0, |o| times(quotient(o.seconds, o.bound_seconds))),
        TableColumn::new(["", "stall"], 1, |o| {
            quotient(o.stall_seconds, o.seconds).map_or_else(|| NONE.to_owned(), percent)
        }),
        TableColumn::new(["source", "epoch 1"], 3, |o| {
            o.source_bytes_per_epoch.first().map_or_else(|| NONE.to_owned(), |b| bytes(*b as f64))
        }),
        TableColumn::new(["source", "later"], 2, |o| {
            mean_later(o).map_or_else(|| NONE.to_owned(), bytes)
        }),
        TableColumn::new(["hits: local", "/peer/source"], 5, move |o| {
            let hits = [o.hit_ratio.local, o.hit_ratio.peer, o.hit_ratio.source];
            hits.map(|h| pad_left(&share(h), 3)).join("/") + "%"
        }),
        TableColumn::new(["imbalanced", "iterations"], 6, |o| percent(o.imbalanced_iterations)),
    ]
}

/// Mean source bytes of the epochs after the first.
fn mean_later(outcome: &RunOutcome) -> Option<f64> {
    let later = outcome.source_bytes_per_epoch.get(1..).filter(|later| !later.is_empty())?;
    Some(later.iter().map(|b| *b as f64).sum::<f64>() / later.len() as f64)
}

/// Swept keys and the policy: their headings and widths.
fn leading(keys: &[String], outcomes: &[RunOutcome]) -> Vec<(String, usize)> {
    let mut heads: Vec<(String, usize)> = Vec::new();
    for (key, short) in keys.iter().zip(short_keys(keys)) {
        let short = last_characters(&plain(&short), VALUE_WIDTH);
        let values = outcomes.iter().filter_map(|o| swept_value(o, key)).map(width);
        let widest = values.chain([width(&short)]).max().unwrap_or(0);
        heads.push((short, widest.min(VALUE_WIDTH)));
    }
    let widest = outcomes.iter().map(|o| width(&o.policy)).chain([6]).max().unwrap_or(6);
    heads.push(("policy".to_owned(), widest.min(POLICY_WIDTH)));
    heads
}

fn head(outcome: &RunOutcome, keys: &[String], heads: &[(String, usize)]) -> String {
    let values = keys.iter().map(|key| swept_value(outcome, key).unwrap_or(NONE));
    let cells = values.chain([outcome.policy.as_str()]).zip(heads);
    cells.map(|(value, (_, w))| pad_right(&plain(&shorten(value, *w)), *w) + GAP).collect()
}

/// Columns that fit beside the leading ones, and the names of those that do not.
fn fitting(
    mut columns: Vec<TableColumn>,
    outcomes: &[RunOutcome],
    head: usize,
) -> (Vec<TableColumn>, Vec<String>) {
    let mut left_out = Vec::new();
    loop {
        let wide: usize = columns.iter().map(|c| c.width(outcomes) + GAP.len()).sum();
        let most = columns.iter().enumerate().max_by_key(|(_, c)| c.dispensable);
        match most.map(|(i, c)| (i, c.dispensable)) {
            Some((i, dispensable)) if head + wide > WIDTH + GAP.len() && dispensable > 0 => {
                left_out.push(columns.remove(i).name());
            }
            _ => return (columns, left_out),
        }
    }
}

fn paint(text: &str, ink: &str, style: Style) -> String {
    if style.colour && !ink.is_empty() { format!("{ink}{text}{RESET}") } else { text.to_owned() }
}

/// A label from a file must not steer the terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A key's end tells more than its beginning.
fn last_characters(text: &str, limit: usize) -> String {
    match width(text).checked_sub(limit) {
        None | Some(0) => text.to_owned(),
        Some(over) => "…".to_owned() + &text.chars().skip(over + 1).collect::<String>(),
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn pad_left(text: &str, to: usize) -> String {
    " ".repeat(to.saturating_sub(width(text))) + text
}

fn pad_right(text: &str, to: usize) -> String {
    text.to_owned() + &" ".repeat(to.saturating_sub(width(text)))
}

/// Lines of at most `limit` characters, broken at spaces.
fn wrap(text: &str, limit: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in plain(&text.replace(['\n', '\t'], " ")).split_whitespace() {
        let word = shorten(word, limit);
        let line = lines.last_mut().expect("starts with one line");
        if line.is_empty() {
            *line = word;
        } else if width(line) + 1 + width(&word) <= limit {
            line.push(' ');
            line.push_str(&word);
        } else {
            lines.push(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrap_keeps_words_and_limit() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("incomprehensible", 6), ["incom…"]);
    }

    #[test]
    fn long_keys_keep_their_end() {
        assert_eq!(last_characters("throughput", 4), "…put");
        assert_eq!(last_characters("put", 4), "put");
    }

    #[test]
    fn zero_seconds_give_dashes_not_nan() {
        let outcome =
            RunOutcome { policy: "belady".into(), supported: true, ..RunOutcome::default() };
        let text = table(&[outcome]);
        assert!(text.contains("0 s") && !text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn escape_sequences_in_labels_are_defused() {
        let outcome =
            RunOutcome { policy: "a\x1b[31m".into(), supported: true, ..RunOutcome::default() };
        assert!(!table(&[outcome]).contains('\x1b'));
    }

    #[test]
    fn an_empty_report_says_so() {
        assert_eq!(table(&[]), "nothing was simulated\n");
    }
}

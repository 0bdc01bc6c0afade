//! Formats numbers, bar charts and tables for a terminal.

use std::fmt::Write as _;

use belady_base::format;
pub use belady_base::format::grouped;

/// Columns of a full bar.
const BAR: usize = 48;

/// Writes one bar for each row; the longest bar has the full width.
pub fn chart(out: &mut String, rows: impl Iterator<Item = (String, f64)>) -> std::fmt::Result {
    let rows: Vec<(String, f64)> = rows.collect();
    let widest = rows.iter().map(|(label, _)| width(label)).max().unwrap_or(0);
    let most = rows.iter().map(|&(_, share)| share).fold(f64::MIN_POSITIVE, f64::max);
    for (label, share) in rows {
        let bar = bar(share / most);
        writeln!(out, "  {label:>widest$}  {bar:<BAR$}  {:>7}", percent(share))?;
    }
    Ok(())
}

/// Returns a bar with a resolution of an eighth of a column.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share * (BAR * 8) as f64).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Formats a share as a percentage with one decimal.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats a count of bytes with three significant digits: 1,234,567 as 1.23 MB.
pub fn bytes(count: u64) -> String {
    format::bytes(count as f64)
}

/// Formats a time in milliseconds, seconds or minutes.
pub fn seconds(time: f64) -> String {
    match time {
        t if t < 1.0 => format!("{:.1} ms", t * 1e3),
        t if t < 180.0 => format!("{t:.2} s"),
        t => format!("{:.1} min", t / 60.0),
    }
}

/// Returns a line of headings and a line for each row. The first column is left-aligned, the others
/// are right-aligned.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let lines: Vec<Vec<&str>> = std::iter::once(headings.to_vec())
        .chain(rows.iter().map(|row| row.iter().map(String::as_str).collect()))
        .collect();
    let widths: Vec<usize> = (0..headings.len())
        .map(|column| lines.iter().map(|line| width(line[column])).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        out += cells.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "1"], ["long name", "1,000"]].map(|row| row.map(String::from).to_vec());
        let text = table(&["name", "count"], &rows);
        assert_eq!(text, "name       count\na              1\nlong name  1,000\n");
    }
}

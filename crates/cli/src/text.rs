//! Numbers, bars and tables as a terminal shows them.

use std::fmt::Write as _;

/// Columns of a full bar.
const BAR: usize = 48;

/// One bar a row, the longest over the full width.
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

/// A bar of eighths of a column.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share * (BAR * 8) as f64).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// 1234567.8 as 1,234,567.8.
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// A size with three digits that matter: 1,234,567 as 1.23 MB.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = count as f64;
    let mut unit = 0;
    // What would round up to 1000 belongs to the next unit.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// A time in the unit that suits it.
pub fn seconds(time: f64) -> String {
    match time {
        t if t < 1.0 => format!("{:.1} ms", t * 1e3),
        t if t < 180.0 => format!("{t:.2} s"),
        t => format!("{:.1} min", t / 60.0),
    }
}

/// A line of headings and a line for each row: the first column to the left, the others to
/// the right.
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
    fn groups_digits() {
        assert_eq!(grouped(1_234_567.84, 1), "1,234,567.8");
        assert_eq!(grouped(322.9, 1), "322.9");
        assert_eq!(grouped(0.0, 0), "0");
    }

    #[test]
    fn sizes_keep_three_digits() {
        let shown = [0, 999, 1000, 1234, 99_949, 999_499, 999_500, u64::MAX].map(bytes);
        let wanted = ["0 B", "999 B", "1.00 KB", "1.23 KB", "99.9 KB", "999 KB", "1.00 MB"];
        assert_eq!(shown[..7], wanted);
        assert_eq!(shown[7], "18.4 EB");
    }

    #[test]
    fn columns_line_up() {
        let rows = [["a", "1"], ["long name", "1,000"]].map(|row| row.map(String::from).to_vec());
        let text = table(&["name", "count"], &rows);
        assert_eq!(text, "name       count\na              1\nlong name  1,000\n");
    }
}

//! Outcomes as a table, JSON or an HTML page.
//!
//! A simulation ends as a list of [`RunOutcome`]s, one for each policy and, in a sweep,
//! each combination of swept values:
//!
//! - [`table`]: aligned text for a terminal, within 100 columns;
//! - [`json`]: the outcomes as they are, for programs;
//! - [`html`]: one file with plots that needs no network.
//!
//! The report is made in two steps. [`PlotData`] decides *what* is shown: order of
//! policies, shares, densities, where an axis must break. It is plain data, which the tests pin
//! down. Drawing (`plots/`, on the small writer in `svg`) turns it into SVG. Each plot is one file
//! with both halves.
//!
//! Numbers reach the page only through `format` and `svg`, which is where text is escaped
//! and where a stray NaN becomes a dash instead of a broken picture.

mod format;
mod html;
mod json;
mod palette;
mod plots;
mod scale;
mod svg;
mod table;

pub use html::{ReportContext, html};
pub use json::json;
pub use plots::PlotData;
pub use table::{Style, table, table_with};

use crate::outcome::RunOutcome;

/// Outcomes of one combination of swept values: the whole list where nothing is swept.
struct Combination<'a> {
    sweep: &'a [(String, String)],
    /// Fastest first, then the unsupported: the order of rows in every plot.
    outcomes: Vec<&'a RunOutcome>,
}

fn combinations(outcomes: &[RunOutcome]) -> Vec<Combination<'_>> {
    let mut found: Vec<Combination<'_>> = Vec::new();
    for outcome in outcomes {
        match found.iter_mut().find(|c| c.sweep == outcome.sweep) {
            Some(combination) => combination.outcomes.push(outcome),
            None => found.push(Combination { sweep: &outcome.sweep, outcomes: vec![outcome] }),
        }
    }
    for combination in &mut found {
        combination
            .outcomes
            .sort_by(|a, b| b.supported.cmp(&a.supported).then(a.seconds.total_cmp(&b.seconds)));
    }
    found
}

/// Swept keys, in the order of the sweep.
fn swept_keys(outcomes: &[RunOutcome]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in outcomes.iter().flat_map(|o| &o.sweep) {
        if !keys.contains(key) {
            keys.push(key.clone());
        }
    }
    keys
}

/// As few of each dotted key's last parts as tell it from the others.
fn short_keys(keys: &[String]) -> Vec<String> {
    let tail = |key: &str, parts: usize| {
        let from = key.rmatch_indices('.').nth(parts - 1).map_or(0, |(dot, _)| dot + 1);
        key[from..].to_owned()
    };
    let unique = |key: &str, parts: usize| {
        keys.iter().filter(|other| tail(other, parts) == tail(key, parts)).count() == 1
    };
    let short = |key: &String| {
        let most = key.split('.').count();
        tail(key, (1..most).find(|parts| unique(key, *parts)).unwrap_or(most))
    };
    keys.iter().map(short).collect()
}

/// The outcome's value of a swept key.
fn swept_value<'a>(outcome: &'a RunOutcome, key: &str) -> Option<&'a str> {
    outcome.sweep.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
}

/// `perfect` is an ideal, not a contender: it never counts as the fastest policy.
fn is_contender(outcome: &RunOutcome) -> bool {
    outcome.supported && outcome.policy != "perfect"
}

/// `a / b` where that is a number worth printing.
fn quotient(a: f64, b: f64) -> Option<f64> {
    let q = a / b;
    (b > 0.0 && q.is_finite()).then_some(q)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keys_tell_keys_apart() {
        let keys = ["cluster.tier.1.read", "cluster.tier.2.read", "cluster.nodes", "seed"];
        assert_eq!(short_keys(&keys.map(str::to_owned)), ["1.read", "2.read", "nodes", "seed"]);
    }

    #[test]
    fn quotient_has_no_nan() {
        assert_eq!(quotient(0.0, 0.0), None);
        assert_eq!(quotient(1.0, 0.0), None);
        assert_eq!(quotient(3.0, 2.0), Some(1.5));
    }
}

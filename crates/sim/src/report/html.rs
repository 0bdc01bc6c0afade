//! The report: one HTML file that needs no other file and no network.
//!
//! It opens with the answer in a sentence, then shows the plots from the general to the
//! particular, then every figure in a table, then the scenario that was run. In a sweep the
//! sweep's own plots come first and each combination's plots are folded away.

use std::fmt::Write;

use super::format::{NONE, bytes, duration, escape, number, percent, times};
use super::palette::PolicyPalette;
use super::plots::{
    CombinationData, Figure, PlotData, balance, batches, heatmap, scaling, source, sweep, time,
};
use super::{
    Combination, combinations, is_contender, quotient, short_keys, swept_keys, swept_value,
};
use crate::outcome::RunOutcome;

const STYLE: &str = include_str!("style.css");

/// A large sweep's folded plots would make a file of many megabytes; the table has them all.
const FOLDED_COMBINATIONS: usize = 24;

/// What the report says about the run beside its outcomes.
#[derive(Clone, Debug, Default)]
pub struct ReportContext {
    /// The page's title.
    pub title: String,
    /// The scenario as it was run, shown at the end.
    pub scenario_toml: String,
    /// The command line, so that the reader can run it again.
    pub command: String,
    /// What all nodes together can cache (N·D), for the least source bytes an epoch needs.
    /// `None` where it is not known or a sweep changes it.
    pub cache_bytes: Option<u64>,
}

/// The whole page.
pub fn html(context: &ReportContext, outcomes: &[RunOutcome]) -> String {
    let data = PlotData::new(outcomes, context.cache_bytes);
    let mut page = Page { palette: PolicyPalette::new(outcomes), body: String::new(), figures: 0 };
    page.opening(context, outcomes);
    page.sweep(&data);
    page.combinations(&data);
    page.figures_table(outcomes);
    page.scenario(context);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
        escape(&context.title),
        page.body
    )
}

struct Page {
    palette: PolicyPalette,
    body: String,
    /// Figures so far: their ids must differ.
    figures: usize,
}

impl Page {
    fn push(&mut self, html: &str) {
        self.body.push_str(html);
        self.body.push('\n');
    }

    fn opening(&mut self, context: &ReportContext, outcomes: &[RunOutcome]) {
        self.push(&format!("<header>\n<h1>{}</h1>", escape(&context.title)));
        self.push(&format!("<p class=\"lead\">{}</p>", lead(outcomes)));
        if !context.command.is_empty() {
            self.push(&format!("<p class=\"from\"><code>{}</code></p>", escape(&context.command)));
        }
        self.push("</header>");
    }

    fn figure(&mut self, figure: Option<Figure>) {
        let Some(Figure { heading, caption, svg }) = figure else { return };
        self.figures += 1;
        let picture = svg.finish(&format!("figure-{}", self.figures), heading, &caption);
        let caption = escape(&caption);
        self.push(&format!(
            "<figure>\n<figcaption><h2>{heading}</h2>{caption}</figcaption>\n\
             <div class=\"scroll\">\n{picture}</div>\n</figure>"
        ));
    }

    fn sweep(&mut self, data: &PlotData) {
        let heat = data.heatmap.as_ref().and_then(|d| heatmap::draw(d, &self.palette));
        let line = data.sweep.as_ref().and_then(|d| sweep::draw(d, &self.palette));
        let scaling = data.scaling.as_ref().and_then(|d| scaling::draw(d, &self.palette));
        for figure in [heat, line, scaling] {
            self.figure(figure);
        }
    }

    fn combinations(&mut self, data: &PlotData) {
        let swept = data.combinations.len() > 1;
        if swept {
            self.push("<h2 class=\"part\">Each combination</h2>");
        }
        for combination in data.combinations.iter().take(FOLDED_COMBINATIONS) {
            if swept {
                let values = combination.sweep.iter().map(|(k, v)| format!("{k} = {v}"));
                let name = values.collect::<Vec<_>>().join(", ");
                self.push(&format!(
                    "<details class=\"fold\">\n<summary>{}</summary>",
                    escape(&name)
                ));
            }
            self.plots(combination);
            if swept {
                self.push("</details>");
            }
        }
        let rest = data.combinations.len().saturating_sub(FOLDED_COMBINATIONS);
        if rest > 0 {
            self.push(&format!(
                "<p class=\"from\">{rest} more combinations are in the table below.</p>"
            ));
        }
    }

    fn plots(&mut self, data: &CombinationData) {
        let palette = &self.palette;
        let figures = [
            time::draw(&data.time, palette),
            batches::draw(&data.batches, palette),
            balance::draw(&data.balance, palette),
            source::draw(&data.source, palette),
        ];
        for figure in figures {
            self.figure(figure);
        }
    }

    fn figures_table(&mut self, outcomes: &[RunOutcome]) {
        let keys = swept_keys(outcomes);
        self.push("<details open>\n<summary>All figures</summary>\n<div class=\"scroll\">\n<table>\n<thead>\n<tr>");
        for key in short_keys(&keys) {
            self.push(&format!("<th class=\"l\" scope=\"col\">{}</th>", escape(&key)));
        }
        self.push("<th class=\"l\" scope=\"col\">policy</th>");
        for (heading, _) in COLUMNS {
            self.push(&format!("<th scope=\"col\">{heading}</th>"));
        }
        self.push("</tr>\n</thead>\n<tbody>");
        for combination in combinations(outcomes) {
            self.rows(&combination, &keys);
        }
        self.push("</tbody>\n</table>\n</div>\n</details>");
    }

    fn rows(&mut self, combination: &Combination<'_>, keys: &[String]) {
        let fastest = combination.outcomes.iter().position(|o| is_contender(o));
        for (i, outcome) in combination.outcomes.iter().enumerate() {
            let mut row =
                if fastest == Some(i) { "<tr class=\"best\">" } else { "<tr>" }.to_owned();
            for key in keys {
                let value = escape(swept_value(outcome, key).unwrap_or(NONE));
                let _ = write!(row, "<th class=\"l\" scope=\"row\">{value}</th>");
            }
            let _ = write!(row, "<th class=\"l\" scope=\"row\">{}</th>", escape(&outcome.policy));
            if outcome.supported {
                for (_, cell) in COLUMNS {
                    let _ = write!(row, "<td>{}</td>", escape(&cell(outcome)));
                }
            } else {
                let reason = escape(outcome.reason.as_deref().unwrap_or("no reason given"));
                let _ = write!(
                    row,
                    "<td class=\"l\" colspan=\"{}\">cannot run: {reason}</td>",
                    COLUMNS.len()
                );
            }
            self.push(&(row + "</tr>"));
        }
    }

    fn scenario(&mut self, context: &ReportContext) {
        if !context.scenario_toml.is_empty() {
            let text = escape(&context.scenario_toml);
            self.push(&format!(
                "<details>\n<summary>Scenario</summary>\n<pre>{text}</pre>\n</details>"
            ));
        }
    }
}

type Cell = fn(&RunOutcome) -> String;

const COLUMNS: [(&str, Cell); 22] = [
    ("time", |o| duration(o.seconds)),
    ("× perfect", |o| times(quotient(o.seconds, o.perfect_seconds))),
    ("× bound", |o| times(quotient(o.seconds, o.bound_seconds))),
    ("stall", |o| optional(quotient(o.stall_seconds, o.seconds), percent)),
    ("preload", |o| duration(o.preload_seconds)),
    ("source bytes<br>first epoch", |o| {
        optional(o.source_bytes_per_epoch.first().map(|b| *b as f64), bytes)
    }),
    ("source bytes<br>later epochs", |o| mean_later(&o.source_bytes_per_epoch)),
    ("the least<br>possible", |o| mean_later(&o.bound_source_bytes_per_epoch)),
    ("source<br>opens", |o| number(o.source_ops_per_epoch.iter().map(|s| s.open as f64).sum())),
    ("source<br>reads", |o| number(o.source_ops_per_epoch.iter().map(|s| s.read as f64).sum())),
    ("from<br>local", |o| bytes(o.bytes.local as f64)),
    ("from<br>peers", |o| bytes(o.bytes.peer as f64)),
    ("from<br>source", |o| bytes(o.bytes.source as f64)),
    ("hits<br>local", |o| percent(o.hit_ratio.local)),
    ("hits<br>peer", |o| percent(o.hit_ratio.peer)),
    ("hits<br>source", |o| percent(o.hit_ratio.source)),
    ("imbalanced<br>iterations", |o| percent(o.imbalanced_iterations)),
    ("after the<br>first epoch", |o| percent(o.imbalanced_iterations_after_first)),
    ("straggling", |o| duration(o.straggling_seconds)),
    ("of which<br>sizes force", |o| duration(o.straggling_bound_seconds)),
    ("mean wait<br>of compute", |o| percent(o.mean_wait_share)),
    ("peer<br>misses", |o| number(o.peer_misses as f64)),
];

/// The mean of the epochs after the first.
fn mean_later(by_epoch: &[u64]) -> String {
    let later = by_epoch.get(1..).unwrap_or_default();
    optional(quotient(later.iter().map(|b| *b as f64).sum(), later.len() as f64), bytes)
}

fn optional(value: Option<f64>, format: fn(f64) -> String) -> String {
    value.map_or_else(|| NONE.to_owned(), format)
}

/// The answer in a sentence or two, escaped.
fn lead(outcomes: &[RunOutcome]) -> String {
    let all = combinations(outcomes);
    let (contenders, reordering): (Vec<&RunOutcome>, Vec<&RunOutcome>) =
        outcomes.iter().filter(|o| is_contender(o)).partition(|o| o.keeps_order);
    // Those that change what ranks read are named apart: their time buys something else.
    let (contenders, reordering) =
        if contenders.is_empty() { (reordering, vec![]) } else { (contenders, reordering) };
    let fastest = contenders.iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let Some(best) = fastest else {
        return if outcomes.iter().any(|o| o.supported) {
            "Only <b>perfect</b> ran: the time of a run that never waits for data.".to_owned()
        } else {
            "No policy can run this scenario; the reasons are below.".to_owned()
        };
    };
    let policy = escape(&best.policy);
    let mut text = if all.len() > 1 {
        let values = best.sweep.iter().map(|(k, v)| format!("{} = {}", escape(k), escape(v)));
        format!(
            "Of {} combinations the fastest is {} with <b>{policy}</b>: {}",
            all.len(),
            values.collect::<Vec<_>>().join(", "),
            duration(best.seconds)
        )
    } else if contenders.len() > 1 {
        format!(
            "<b>{policy}</b> is the fastest of {} policies that keep the order: {}",
            contenders.len(),
            duration(best.seconds)
        )
    } else {
        format!("<b>{policy}</b> takes {}", duration(best.seconds))
    };
    if let Some(ratio) = quotient(best.seconds, best.bound_seconds) {
        let _ = write!(text, ", {} the lower bound", times(Some(ratio)));
    }
    text.push('.');
    if all.len() == 1 {
        if let Some(next) = contenders
            .iter()
            .filter(|o| o.policy != best.policy)
            .min_by(|a, b| a.seconds.total_cmp(&b.seconds))
        {
            let _ =
                write!(text, " Next is {} with {}.", escape(&next.policy), duration(next.seconds));
        }
        let faster: Vec<String> = reordering
            .iter()
            .filter(|o| o.seconds < best.seconds)
            .map(|o| format!("{} ({})", escape(&o.policy), duration(o.seconds)))
            .collect();
        if !faster.is_empty() {
            let _ = write!(text, " Faster by changing what ranks read: {}.", faster.join(", "));
        }
        let cannot = outcomes.iter().filter(|o| !o.supported).count();
        if cannot > 0 {
            let _ = write!(text, " {cannot} cannot run here.");
        }
    }
    text
}

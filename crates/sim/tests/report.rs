//! The report's promises: what it shows (snapshot of its data), that it fits, that it is
//! self-contained, and that odd input does not break it.

mod report_runs;

use belady_sim::outcome::RunOutcome;
use belady_sim::report::{PlotData, ReportContext, Style, html, json, table, table_with};
use report_runs::{CACHE, all, memory_sweep, nodes_sweep, only};

fn context() -> ReportContext {
    ReportContext {
        title: "hdmlp-4 <made up>".into(),
        scenario_toml: "name = \"hdmlp-4\"\n[dataset]\nsamples = 400_000\nmean = \"3 MB\"\n".into(),
        command: "belady simulate scenarios/hdmlp-4.toml --html report.html".into(),
        cache_bytes: Some(CACHE),
    }
}

/// Renders, checks what every page must keep, and leaves the file for a look.
fn page(name: &str, outcomes: &[RunOutcome]) -> String {
    let page = html(&context(), outcomes);
    let file = format!("{}/report-{name}.html", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(file, &page).unwrap();
    for broken in ["NaN", "inf\"", "inf ", "http://", "https://", "<script", "src=", "url("] {
        assert!(!page.contains(broken), "{name} contains {broken}");
    }
    for tag in ["svg", "figure", "details", "table", "text", "tr"] {
        let opened =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{name}: <{tag}>");
    }
    for outcome in outcomes {
        let label = outcome.policy.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        assert!(page.contains(&label), "{name} lacks {label}");
    }
    page
}

fn width(text: &str) -> usize {
    text.lines().map(|l| l.chars().count()).max().unwrap_or(0)
}

#[test]
fn the_data_of_a_single_run_is_the_snapshot() {
    let some = only(&["perfect", "naive", "nopfs", "belady", "lbann-dynamic"], 4, 3);
    insta::assert_json_snapshot!("single", pinned(&PlotData::new(&some, Some(CACHE))));
}

#[test]
fn the_data_of_sweeps_is_the_snapshot() {
    let keep = |o: &RunOutcome| ["nopfs", "belady", "lbann-dynamic"].contains(&o.policy.as_str());
    let nodes: Vec<RunOutcome> = nodes_sweep().into_iter().filter(keep).collect();
    let data = PlotData::new(&nodes, None);
    insta::assert_json_snapshot!("nodes", (&data.sweep, &data.scaling));
    let data = PlotData::new(&memory_sweep(&["belady"]), None);
    insta::assert_json_snapshot!("memory", data.heatmap);
}

#[test]
fn the_table_fits_a_terminal() {
    let text = table(&all(4, 5));
    assert!(width(&text) <= 100, "{text}");
    insta::assert_snapshot!("table", text);
    for sweep in [nodes_sweep(), memory_sweep(&["nopfs", "belady"])] {
        let text = table(&sweep);
        assert!(width(&text) <= 100, "{text}");
        assert!(text.contains("×") && text.contains("belady"), "{text}");
    }
    let two_keys = table(&memory_sweep(&["belady"]));
    assert!(two_keys.contains("ram.capacity  ssd.capacity  policy"), "{two_keys}");
}

#[test]
fn the_table_has_colour_only_on_request() {
    let outcomes = all(4, 5);
    assert!(!table(&outcomes).contains('\x1b'));
    assert!(table_with(&outcomes, Style { colour: true }).contains('\x1b'));
}

#[test]
fn json_is_one_array() {
    let parsed: serde_json::Value = serde_json::from_str(&json(&all(4, 5))).unwrap();
    assert_eq!(parsed.as_array().unwrap().len(), 14);
    assert_eq!(parsed[0]["hit_ratio"]["local"], 1.0);
}

#[test]
fn page_with_all_policies() {
    let page = page("all", &all(4, 5));
    assert_eq!(page.matches("<svg").count(), 4);
    assert!(page.contains("larger than the memory of all nodes"));
}

#[test]
fn page_with_a_thousand_ranks_and_many_epochs() {
    let page = page("many", &all(1024, 90));
    assert!(page.len() < 400_000, "{} bytes", page.len());
}

#[test]
fn page_with_one_policy() {
    page("one", &only(&["belady"], 1, 1));
}

#[test]
fn page_when_nothing_can_run() {
    let page = page("none", &only(&["lbann-dynamic", "lbann-preload"], 4, 5));
    assert!(page.contains("No policy can run"));
}

#[test]
fn pages_without_numbers() {
    page("empty", &[]);
    let zero = RunOutcome { policy: "belady".into(), supported: true, ..RunOutcome::default() };
    page("zero", std::slice::from_ref(&zero));
    let nan = RunOutcome {
        seconds: f64::NAN,
        perfect_seconds: f64::INFINITY,
        bound_seconds: f64::NAN,
        stall_seconds: f64::NAN,
        imbalanced_iterations: f64::NAN,
        straggling_seconds: f64::NAN,
        slow_bytes_by_rank: vec![1, 2],
        slow_bytes_peak_over_mean: f64::NAN,
        batch_seconds_quantiles: vec![f64::NAN; 101],
        ..zero
    };
    page("nan", &[nan]);
}

#[test]
fn page_with_a_node_sweep() {
    let page = page("nodes", &nodes_sweep());
    assert!(page.contains("Strong scaling") && page.contains("efficiency"));
}

#[test]
fn page_with_a_two_key_sweep() {
    let page = page("memory", &memory_sweep(&["nopfs", "lobster", "belady", "lbann-dynamic"]));
    assert!(page.contains("Which combination is fast enough"));
}

#[test]
fn markup_in_names_stays_text() {
    let mut outcomes = only(&["nopfs", "belady", "lbann-dynamic"], 4, 2);
    let evil = "<script>alert('&')</script>";
    for outcome in &mut outcomes {
        outcome.policy = format!("{}{evil}", outcome.policy);
        outcome.reason = outcome.reason.as_ref().map(|_| evil.to_owned());
        outcome.sweep = vec![(evil.into(), evil.into())];
        outcome.bound_by = vec![evil.into()];
    }
    let context = ReportContext {
        title: evil.into(),
        scenario_toml: evil.into(),
        command: evil.into(),
        cache_bytes: None,
    };
    let page = html(&context, &outcomes);
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
}

/// The data as JSON, each density as the number of bins it fills: its shape is tested beside
/// the code.
fn pinned(data: &PlotData) -> serde_json::Value {
    let mut value = serde_json::to_value(data).unwrap();
    count_bins(&mut value);
    value
}

fn count_bins(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Array(items) => items.iter_mut().for_each(count_bins),
        serde_json::Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_array() {
                    Some(bins) if name == "density" => {
                        *field = bins.iter().filter(|b| **b != 0.0).count().into();
                    }
                    _ => count_bins(field),
                }
            }
        }
        _ => {}
    }
}

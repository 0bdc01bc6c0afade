//! `belady simulate` and `belady analyze` end to end: output and usage errors.

use std::path::PathBuf;

use assert_cmd::Command;
use serde_json::Value;

fn belady(args: &[&str]) -> Command {
    let mut command = Command::cargo_bin("belady").expect("the binary is built with its tests");
    command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).args(args);
    command
}

/// A small cluster on which every policy can run.
const SMALL: &str = r#"
name = "small"
[dataset]
samples = 4_000
mean = "1 MB"
stddev = "0.2 MB"
[training]
epochs = 3
batch = 40
drop_last = true
scheme = "uniform"
order = "torch"
seed = 7
[cluster]
nodes = 2
compute = "100 MB/s"
preprocess = "200 MB/s"
network = "1000 MB/s"
[cluster.source]
link = "500 MB/s"
throughput = [[1, "60 MB/s"], [2, "100 MB/s"]]
[[cluster.tier]]
name = "staging"
capacity = "200 MB"
threads = 4
read = [[4, "2000 MB/s"]]
[[cluster.tier]]
name = "ram"
capacity = "2500 MB"
threads = 2
read = [[2, "2000 MB/s"]]
"#;

struct Folder(tempfile::TempDir);

impl Folder {
    fn with(text: &str) -> (Self, String) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("scenario.toml");
        std::fs::write(&path, text).expect("writing the scenario");
        (Self(folder), path.to_string_lossy().into_owned())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn json(args: &[&str]) -> Vec<Value> {
    let output = belady(args).assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).expect("one JSON array")
}

/// Asserts that the command fails with exit code 2 and one sentence with all `names`.
fn refused(args: &[&str], names: &[&str]) -> String {
    let output = belady(args).assert().code(2).get_output().stderr.clone();
    let text = String::from_utf8_lossy(&output);
    assert_eq!(text.trim().lines().count(), 1, "not one sentence: {text}");
    for name in names {
        assert!(text.contains(name), "`{name}` is not named in: {text}");
    }
    assert!(!text.contains("panicked"), "{text}");
    text.into_owned()
}

#[test]
fn json_has_every_documented_field() {
    let (_folder, path) = Folder::with(SMALL);
    let outcomes = json(&["simulate", &path, "--json"]);
    assert_eq!(outcomes.len(), 14, "a scenario without policies runs them all");
    for outcome in &outcomes {
        for field in [
            "scenario",
            "policy",
            "supported",
            "reason",
            "seconds",
            "perfect_seconds",
            "bound_seconds",
            "stall_seconds",
            "epoch_seconds",
            "source_bytes_per_epoch",
            "source_ops_per_epoch",
            "bytes",
            "hit_ratio",
            "imbalanced_iterations",
            "bound_source_bytes_per_epoch",
            "straggling_seconds",
            "straggling_bound_seconds",
        ] {
            assert!(outcome.get(field).is_some(), "{field} is missing in {outcome}");
        }
        if outcome["supported"] == true {
            let epochs = outcome["epoch_seconds"].as_array().unwrap();
            let sum: f64 = epochs.iter().filter_map(Value::as_f64).sum();
            assert_eq!(epochs.len(), 3);
            assert!((sum / outcome["seconds"].as_f64().unwrap() - 1.0).abs() < 1e-9);
            let ops = &outcome["source_ops_per_epoch"][0];
            assert!(["open", "stat", "read"].iter().all(|op| ops[op].is_u64()));
        } else {
            assert!(outcome["reason"].is_string(), "{outcome}");
        }
    }
}

#[test]
fn policies_can_be_selected_and_keys_set() {
    let (_folder, path) = Folder::with(SMALL);
    let names = |outcomes: &[Value]| -> Vec<String> {
        outcomes.iter().map(|o| o["policy"].as_str().unwrap().to_owned()).collect()
    };
    let chosen = json(&["simulate", &path, "--json", "--policy", "nopfs", "--policy", "belady"]);
    assert_eq!(names(&chosen), ["nopfs", "belady"]);
    let set =
        json(&["simulate", &path, "--json", "--policy", "perfect", "--set", "training.epochs=1"]);
    assert_eq!(set[0]["epoch_seconds"].as_array().unwrap().len(), 1);
}

#[test]
fn the_same_command_gives_the_same_numbers() {
    let (_folder, path) = Folder::with(SMALL);
    let run = || {
        let mut outcomes = json(&["simulate", &path, "--json"]);
        for outcome in &mut outcomes {
            outcome["simulated_in_seconds"] = Value::Null;
        }
        outcomes
    };
    assert_eq!(run(), run());
}

#[test]
fn sweeps_run_every_combination() {
    let (_folder, path) = Folder::with(SMALL);
    let outcomes = json(&[
        "simulate",
        &path,
        "--json",
        "--policy",
        "belady",
        "--sweep",
        "cluster.nodes=1,2,4",
        "--sweep",
        "cluster.tier.ram.capacity=1 GB,2 GB",
    ]);
    assert_eq!(outcomes.len(), 6);
    assert_eq!(outcomes[5]["sweep"][0][1], "4");
    assert_eq!(outcomes[5]["sweep"][1][1], "2 GB");
}

#[test]
fn the_html_report_loads_nothing_from_the_network() {
    let (folder, path) = Folder::with(SMALL);
    let out = folder.path("report.html");
    belady(&["simulate", &path, "--html", &out.to_string_lossy()]).assert().success();
    let html = std::fs::read_to_string(out).expect("the report");
    assert!(html.contains("<svg") && html.contains("locality-aware"));
    assert!(!html.contains("src=\"http") && !html.contains("href=\"http"));
}

#[test]
fn a_report_that_cannot_be_written_is_an_error_that_names_it() {
    let (folder, path) = Folder::with(SMALL);
    let out = folder.path("no/such/folder/report.html");
    let assert =
        belady(&["simulate", &path, "--policy", "perfect", "--html", &out.to_string_lossy()])
            .assert()
            .code(1);
    let text = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(text.contains("report.html"), "{text}");
}

#[test]
fn impossible_scenarios_are_refused_in_one_sentence() {
    let (_folder, path) = Folder::with(SMALL);
    let set = |key: &str| ["simulate".to_owned(), path.clone(), "--set".to_owned(), key.to_owned()];
    for (change, names) in [
        ("cluster.nodes=0", ["cluster.nodes", "0"]),
        ("training.batch=0", ["training.batch", "0"]),
        ("training.epochs=0", ["training.epochs", "0"]),
        ("dataset.samples=0", ["dataset.samples", "0"]),
        ("training.batch=41", ["training.batch", "2"]),
        ("cluster.compute=-5 MB/s", ["cluster.compute", "negative"]),
        ("cluster.network=fast", ["cluster.network", "fast"]),
        ("cluster.tier.staging.capacity=30 MB", ["cluster.tier.staging.capacity", "batch"]),
        ("cluster.tier.ram.capacity=lots", ["cluster.tier.ram.capacity", "lots"]),
        ("dataset.mean=300 MB", ["staging", "MB"]),
        ("cluster.source.sharing=fair", ["cluster.source.sharing", "aggregate"]),
        ("cluster.sauce.link=1 MB/s", ["cluster.sauce", "cluster.source"]),
        ("training.epoch=3", ["training.epoch", "training.epochs"]),
        ("dataset.min=5 MB", ["dataset.min", "dataset"]),
    ] {
        let args = set(change);
        refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), &names);
    }
}

#[test]
fn unknown_policies_and_files_are_refused() {
    let (_folder, path) = Folder::with(SMALL);
    refused(&["simulate", &path, "--policy", "belandy"], &["belandy", "belady"]);
    let missing = refused(&["simulate", "no/such.toml"], &["no/such.toml"]);
    assert_eq!(missing.matches("No such file").count(), 1, "the reason comes once: {missing}");
    refused(&["simulate", &path, "--set", "cluster.nodes"], &["cluster.nodes"]);
    refused(&["simulate", &path, "--sweep", "cluster.nodes="], &["cluster.nodes"]);
    let (_other, broken) = Folder::with("name = \"x\"\n[dataset\n");
    refused(&["simulate", &broken], &["line 2"]);
    let (_binary, binary) = Folder::with("\0\u{1}\u{2}");
    refused(&["simulate", &binary], &["scenario.toml"]);
}

#[test]
fn analyze_prints_the_published_expectations() {
    let output = |args: &[&str]| {
        let stdout = belady(args).assert().success().get_output().stdout.clone();
        String::from_utf8_lossy(&stdout).into_owned()
    };
    let nopfs = output(&[
        "analyze",
        "--samples",
        "1281167",
        "--workers",
        "16",
        "--epochs",
        "90",
        "--delta",
        "0.8",
    ]);
    assert!(nopfs.contains("31,634.7"), "{nopfs}");
    let hdmlp = output(&[
        "analyze",
        "--samples",
        "10000",
        "--workers",
        "4",
        "--epochs",
        "1000",
        "--delta",
        "0.1",
    ]);
    assert!(hdmlp.contains("322.9"), "{hdmlp}");
}

#[test]
fn analyze_refuses_invalid_counts() {
    for args in [
        ["analyze", "--samples", "0", "--workers", "4", "--epochs", "10"],
        ["analyze", "--samples", "100", "--workers", "0", "--epochs", "10"],
        ["analyze", "--samples", "100", "--workers", "4", "--epochs", "-1"],
    ] {
        belady(&args).assert().code(2);
    }
}

#[test]
fn help_names_the_commands() {
    let output = belady(&["--help"]).assert().success().get_output().stdout.clone();
    let text = String::from_utf8_lossy(&output);
    for command in ["simulate", "analyze", "read", "ls", "cache", "environment"] {
        assert!(text.contains(&format!("\n  {command} ")), "{command} is not in: {text}");
    }
}

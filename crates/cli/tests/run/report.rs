//! The reports and metrics of a run.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::Value;

use crate::common::Folder;
use crate::{READ_AND_WAIT, belady, folder, let_end, sh};

fn json(folder: &Folder, script: &str) -> Value {
    folder.belady(&sh(&["--report-json", "report.json"], script)).assert().code(4);
    let text = std::fs::read(folder.path("report.json")).expect("the report");
    serde_json::from_slice(&text).expect("one JSON object")
}

#[test]
fn the_second_run_reads_copies_and_the_report_counts_them() {
    let folder = folder();
    let first = json(&folder, &format!("{READ_AND_WAIT}; exit 4"));
    let bytes = 1000 + 1001 + 1002;
    assert_eq!(first["exit_status"], 4);
    assert_eq!(first["copied"]["files"], 3, "{first}");
    assert_eq!(first["copied"]["bytes"], bytes);
    assert!(first["source"]["opens"].as_u64().is_some_and(|opens| opens >= 3), "{first}");
    // The last open of each file.
    assert_eq!(first["levels"][0]["used"]["opens"], 3);
    assert_eq!(first["levels"][0]["used"]["bytes_opened"], bytes);
    let second = json(&folder, "cat photos/*/* photos/*/* > read; exit 4");
    let level = &second["levels"][0];
    assert_eq!((&level["name"], &level["quota"]), (&"cache".into(), &1_000_000.into()));
    assert_eq!((&level["files"], &level["bytes"]), (&3.into(), &bytes.into()), "{second}");
    assert_eq!(level["used"]["opens"], 6);
    assert_eq!(level["used"]["bytes_opened"], 2 * bytes);
    assert_eq!(second["source"]["opens"], 0);
    assert_eq!(second["copied"]["files"], 0);
    for count in ["refused", "failed", "dropped", "lost"] {
        assert_eq!(second[count], 0, "{count} of {second}");
    }
    let never =
        sh(&["--revalidate", "never", "--report-json", "report.json"], "cat photos/*/*; exit 4");
    folder.belady(&never).assert().code(4);
    let text = std::fs::read_to_string(folder.path("report.json")).expect("the report");
    let third: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(third["source"]["stats"], 0, "{third}");
}

#[test]
fn the_table_follows_the_programs_standard_error() {
    let folder = folder();
    folder.text(&sh(&[], READ_AND_WAIT));
    let script = "cat photos/*/* > read; echo its own >&2; exit 3";
    let output = folder.belady(&sh(&["--report"], script)).assert().code(3).get_output().clone();
    assert!(output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "its own");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(lines[1]), words("level files held of opens stats bytes opened"));
    assert_eq!(words(lines[2])[..7], words("cache 3 3.00 KB 1.00 MB 3")[..], "{text}");
    assert_eq!(words(lines[3])[..2], words("source 0")[..], "{text}");
    assert!(text.contains("the program ended with status 3 after"), "{text}");
    assert!(text.contains("copied 0 files, 0 B, in"), "{text}");
    assert!(text.contains("the part that was read is not known"), "{text}");
}

#[test]
fn files_that_fit_no_level_are_counted_and_others_still_copied() {
    let folder = folder();
    folder.write("photos/big.bin", &vec![7; 50_000]);
    let script = "cat photos/big.bin photos/cat/* > read
        until readlink /proc/self/fd/9 9< photos/cat/0000.bin | grep -q /cache/; do sleep 0.02; done
        cmp photos/big.bin copy; exit 4";
    folder.write("copy", &vec![7; 50_000]);
    let args = ["run", "--data", "photos", "--cache", "cache:20KB", "--threads", "1"];
    let more = ["--report-json", "report.json", "--", "sh", "-c", script];
    folder.belady(&[&args[..], &more].concat()).assert().code(4);
    let text = std::fs::read_to_string(folder.path("report.json")).expect("the report");
    let report: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(
        (&report["refused"], &report["copied"]["files"]),
        (&1.into(), &1.into()),
        "{report}"
    );
}

#[test]
fn metrics_are_served_during_the_run() {
    let folder = folder();
    let script = format!("{READ_AND_WAIT}; echo ready; until [ -e end ]; do sleep 0.02; done");
    let mut command = belady(&folder, &sh(&["--metrics", "127.0.0.1:0"], &script));
    command.env("BELADY_METRICS_TOKEN", "sesame").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let place = said.next().expect("a line").expect("UTF-8");
    let address = place
        .strip_prefix("metrics at http://")
        .and_then(|rest| rest.strip_suffix("/metrics"))
        .unwrap_or_else(|| panic!("{place}"));
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut String::new()).expect("ready");
    let mut stream = TcpStream::connect(address).expect("the port is open");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer sesame\r\n\r\n")
        .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    for line in [
        "belady_run_opens_total{location=\"level\",level=\"cache\"} 3",
        "belady_run_bytes_total{location=\"level\",level=\"cache\"} 3003",
        "# TYPE belady_run_stats_total counter",
        "belady_run_quota_bytes{level=\"cache\"} 1000000",
        "# TYPE belady_run_held_bytes gauge",
        "belady_run_copied_files_total 3",
        "belady_run_copied_bytes_total 3003",
    ] {
        assert!(answer.lines().any(|seen| seen == line), "`{line}` is not in {answer}");
    }
    let_end(&folder);
    assert!(child.wait().expect("a status").success());
}

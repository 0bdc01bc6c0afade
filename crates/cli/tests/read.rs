//! `belady read` and `belady ls` end to end.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use common::{Folder, content};
use serde_json::Value;

fn sum(report: &Value, key: &str) -> u64 {
    let epochs = report["epochs"].as_array().expect("epochs");
    epochs.iter().map(|epoch| epoch[key].as_u64().unwrap_or_else(|| panic!("{key}"))).sum()
}

#[test]
fn json_has_every_documented_field() {
    let folder = Folder::new();
    folder.class_folders(100);
    let report = folder.json(&[
        "read",
        "photos",
        "--batch",
        "7",
        "--epochs",
        "3",
        "--staging",
        "1MB",
        "--cache",
        "ram:60KB",
        "--cache",
        "cache:1MB",
        "--json",
    ]);
    for key in [
        "epochs",
        "first_batch_ms",
        "wait_us",
        "boundary_wait_us",
        "peak_rss",
        "anonymous_peak",
        "cpu_seconds",
        "wall_seconds",
        "order_ok",
        "tiers",
        "policy",
    ] {
        assert!(report.get(key).is_some(), "{key} is missing in {report}");
    }
    assert_eq!(report["order_ok"], true);
    assert_eq!(report["policy"], "belady");
    let epochs = report["epochs"].as_array().expect("epochs");
    assert_eq!(epochs.len(), 3);
    let bytes: u64 = (0..100).map(|at| 1000 + at).sum();
    for (at, epoch) in epochs.iter().enumerate() {
        assert_eq!(epoch["epoch"], at);
        assert_eq!((&epoch["samples"], &epoch["bytes"]), (&100.into(), &bytes.into()));
        assert!(epoch["seconds"].as_f64() >= epoch["stall_seconds"].as_f64());
        assert_eq!(epoch["first_wait_us"].is_u64(), at > 0, "{epoch}");
        assert!(epoch["source_opens"].is_u64() && epoch["source_reads"].is_u64());
    }
    let places = ["source_bytes", "ram_bytes", "disk_bytes", "ring_bytes"];
    let came: u64 = places.iter().map(|key| sum(&report, key)).sum();
    assert!(came >= 3 * bytes, "{report}");
    assert!(sum(&report, "source_bytes") < 3 * bytes, "the caches hold the dataset: {report}");
    let kinds: Vec<&Value> =
        report["tiers"].as_array().expect("tiers").iter().map(|tier| &tier["kind"]).collect();
    assert_eq!(kinds, ["ram", "disk"]);
    for times in ["wait_us", "boundary_wait_us"] {
        let [p50, p99, max] = ["p50", "p99", "max"].map(|key| report[times][key].as_u64());
        assert!(p50 <= p99 && p99 <= max && max.is_some(), "{report}");
    }
}

#[test]
fn every_format_order_and_policy_delivers_the_expected_order() {
    let folder = Folder::new();
    folder.class_folders(50);
    folder.write("records/a.bin", &content(1, 64 * 30));
    folder.write("records/b.bin", &content(2, 64 * 20));
    for (dataset, format) in [("photos", "folder"), ("photos", "flat"), ("records", "records:64")] {
        for order in ["torch", "permutation", "sequential"] {
            let report = folder.json(&[
                "read",
                dataset,
                "--format",
                format,
                "--order",
                order,
                "--batch",
                "8",
                "--epochs",
                "2",
                "--drop-last",
                "--threads",
                "3",
                "--staging",
                "4MB",
                "--json",
            ]);
            assert_eq!(report["order_ok"], true, "{format} {order}");
            assert_eq!(sum(&report, "samples"), 96, "{format} {order}");
        }
    }
    for policy in ["belady", "nopfs", "staging", "naive", "monarch", "lru", "lobster"] {
        let report = folder.json(&[
            "read",
            "photos",
            "--policy",
            policy,
            "--epochs",
            "2",
            "--batch",
            "8",
            "--cache",
            "ram:30KB",
            "--staging",
            "4MB",
            "--json",
            "--lend",
        ]);
        assert_eq!((&report["order_ok"], &report["policy"]), (&true.into(), &policy.into()));
    }
}

#[test]
fn a_consumer_with_a_rate_takes_at_least_its_time() {
    let folder = Folder::new();
    folder.class_folders(60);
    let report = folder.json(&["read", "photos", "--batch", "6", "--consume", "1MB/s", "--json"]);
    let (bytes, seconds) = (sum(&report, "bytes"), report["epochs"][0]["seconds"].as_f64());
    assert!(seconds >= Some(bytes as f64 / 1e6), "{report}");
}

#[test]
fn the_system_file_provides_defaults_of_options() {
    let folder = Folder::new();
    folder.class_folders(30);
    folder.write(
        "system.toml",
        br#"
        [cluster]
        snapshot = false
        [cluster.source]
        throughput = [[1, "100 MB/s"]]
        [[cluster.tier]]
        name = "staging"
        capacity = "2 MB"
        threads = 3
        read = [[3, "10 GB/s"]]
        [[cluster.tier]]
        name = "ram"
        capacity = "20 KB"
        threads = 1
        read = [[1, "10 GB/s"]]
        [[cluster.tier]]
        name = "ssd"
        capacity = "3 MB"
        threads = 1
        read = [[1, "1 GB/s"]]
        path = "ssd"
    "#,
    );
    let args = ["read", "photos", "--batch", "8", "--epochs", "2", "--json"];
    let described = folder.json(&[&args[..], &["--system", "system.toml"]].concat());
    let tiers = &described["tiers"];
    assert_eq!((&tiers[0]["kind"], &tiers[0]["capacity"]), (&"ram".into(), &20_000.into()));
    assert_eq!((&tiers[1]["kind"], &tiers[1]["capacity"]), (&"disk".into(), &3_000_000.into()));
    assert!(folder.path("ssd").exists(), "a relative path starts at the file's folder");
    assert!(!folder.path("snapshots").exists(), "the file turns snapshots off");
    let output = folder
        .belady(&[&args[..], &["--cache", "ram:9KB"]].concat())
        .env("BELADY_SYSTEM", "system.toml")
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let typed: Value = serde_json::from_slice(&output).expect("JSON");
    assert_eq!(typed["tiers"].as_array().map(Vec::len), Some(1));
    assert_eq!(typed["tiers"][0]["capacity"], 9000);
}

/// Writes TFRecords, some of them damaged.
fn records(folder: &Folder, count: usize, is_damaged: impl Fn(usize) -> bool) {
    let masked = |bytes: &[u8]| crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8);
    let mut file = vec![];
    for at in 0..count {
        let payload = content(at, 100);
        let length = (payload.len() as u64).to_le_bytes();
        file.extend_from_slice(&length);
        file.extend_from_slice(&masked(&length).to_le_bytes());
        file.extend_from_slice(&payload);
        let checksum = masked(&payload) ^ u32::from(is_damaged(at));
        file.extend_from_slice(&checksum.to_le_bytes());
    }
    folder.write("records/train.tfrecord", &file);
}

/// Regression test: every warning was a line.
#[test]
fn many_equal_warnings_are_a_few_lines_and_a_count() {
    let folder = Folder::new();
    records(&folder, 80, |at| at >= 10);
    let args = ["read", "records", "--batch", "4", "--retries", "0", "--bad-samples", "skip"];
    let mut command = folder.belady(&args);
    let output = command.output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    let warnings = told.lines().filter(|line| line.contains("bad sample")).count();
    assert!(output.status.success() && warnings <= 6, "{told}");
    assert!(told.contains("and 65 more of the same"), "{told}");
}

#[test]
fn bad_samples_end_the_run_or_are_skipped_or_replaced() {
    let folder = Folder::new();
    records(&folder, 20, |at| at == 2);
    let args = ["read", "records", "--batch", "4", "--retries", "1", "--staging", "1MB"];
    let with = |choice| [&args[..], &["--json", "--bad-samples", choice]].concat();
    folder.refuses(1, &with("raise"), &["sample 2", "train.tfrecord", "damaged"]);
    let skipped = folder.json(&with("skip"));
    assert_eq!((&skipped["order_ok"], sum(&skipped, "samples")), (&true.into(), 19));
    assert_eq!(skipped["bad_samples"]["skipped"], 1);
    let replaced = folder.json(&with("replace"));
    assert_eq!((&replaced["order_ok"], sum(&replaced, "samples")), (&true.into(), 20));
    assert_eq!(replaced["bad_samples"]["replaced"], 1);
    assert!(folder.text(&[&args[..], &["--bad-samples", "skip"]].concat()).contains("1 skipped"));
}

#[test]
fn the_summary_names_every_epoch() {
    let folder = Folder::new();
    folder.class_folders(20);
    let text = folder.text(&["read", "photos", "--epochs", "2", "--throttle", "1:50MB/s"]);
    let rows: Vec<&str> = text.lines().take(3).collect();
    assert!(rows[0].starts_with("epoch") && rows[0].contains("source"), "{text}");
    assert!(rows[1].starts_with("1 ") && rows[2].starts_with("2 "), "{text}");
    assert!(text.contains("every epoch was in the expected order"), "{text}");
}

#[test]
fn a_trace_is_written() {
    let folder = Folder::new();
    folder.class_folders(20);
    folder.text(&["read", "photos", "--trace", "trace"]);
    assert!(std::fs::metadata(folder.path("trace")).expect("the trace").len() > 0);
    folder.refuses(1, &["read", "photos", "--trace", "no/such/trace"], &["no/such/trace"]);
}

#[test]
fn metrics_are_served_during_the_run_to_clients_with_the_token() {
    let folder = Folder::new();
    folder.class_folders(60);
    let args =
        ["read", "photos", "--batch", "4", "--consume", "10KB/s", "--metrics", "127.0.0.1:0"];
    folder.refuses(2, &args, &["--metrics 127.0.0.1:0", "BELADY_METRICS_TOKEN"]);
    for place in ["9464", ":9464", "127.0.0.1:http", "127.0.0.1:70000"] {
        folder.refuses(2, &["read", "photos", "--metrics", place], &[place, "ADDRESS:PORT"]);
    }
    let program = folder.belady(&[]).get_program().to_owned();
    let mut child = std::process::Command::new(program)
        .args(args)
        .current_dir(folder.path(""))
        .env("BELADY_SNAPSHOTS", folder.path("snapshots"))
        .env("BELADY_METRICS_TOKEN", "secret")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("belady starts");
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    stderr.read_line(&mut line).expect("where the metrics are");
    let address = line.trim().strip_prefix("metrics at http://").expect(&line);
    let address = address.strip_suffix("/metrics").expect(&line);
    let ask = |token: &str| {
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("an answer");
        reply
    };
    assert!(ask("guess").starts_with("HTTP/1.1 401 "));
    let reply = ask("secret");
    child.kill().expect("it still runs");
    child.wait().expect("it ends");
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    assert!(reply.contains("\nbelady_delivered_samples_total "), "{reply}");
}

#[test]
fn a_usage_error_is_one_sentence_that_names_the_option() {
    let folder = Folder::new();
    folder.class_folders(10);
    std::fs::create_dir(folder.path("empty")).expect("a folder");
    folder.write("system.toml", b"[cluster]\nserving_threads = 0\n");
    folder.write("tables/0.parquet", b"PAR1");
    folder.write("hollow/cat/1.jpg", b"x");
    std::fs::create_dir(folder.path("hollow/dog")).expect("a folder");
    let read = |args: &[&'static str]| [&["read", "photos"], args].concat();
    for (args, parts) in [
        (vec!["read", "nothing"], vec!["nothing"]),
        (vec!["read", "empty"], vec!["empty", "no samples"]),
        (read(&["--format", "zip"]), vec!["zip", "tfrecord"]),
        (read(&["--format", "records:0"]), vec!["records:0"]),
        (read(&["--format", "records:7MB"]), vec!["photos", "shorter than a record"]),
        (read(&["--extensions", "jpg"]), vec!["photos", "no files that count"]),
        (vec!["ls", "tables"], vec!["tables/0.parquet", "does not read"]),
        (vec!["read", "hollow"], vec!["hollow", "(dog)", "--allow-empty"]),
        (read(&["--batch", "0"]), vec!["--batch", "at least 1"]),
        (read(&["--batch", "11", "--drop-last"]), vec!["--batch 11", "--drop-last"]),
        (read(&["--epochs", "-1"]), vec!["--epochs", "at least 1"]),
        (read(&["--threads", "few"]), vec!["--threads", "auto"]),
        (read(&["--staging", "1KB"]), vec!["staging", "need"]),
        (read(&["--cache", "ram"]), vec!["--cache", "ram:2GiB"]),
        (read(&["--cache", "ram:much"]), vec!["--cache", "much"]),
        (read(&["--policy", "perfect"]), vec!["perfect", "simulator"]),
        (read(&["--throttle", "fast"]), vec!["--throttle", "fast"]),
        (read(&["--consume", "3MB"]), vec!["--consume", "MB/s"]),
        (read(&["--read-timeout", "0s"]), vec!["--read-timeout", "1 ms"]),
        (read(&["--system", "none.toml"]), vec!["none.toml"]),
        (read(&["--system", "system.toml"]), vec!["system.toml", "cluster.serving_threads"]),
        (read(&["--no-snapshot", "--snapshots", "x"]), vec!["--no-snapshot", "--snapshots"]),
    ] {
        folder.refuses(2, &args, &parts);
    }
    assert!(!folder.path("x").exists());
}

#[test]
fn ls_counts_samples_bytes_and_classes() {
    let folder = Folder::new();
    folder.class_folders(31);
    let listed = folder.json(&["ls", "photos", "--json"]);
    let bytes: u64 = (0..31).map(|at| 1000 + at).sum();
    assert_eq!((&listed["samples"], &listed["bytes"]), (&31.into(), &bytes.into()));
    assert_eq!((&listed["smallest"], &listed["largest"]), (&1000.into(), &1030.into()));
    assert_eq!(listed["format"], "folder");
    assert_eq!(listed["classes"][0], serde_json::json!({ "name": "cat", "samples": 11 }));
    let sizes = listed["sizes"].as_array().expect("sizes");
    assert_eq!(sizes.iter().map(|row| row["samples"].as_u64().unwrap()).sum::<u64>(), 31);
    let text = folder.text(&["ls", "photos", "--format", "flat", "--no-snapshot"]);
    assert!(text.contains("samples   31\n") && text.contains("snapshot  none\n"), "{text}");
    assert!(text.contains("512 B to 1 KiB") && !text.contains("classes"), "{text}");
    folder.refuses(2, &["ls", "nothing"], &["nothing"]);
}

#[test]
fn ls_counts_the_files_that_extensions_name() {
    let folder = Folder::new();
    for file in ["cat/1.jpg", "cat/1.txt", "dog/2.JPG", "dog/2.npy"] {
        folder.write(&format!("mixed/{file}"), b"x");
    }
    let samples = |args: &[&'static str]| {
        let args = [&["ls", "mixed", "--json", "--no-snapshot"], args].concat();
        folder.json(&args)["samples"].as_u64().expect("a number")
    };
    assert_eq!(samples(&[]), 2, "only images, as in ImageFolder");
    assert_eq!(samples(&["--extensions", "jpg,.NPY"]), 3);
    assert_eq!(samples(&["--extensions", ""]), 4);
    assert_eq!(samples(&["--extensions", "txt", "--allow-empty"]), 1);
}

#[test]
fn ls_prints_the_path_of_the_snapshot() {
    let folder = Folder::new();
    folder.class_folders(6);
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_hours(1);
    for name in ["photos", "photos/cat", "photos/dog", "photos/owl"] {
        // A folder that has changed just now gets no snapshot.
        let directory = std::fs::File::open(folder.path(name)).expect("a folder");
        directory.set_modified(long_ago).expect("its time");
    }
    let listed = folder.json(&["ls", "photos", "--json", "--snapshots", "here"]);
    let snapshot = listed["snapshot"].as_str().expect("a path");
    assert!(snapshot.starts_with("here/") && folder.path(snapshot).exists(), "{snapshot}");
}

#[test]
fn the_environment_is_listed_without_its_secrets() {
    let folder = Folder::new();
    let output = folder
        .belady(&["environment"])
        .env("BELADY_METRICS_TOKEN", "hush")
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let text = String::from_utf8(output).expect("UTF-8");
    assert!(text.contains("BELADY_METRICS_TOKEN=(set)") && !text.contains("hush"), "{text}");
    let help = folder.text(&["help", "environment"]);
    for name in ["BELADY_SYSTEM", "BELADY_SNAPSHOTS", "BELADY_METRICS_TOKEN", "BELADY_LOG"] {
        assert!(text.contains(name) && help.contains(name), "{name}");
    }
}

#[test]
fn local_ranks_read_every_sample_once_through_one_cache() {
    let folder = Folder::new();
    folder.class_folders(96);
    let read = |ranks: &str, batch: &str| {
        let job = ["read", "photos", "--batch", batch, "--epochs", "3", "--cache", "ram:60KB"];
        let ranks = ["--local-ranks", ranks, "--barrier", "--staging", "40KB", "--json"];
        folder.json(&[&job[..], &ranks[..]].concat())
    };
    let report = read("4", "3");
    assert_eq!((&report["order_ok"], &report["local_ranks"]), (&true.into(), &4.into()));
    let bytes: u64 = (0..96).map(|at| 1000 + at).sum();
    for epoch in report["epochs"].as_array().expect("epochs") {
        assert_eq!((&epoch["samples"], &epoch["bytes"]), (&96.into(), &bytes.into()));
    }
    // The first epoch, and then what neither the cache nor the staging buffers hold; each rank may
    // have to read a sample more.
    let most = bytes + 2 * (bytes - 60_000) + 2 * 4 * 1095;
    assert!(sum(&report, "source_bytes") <= most, "{report}");
}

#[test]
fn transformed_batches_come_in_order_and_count_the_bytes_that_were_read() {
    let folder = Folder::new();
    folder.class_folders(40);
    let steps = r#"[{"op": "Raw", "dtype": "uint8", "shape": [null]}]"#;
    folder.write("steps.json", steps.as_bytes());
    for steps in [steps, "steps.json"] {
        let job = ["read", "photos", "--batch", "3", "--epochs", "2", "--json", "--transform"];
        let report = folder.json(&[&job[..], &[steps, "--local-ranks", "2"]].concat());
        assert_eq!(report["order_ok"], true, "{report}");
        let bytes: u64 = (0..40).map(|at| 1000 + at).sum();
        for epoch in report["epochs"].as_array().expect("epochs") {
            assert_eq!((&epoch["samples"], &epoch["bytes"]), (&40.into(), &bytes.into()));
        }
    }
    for (steps, part) in [
        ("nowhere.json", "cannot read the steps in nowhere.json"),
        (r#"[{"op": "Rew"}]"#, "Rew"),
        (r#"[{"op": "Int"}, {"op": "Int"}]"#, "step 2"),
    ] {
        folder.refuses(2, &["read", "photos", "--transform", steps], &[part]);
    }
}

#[test]
fn steps_of_ranks_in_step_are_counted_once_each() {
    let folder = Folder::new();
    folder.class_folders(48);
    let job = ["read", "photos", "--batch", "3", "--epochs", "2", "--local-ranks", "4"];
    let report = folder.json(&[&job[..], &["--barrier", "--consume", "1MB/s", "--json"]].concat());
    for epoch in report["epochs"].as_array().expect("epochs") {
        assert_eq!(epoch["steps"], 4, "{epoch}");
        assert!(epoch["imbalanced_steps"].as_u64().expect("a count") <= 4, "{epoch}");
        let lost = epoch["straggling_seconds"].as_f64().expect("a time");
        assert!((0.0..=epoch["seconds"].as_f64().expect("a time")).contains(&lost), "{epoch}");
    }
    // Ranks that are not in step have no steps of which one is the slowest.
    let report = folder.json(&[&job[..], &["--json"]].concat());
    assert!(report["epochs"][0]["steps"].is_null(), "{report}");
}

//! `belady read --ranks` and `belady top` as processes that meet on this machine.

#[allow(dead_code, reason = "not every test file needs all of it")]
mod common;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use common::Folder;
use serde_json::Value;

const RANKS: usize = 3;

struct Job {
    folder: Folder,
    place: String,
    key: PathBuf,
}

impl Job {
    fn new() -> Self {
        let folder = Folder::new();
        folder.class_folders(96);
        let key = folder.write("key", "ab".repeat(32).as_bytes());
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).expect("ours");
        Self { folder, place: free_place(), key }
    }

    /// One rank, with what all have and its own options.
    fn rank(&self, rank: usize, options: &[&str]) -> Child {
        let rank = rank.to_string();
        let ranks = RANKS.to_string();
        let mut command = self.command();
        command.args(["read", "photos", "--batch", "4", "--epochs", "3", "--staging", "1MB"]);
        command.args(["--cache", "ram:60KB", "--rank", &rank, "--ranks", &ranks]);
        command.args(["--meet", &self.place, "--json", "--checksum", "--barrier"]);
        command.arg("--key-file").arg(&self.key).args(options);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin("belady"));
        command.current_dir(self.folder.path("."));
        command.env("BELADY_SNAPSHOTS", self.folder.path("snapshots"));
        for name in ["BELADY_SYSTEM", "BELADY_LOG", "BELADY_KEY", "BELADY_MEET"] {
            command.env_remove(name);
        }
        command
    }

    fn all(&self, options: &[&str]) -> Vec<Value> {
        let ranks: Vec<Child> = (0..RANKS).map(|rank| self.rank(rank, options)).collect();
        ranks.into_iter().map(|rank| report(&rank.wait_with_output().expect("it ends"))).collect()
    }
}

/// One that nobody has now. Somebody may take it before we do, but hardly within a test.
fn free_place() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

fn report(output: &Output) -> Value {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

fn sum(reports: &[Value], epoch: usize, key: &str) -> u64 {
    let of = |report: &Value| report["epochs"][epoch][key].as_u64().expect("a number");
    reports.iter().map(of).sum()
}

#[test]
fn ranks_are_one_cache_and_read_the_source_once() {
    let job = Job::new();
    let reports = job.all(&[]);
    let whole: u64 = (0..96).map(|at| 1000 + at).sum();
    assert_eq!(sum(&reports, 0, "source_bytes"), whole);
    for epoch in 0..3 {
        assert_eq!(sum(&reports, epoch, "bytes"), whole, "each sample once");
    }
    for epoch in 1..3 {
        assert_eq!(sum(&reports, epoch, "source_bytes"), 0, "{reports:#?}");
    }
    assert!(sum(&reports, 0, "pushed_bytes") > 0);
    for (rank, report) in reports.iter().enumerate() {
        assert_eq!((&report["rank"], &report["ranks"]), (&rank.into(), &RANKS.into()));
        assert_eq!(report["order_ok"], true);
        assert_eq!((&report["peers"]["nodes"], &report["peers"]["down"]), (&2.into(), &0.into()));
    }
    // Only rank 0 has looked at what there is.
    let operations = |rank: usize| reports[rank]["source_operations"]["list"].as_u64();
    assert!(operations(0) > Some(0));
    assert_eq!((operations(1), operations(2)), (Some(0), Some(0)));
    // Another policy gives the same bytes in the same order.
    let sums = |reports: &[Value]| -> Vec<Value> {
        reports.iter().map(|report| report["checksum"].clone()).collect()
    };
    let again = Job { place: free_place(), ..job };
    assert_eq!(sums(&reports), sums(&again.all(&["--policy", "lru"])));
}

#[test]
fn top_sees_all_ranks_and_only_with_the_key() {
    let job = Job::new();
    // They go on until somebody has looked.
    let slow = ["--consume", "1KB/s"];
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| job.rank(rank, &slow)).collect();
    let top = |key: &PathBuf| {
        let mut command = job.command();
        command.args(["top", "--once", "--meet", &job.place, "--key-file"]).arg(key);
        command.output().expect("it starts")
    };
    let told = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    // The meeting point opens when rank 0 is there, and ranks tell something when they have begun.
    let table = loop {
        let output = top(&job.key);
        let text = told(&output);
        if output.status.success() && text.matches("  up  ").count() == RANKS {
            break text;
        }
        let ended = ranks.iter_mut().find_map(|rank| rank.try_wait().expect("ours"));
        assert!(ended.is_none(), "a rank ended before anybody saw it: {text}");
    };
    assert!(table.starts_with("rank") && table.contains("ram full"), "{table}");
    assert!(table.contains("2/2"), "everybody reaches everybody: {table}");
    let wrong = job.folder.write("wrong", "cd".repeat(32).as_bytes());
    std::fs::set_permissions(&wrong, PermissionsExt::from_mode(0o600)).expect("ours");
    let refused = top(&wrong);
    let sentence = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && sentence.contains("key"), "{sentence}");
    for mut rank in ranks {
        rank.kill().expect("ours");
        rank.wait().expect("it ends");
    }
}

#[test]
fn mistakes_are_told_in_a_sentence() {
    let folder = Folder::new();
    folder.class_folders(3);
    let read = |options: &[&'static str], parts: &[&str]| {
        folder.refuses(2, &[&["read", "photos"], options].concat(), parts);
    };
    read(&["--ranks", "4"], &["which rank this process is", "--rank"]);
    read(&["--rank", "0"], &["--ranks"]);
    read(&["--barrier"], &["--ranks"]);
    read(&["--ranks", "two"], &["whole number", "`auto`"]);
    let one = |options: &[&'static str], parts: &[&str]| {
        folder.refuses(1, &[&["read", "photos"], options].concat(), parts);
    };
    one(&["--ranks", "2", "--rank", "1", "--meet", "localhost:1"], &["needs a key", "BELADY_KEY"]);
    one(&["--ranks", "2", "--rank", "1", "--meet", "localhost"], &["names no port"]);
    one(&["--ranks", "4", "--rank", "4", "--meet", "h:1"], &["--rank 4 is not below --ranks 4"]);
    folder.refuses(2, &["top"], &["--meet HOST:PORT"]);
    folder.refuses(2, &["top", "--meet", "localhost:1"], &["needs a key"]);
}

//! `belady read --ranks` and `belady top` with several processes on this machine.

#[allow(dead_code, reason = "not every test file needs all of it")]
mod common;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

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

    /// Starts one rank, with the common options and its own.
    fn rank(&self, rank: usize, options: &[&str]) -> Child {
        self.rank_by(self.command(), rank, options)
    }

    /// Starts one rank by a command that ends with the program's name.
    fn rank_by(&self, mut command: Command, rank: usize, options: &[&str]) -> Child {
        let rank = rank.to_string();
        let ranks = RANKS.to_string();
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
        self.outputs(options).iter().map(report).collect()
    }

    fn outputs(&self, options: &[&str]) -> Vec<Output> {
        let ranks: Vec<Child> = (0..RANKS).map(|rank| self.rank(rank, options)).collect();
        ranks.into_iter().map(|rank| rank.wait_with_output().expect("it ends")).collect()
    }
}

/// Returns a different address each time.
fn free_place() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(20_464);
    format!("{}:{}", own_loopback(), NEXT.fetch_add(1, Ordering::Relaxed))
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
fn ranks_share_their_caches_and_read_the_source_once() {
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
    // Only rank 0 has listed the dataset.
    let operations = |rank: usize| reports[rank]["source_operations"]["list"].as_u64();
    assert!(operations(0) > Some(0));
    assert_eq!((operations(1), operations(2)), (Some(0), Some(0)));
    // Another policy delivers the same bytes in the same order.
    let sums = |reports: &[Value]| -> Vec<Value> {
        reports.iter().map(|report| report["checksum"].clone()).collect()
    };
    let again = Job { place: free_place(), ..job };
    assert_eq!(sums(&reports), sums(&again.all(&["--policy", "lru"])));
}

#[test]
fn top_shows_all_ranks_and_needs_the_key() {
    let job = Job::new();
    // Slow enough to run until `top` has queried them.
    let slow = ["--consume", "1KB/s"];
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| job.rank(rank, &slow)).collect();
    let top = |key: &PathBuf| {
        let mut command = job.command();
        command.args(["top", "--once", "--meet", &job.place, "--key-file"]).arg(key);
        command.output().expect("it starts")
    };
    let told = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    // Rank 0 opens the rendezvous, and ranks publish after they have begun.
    let table = loop {
        let output = top(&job.key);
        let text = told(&output);
        if output.status.success() && text.matches("  up  ").count() == RANKS {
            break text;
        }
        let ended = ranks.iter_mut().find_map(|rank| rank.try_wait().expect("ours"));
        assert!(ended.is_none(), "a rank ended before `top` showed it: {text}");
    };
    assert!(table.starts_with("rank") && table.contains("ram full"), "{table}");
    assert!(table.contains("2/2"), "every rank reaches all others: {table}");
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

/// Waits for a line on standard error with all of these parts, then kills the process.
fn says(mut process: Child, parts: &[&str]) {
    let lines = BufReader::new(process.stderr.take().expect("piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    let found = lines.any(|line| parts.iter().all(|part| line.contains(part)));
    process.kill().expect("ours");
    process.wait().expect("it ends");
    assert!(found, "no line has {parts:?}");
}

/// Regression test: rank 0 listened at the address of `--bind` instead of the one that the other
/// ranks connect to, and these waited without a message.
#[test]
fn bind_does_not_change_the_rendezvous_address() {
    let job = Job::new();
    for report in job.all(&["--bind", "127.0.0.2"]) {
        assert_eq!(report["peers"]["down"], 0);
    }
}

#[test]
fn a_rank_that_cannot_reach_the_rendezvous_names_its_address_and_the_error() {
    let job = Job::new();
    says(job.rank(1, &[]), &["rank 0 of 3", &job.place, "Connection refused"]);
}

#[test]
fn a_missing_rank_is_named_while_others_wait_for_it() {
    let job = Job::new();
    let [server, client] = [0, 1].map(|rank| job.rank(rank, &[]));
    says(client, &["rank 2 of 3 did not come", &job.place, "still waiting", "peers=None"]);
    says(server, &["did not come", "2 of 3", &job.place, "still waiting", "peers=None"]);
}

#[test]
fn each_rank_of_a_machine_serves_metrics_at_its_own_port() {
    let job = Job::new();
    // Only the rank of a port in use reports it, and no other rank is affected.
    let host = own_loopback();
    let taken = TcpListener::bind((host, METRICS + 1)).expect("no other program has this address");
    let address = format!("{host}:{METRICS}");
    let ranks = (0..RANKS).map(|rank| {
        let mut command = job.command();
        command.env("BELADY_METRICS_TOKEN", "secret");
        job.rank_by(command, rank, &["--metrics", &address])
    });
    let ranks: Vec<Child> = ranks.collect();
    for (rank, process) in ranks.into_iter().enumerate() {
        let output = process.wait_with_output().expect("it ends");
        report(&output);
        let told = String::from_utf8_lossy(&output.stderr);
        let own = METRICS + rank as u16;
        if rank == 1 {
            assert!(told.contains(&format!("cannot serve metrics at {host}:{own}")), "{told}");
            assert!(told.contains("continues without"), "{told}");
        } else {
            assert!(told.contains(&format!("metrics at http://{host}:{own}/")), "{told}");
        }
    }
    drop(taken);
}

/// The first of several ports outside of the system's ephemeral range.
const METRICS: u16 = 19_464;

/// Returns an address of the loopback interface that only this test process uses, so its ports are
/// free.
fn own_loopback() -> Ipv4Addr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high, middle, low)
}

#[test]
fn a_rank_without_a_port_for_metrics_continues() {
    let job = Job::new();
    let address = format!("{}:65534", own_loopback());
    let ranks = (0..RANKS).map(|rank| {
        let mut command = job.command();
        command.env("BELADY_METRICS_TOKEN", "secret");
        job.rank_by(command, rank, &["--metrics", &address])
    });
    let ranks: Vec<Child> = ranks.collect();
    for (rank, process) in ranks.into_iter().enumerate() {
        let output = process.wait_with_output().expect("it ends");
        report(&output);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(rank == 2, told.contains("leaves no port for process 2"), "{told}");
    }
}

/// Regression test: a rank that was killed was shown as up, and a directory needed a key.
#[test]
fn top_shows_a_killed_rank_as_silent_and_needs_no_key_for_a_directory() {
    let mut job = Job::new();
    job.place = job.folder.path("meeting").display().to_string();
    let slow = ["--consume", "1KB/s"];
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| job.rank(rank, &slow)).collect();
    let table = |wanted: &str, ranks: &mut [Child]| loop {
        let mut command = job.command();
        let output = command.args(["top", "--once", "--meet", &job.place]).output();
        let output = output.expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() && text.lines().any(|line| line.contains(wanted)) {
            break text;
        }
        let first = ranks[0].try_wait().expect("ours");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(first.is_none(), "rank 0 ended before {wanted} was seen: {text}{told}");
    };
    table("up", &mut ranks);
    ranks[2].kill().expect("ours");
    let table = table("silent", &mut ranks);
    let silent: Vec<&str> = table.lines().filter(|line| line.contains("silent")).collect();
    assert!(silent.len() == 1 && silent[0].starts_with('2'), "{table}");
    for mut rank in ranks {
        let _ = rank.kill();
        rank.wait().expect("it ends");
    }
}

/// Regression test: with 38 descriptors a rank of eight failed, since connections had used those
/// that its reads needed.
#[test]
fn ranks_with_few_descriptors_read_the_whole_dataset() {
    const MANY: usize = 8;
    let job = Job::new();
    let belady = assert_cmd::cargo::cargo_bin("belady");
    let meeting = job.folder.path("meeting");
    let rank = |rank: usize| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 38; exec \"$0\" \"$@\""]).arg(&belady);
        command.current_dir(job.folder.path("."));
        command.env("BELADY_SNAPSHOTS", job.folder.path("snapshots"));
        let (rank, ranks) = (rank.to_string(), MANY.to_string());
        command.args(["read", "photos", "--batch", "1", "--epochs", "3", "--staging", "1MB"]);
        command.args(["--cache", "ram:4KB", "--rank", &rank, "--ranks", &ranks, "--json"]);
        command.arg("--meet").arg(&meeting);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let ranks: Vec<Child> = (0..MANY).map(rank).collect();
    for process in ranks {
        let report = report(&process.wait_with_output().expect("it ends"));
        assert_eq!(report["order_ok"], true);
    }
}

#[test]
fn a_usage_error_is_one_sentence_that_names_the_option() {
    let folder = Folder::new();
    folder.class_folders(3);
    let read = |options: &[&'static str], parts: &[&str]| {
        folder.refuses(2, &[&["read", "photos"], options].concat(), parts);
    };
    read(&["--ranks", "4"], &["rank of this process is not known", "--rank"]);
    read(&["--rank", "0"], &["--ranks"]);
    read(&["--barrier"], &["--ranks"]);
    read(&["--seed", "abc"], &["--seed", "whole number"]);
    read(&["--ranks", "two"], &["whole number", "`auto`"]);
    read(&["--ranks", "2", "--rank", "1", "--meet", "localhost:1"], &["needs a key", "BELADY_KEY"]);
    read(&["--ranks", "2", "--rank", "1", "--meet", "localhost"], &["names no port"]);
    read(&["--ranks", "4", "--rank", "4", "--meet", "h:1"], &["--rank 4 must be below --ranks 4"]);
    folder.refuses(2, &["top"], &["--meet HOST:PORT"]);
    folder.refuses(
        1,
        &["top", "--once", "--meet", "./photos"],
        &["no job of yours meets in ./photos"],
    );
    folder.refuses(2, &["top", "--meet", "localhost:1"], &["needs a key"]);
}

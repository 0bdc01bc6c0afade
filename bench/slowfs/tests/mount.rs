//! The binary, mounted: bytes, counters and the way out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use belady_testing::not_run;

const FAST: &str = "1:10GB/s";

struct Mounted {
    process: Child,
    at: PathBuf,
}

impl Mounted {
    /// Returns `None` on a machine without FUSE, and records that the test did not run.
    fn new(source: &Path, at: &Path, options: &[&str]) -> Option<Self> {
        fs::create_dir(at).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_slowfs"))
            .args([source, at])
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut mounted = Self { process, at: at.to_owned() };
        while fs::read(at.join(".slowfs-stats")).is_err() {
            if mounted.process.try_wait().unwrap().is_some() {
                let mut message = String::new();
                let mut stderr = mounted.process.stderr.take().unwrap();
                std::io::Read::read_to_string(&mut stderr, &mut message).unwrap();
                assert!(message.contains("cannot mount at"), "{message}");
                eprintln!("{message}");
                not_run("no FUSE");
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
        Some(mounted)
    }

    fn stats(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.at.join(".slowfs-stats")).unwrap()).unwrap()
    }

    fn terminate(&self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Harmless if it has ended; without it a failed test would leave a mount behind.
        let pid = self.process.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).stderr(Stdio::null()).status();
        let _ = self.process.wait();
    }
}

fn dataset(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = [
        ("empty", 0),
        ("small", 1),
        ("class/110k", 110_000),
        // More than a kernel request, which is at most a mebibyte.
        ("class/deeper/3m", 3_000_001),
    ];
    let content = |size: u32| (0..size).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8);
    files
        .into_iter()
        .map(|(name, size)| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let bytes: Vec<u8> = content(size).collect();
            fs::write(&path, &bytes).unwrap();
            (name.into(), bytes)
        })
        .collect()
}

#[test]
fn shows_the_same_bytes_and_counts_what_it_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let files = dataset(&source);
    let at = folder.path().join("mount");
    let Some(mounted) = Mounted::new(&source, &at, &["--throughput", FAST]) else { return };

    let mut listed: Vec<_> =
        fs::read_dir(&at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    listed.sort();
    assert_eq!(listed, ["class", "empty", "small"]);
    for (name, bytes) in &files {
        assert_eq!(&fs::read(at.join(name)).unwrap(), bytes, "{}", name.display());
    }
    assert!(fs::write(at.join("new"), "x").is_err(), "it is read-only");
    assert!(fs::read(at.join("missing")).is_err());

    let stats = mounted.stats();
    let total: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(stats["bytes"], total);
    assert_eq!(stats["open"], files.len());
    assert!(stats["read"].as_u64().unwrap() >= files.len() as u64);
    assert_eq!(stats["opendir"], 1);
    // Attributes are asked for once, and the counters do not count themselves.
    for (name, _) in &files {
        fs::metadata(at.join(name)).unwrap();
    }
    let later = mounted.stats();
    for operation in ["lookup", "getattr", "open", "read", "bytes"] {
        assert_eq!(stats[operation], later[operation], "{operation}");
    }
}

#[test]
fn direct_reads_come_through_again_and_cached_ones_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    dataset(&source);
    for (name, options, twice) in [
        ("direct", ["--throughput", FAST].as_slice(), true),
        ("cached", ["--throughput", FAST, "--page-cache"].as_slice(), false),
    ] {
        let at = folder.path().join(name);
        let Some(mounted) = Mounted::new(&source, &at, options) else { return };
        let file = at.join("class/110k");
        fs::read(&file).unwrap();
        let once = mounted.stats()["bytes"].as_u64().unwrap();
        assert_eq!(once, 110_000);
        fs::read(&file).unwrap();
        let expected = if twice { 2 * once } else { once };
        assert_eq!(mounted.stats()["bytes"], expected, "{name}");
    }
}

#[test]
fn names_and_attributes_are_asked_for_each_time_where_the_kernel_may_not_keep_them() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    dataset(&source);
    let at = folder.path().join("mount");
    let options = ["--throughput", FAST, "--metadata-cache", "0s"];
    let Some(mounted) = Mounted::new(&source, &at, &options) else { return };
    let asked = || {
        let stats = mounted.stats();
        let of = |name: &str| stats[name].as_u64().unwrap();
        (of("lookup") + of("getattr"), of("open"), of("read"))
    };
    let before = asked();
    for _ in 0..10 {
        fs::metadata(at.join("class/110k")).unwrap();
    }
    let after = asked();
    assert!(after.0 >= before.0 + 10, "{before:?} {after:?}");
    assert_eq!((after.1, after.2), (before.1, before.2), "a stat is neither open nor read");
    fs::read(at.join("class/110k")).unwrap();
    assert_eq!(asked().1, after.1 + 1);
    // Looking at the counters changes none.
    assert_eq!(asked(), asked());
}

#[test]
fn sigterm_unmounts_and_writes_the_counters() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    dataset(&source);
    let at = folder.path().join("mount");
    let counters = folder.path().join("counters.json");
    let options = ["--throughput", FAST, "--stats", counters.to_str().unwrap()];
    let Some(mut mounted) = Mounted::new(&source, &at, &options) else { return };
    fs::read(at.join("small")).unwrap();
    // An open file does not stand in the way; its reader may finish.
    let open = fs::File::open(at.join("class/110k")).unwrap();
    mounted.terminate();
    while at.join("small").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    let mut content = Vec::new();
    std::io::Read::read_to_end(&mut &open, &mut content).unwrap();
    assert_eq!(content.len(), 110_000);
    drop(open);
    assert!(mounted.process.wait().unwrap().success());
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(&counters).unwrap()).unwrap();
    assert_eq!(stats["bytes"], 110_001);
}

#[test]
fn refuses_a_source_that_is_not_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["missing", "file"] {
        fs::write(folder.path().join("file"), "x").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_slowfs"))
            .arg(folder.path().join(name))
            .arg(folder.path())
            .args(["--throughput", FAST])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("cannot show") && message.contains(name), "{message}");
    }
}

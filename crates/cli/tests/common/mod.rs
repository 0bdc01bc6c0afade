//! Helpers that make small datasets and run the command on them.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::Value;

/// A temporary folder with a test's files and the snapshots of its datasets.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
        std::fs::write(&path, content).expect("a small file");
        path
    }

    /// Writes `count` files of 1000, 1001, ... bytes into three class folders.
    pub fn class_folders(&self, count: usize) {
        for at in 0..count {
            let class = ["cat", "dog", "owl"][at % 3];
            self.write(&format!("photos/{class}/{at:04}.bin"), &content(at, 1000 + at));
        }
    }

    pub fn belady(&self, args: &[&str]) -> Command {
        let mut command = Command::cargo_bin("belady").expect("the binary is built with its tests");
        command.current_dir(self.0.path()).args(args);
        command.env("BELADY_SNAPSHOTS", self.path("snapshots"));
        for name in
            ["BELADY_SYSTEM", "BELADY_METRICS_TOKEN", "BELADY_LOG", "BELADY_KEY", "BELADY_MEET"]
        {
            command.env_remove(name);
        }
        command
    }

    pub fn json(&self, args: &[&str]) -> Value {
        let output = self.belady(args).assert().success().get_output().stdout.clone();
        serde_json::from_slice(&output).expect("one JSON value")
    }

    pub fn text(&self, args: &[&str]) -> String {
        let output = self.belady(args).assert().success().get_output().stdout.clone();
        String::from_utf8(output).expect("UTF-8")
    }

    /// Asserts that the command fails with this status and a sentence with all these parts.
    #[track_caller]
    pub fn refuses(&self, status: i32, args: &[&str], parts: &[&str]) {
        let output = self.belady(args).assert().code(status).get_output().stderr.clone();
        let text = String::from_utf8_lossy(&output);
        assert!(text.starts_with("error: "), "{args:?}: {text}");
        assert!(!text.contains("panicked"), "{args:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{args:?}: `{part}` is not in: {text}");
        }
    }
}

/// Returns bytes that differ for each seed.
pub fn content(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + seed * 7) as u8).collect()
}

#[allow(dead_code, reason = "not every test file walks a folder")]
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = vec![];
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

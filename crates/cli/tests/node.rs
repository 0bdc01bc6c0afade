//! `belady node`: an engine that outlives jobs.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use common::Folder;
use serde_json::Value;

/// A folder with a directory of sockets of its own; stops the engine at its end.
struct Node {
    folder: Folder,
    sockets: String,
}

impl Node {
    fn new() -> Self {
        let folder = Folder::new();
        let sockets = folder.path("sockets").display().to_string();
        Self { folder, sockets }
    }

    fn belady(&self, args: &[&str]) -> assert_cmd::Command {
        let mut command = self.folder.belady(args);
        command.env("BELADY_NODE_DIR", &self.sockets);
        command
    }

    fn says(&self, args: &[&str]) -> String {
        let output = self.belady(args).assert().success().get_output().stdout.clone();
        String::from_utf8(output).expect("UTF-8")
    }

    /// Asserts that the command fails with a sentence that contains this.
    #[track_caller]
    fn refuses(&self, args: &[&str], part: &str) {
        let output = self.belady(args).assert().failure().get_output().stderr.clone();
        let text = String::from_utf8_lossy(&output);
        assert!(text.starts_with("error: ") && text.contains(part), "{args:?}: {text}");
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.says(&["node", "status", "--json"])).expect("JSON")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // There may be none.
        let _ = self.belady(&["node", "stop"]).output();
    }
}

#[test]
fn an_engine_is_started_once_shown_and_stopped() {
    let node = Node::new();
    assert_eq!(node.says(&["node", "status"]), "no engine of this user runs on this machine\n");
    node.refuses(&["node", "stop"], "no engine of this node runs");
    let started = node.says(&["node", "start", "--cache", "ram:1MiB"]);
    assert!(started.starts_with("started process "), "{started}");
    node.refuses(&["node", "start", "--cache", "ram:1MiB"], "runs already");
    let status = node.status();
    let pid = status[0]["pid"].as_u64().expect("a process");
    assert_eq!((&status[0]["stays"], &status[0]["programs"]), (&true.into(), &0.into()));
    assert!(node.says(&["node", "status"]).contains(&pid.to_string()));
    assert_eq!(node.says(&["node", "stop"]), format!("stopped process {pid}\n"));
    // The path goes with the process, which the status waits for by connecting to it.
    while !node.status().as_array().expect("a list").is_empty() {
        std::thread::yield_now();
    }
    node.says(&["node", "start", "--cache", "ram:1MiB"]);
}

#[test]
fn an_engine_that_cannot_start_is_refused_with_its_reason() {
    let node = Node::new();
    node.refuses(&["node", "start"], "--cache");
    let missing = ["node", "start", "--cache", "ram:1MiB", "--system", "nowhere.toml"];
    node.refuses(&missing, "nowhere.toml");
    assert_eq!(node.status(), Value::Array(vec![]));
}

#[test]
fn the_sockets_are_where_only_their_user_can_enter() {
    let node = Node::new();
    node.says(&["node", "start", "--cache", "ram:1MiB"]);
    let mode = |path: &Path| path.metadata().expect("it exists").permissions().mode() & 0o777;
    assert_eq!(mode(Path::new(&node.sockets)), 0o700);
    let long = "d".repeat(120);
    let mut too_long = node.belady(&["node", "start", "--cache", "ram:1MiB"]);
    too_long.env("BELADY_NODE_DIR", node.folder.path(&long));
    let output = too_long.assert().failure().get_output().stderr.clone();
    assert!(String::from_utf8_lossy(&output).contains("a socket's has 107 at most"));
    let file = node.folder.write("file", b"");
    let mut no_directory = node.belady(&["node", "status"]);
    no_directory.env("BELADY_NODE_DIR", file);
    let output = no_directory.assert().failure().get_output().stderr.clone();
    assert!(String::from_utf8_lossy(&output).contains("it is not a directory"));
}

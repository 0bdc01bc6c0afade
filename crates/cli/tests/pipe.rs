//! `belady ... | head` succeeds.
#![cfg(unix)]

use std::process::{Command, Stdio};

fn status_after_the_reader_left(arguments: &[&str]) -> (Option<i32>, String) {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let mut child = Command::new(env!("CARGO_BIN_EXE_belady"))
        .args(arguments)
        .current_dir(root)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("belady starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("belady ends");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_closed_pipe_ends_the_command_without_an_error() {
    for arguments in [
        &["simulate", "scenarios/nopfs-mnist.toml", "--policy", "perfect", "--json"][..],
        &["simulate", "scenarios/nopfs-mnist.toml", "--policy", "perfect"],
        &["analyze", "--samples", "1000", "--workers", "2", "--epochs", "3"],
        &["analyze", "--samples", "1000", "--workers", "2", "--epochs", "3", "--json"],
        &["ls", "scenarios", "--format", "flat", "--no-snapshot"],
        &["read", "scenarios", "--format", "flat", "--no-snapshot"],
        &["read", "scenarios", "--format", "flat", "--no-snapshot", "--json"],
        &["environment"],
    ] {
        assert_eq!(status_after_the_reader_left(arguments), (Some(0), String::new()));
    }
}

//! Helpers of tests: [`certificates`], and a record of tests that cannot run on this machine.
//!
//! A test that needs something that the machine lacks (FUSE, root, a terminal) calls [`not_run`]
//! and returns. The test then passes and its output is captured. So `make test` names a file in the
//! variable [`FILE`], and `scripts/not_run.py` prints at the end what Rust and Python tests have
//! written there.

pub mod certificates;

use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;

/// The variable that names the file. A line has a reason, a tab and a test.
pub const FILE: &str = "BELADY_TEST_NOT_RUN";

/// Records that the calling test, or a part of it, does not run, and why.
#[track_caller]
pub fn not_run(reason: &str) {
    let test = format!("{}: {}", Location::caller().file(), test_name());
    eprintln!("not run: {test}: {reason}");
    let Some(file) = std::env::var_os(FILE) else { return };
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    // One write, because other processes append to the same file.
    let line = format!("{reason}\t{test}\n");
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .and_then(|mut file| file.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", file.display()));
}

/// Returns the name of this thread's test. A process with a single test runs it on the main thread,
/// and its name is an argument.
fn test_name() -> String {
    match std::thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => {
            std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set in the process that the test below starts.
    const INNER: &str = "BELADY_TEST_NOT_RUN_INNER";

    #[test]
    fn inner() {
        if std::env::var_os(INNER).is_some() {
            not_run("there is\tno FUSE\nhere");
        }
    }

    #[test]
    fn a_test_that_cannot_run_is_recorded_with_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("not-run");
        // Like nextest, and like `cargo test`.
        for threads in ["1", "2"] {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["tests::inner", "--exact", "--test-threads", threads])
                .env(INNER, "1")
                .env(FILE, &file)
                .status()
                .unwrap();
            assert!(status.success());
        }
        let line = "there is no FUSE here\tcrates/testing/src/lib.rs: tests::inner\n";
        assert_eq!(std::fs::read_to_string(&file).unwrap(), line.repeat(2));
    }
}

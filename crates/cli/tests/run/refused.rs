//! A usage error is one sentence with the right status, and the program is not started.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::common::Folder;
use crate::{RUN, belady, folder};

/// Asserts that the command fails with this status, and returns its standard error.
#[track_caller]
fn said(folder: &Folder, mut command: Command, status: i32) -> String {
    let output = command.output().expect("the command runs");
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(output.stdout.is_empty(), "something was printed");
    assert!(!folder.path("started").exists(), "the program was started: {said}");
    said
}

/// Returns the one-sentence error for these options.
#[track_caller]
fn sentence(folder: &Folder, options: &[&str]) -> String {
    let args = [&["run"], options, &["--", "touch", "started"]].concat();
    let said = said(folder, belady(folder, &args), 2);
    let sentence = said.strip_prefix("error: ").unwrap_or_else(|| panic!("{said}"));
    assert_eq!(sentence.trim_end().lines().count(), 1, "{said}");
    sentence.trim_end().to_owned()
}

#[test]
fn a_dataset_that_is_not_a_directory_is_refused() {
    let folder = folder();
    folder.write("file", b"");
    symlink("round", folder.path("go")).expect("a link");
    symlink("go", folder.path("round")).expect("a link");
    for (dataset, wanted) in [
        ("nothing", "the dataset nothing does not exist"),
        ("file", "the dataset file is not a directory"),
        ("go", "the dataset go is a loop of symbolic links"),
    ] {
        let said = sentence(&folder, &["--data", dataset, "--cache", "cache:1MB"]);
        assert_eq!(said, wanted);
        assert!(!folder.path("cache").exists(), "{dataset}");
    }
}

#[test]
fn a_cache_that_overlaps_the_dataset_is_refused() {
    let folder = folder();
    symlink("photos", folder.path("other-name")).expect("a link");
    for cache in ["photos", "photos/cache", "other-name", "other-name/cache", "./photos/../photos"]
    {
        let said = sentence(&folder, &["--data", "photos", "--cache", &format!("{cache}:1MB")]);
        let wanted = "it is inside the dataset; give a directory elsewhere, on a local disk";
        assert_eq!(said, format!("the cache {cache} cannot be used: {wanted}"));
    }
    assert!(!folder.path("photos/cache").exists());
    let said = sentence(&folder, &["--data", "photos", "--cache", ".:1MB"]);
    assert_eq!(
        said,
        "the cache . cannot be used: it contains the dataset; give a directory that does not"
    );
}

#[test]
fn a_cache_larger_than_the_memory_is_refused() {
    let folder = folder();
    let said = sentence(&folder, &["--data", "photos", "--cache", "ram:900TB"]);
    assert!(said.starts_with("the cache ram cannot be used: "), "{said}");
    assert!(said.contains(" do not fit: ") && said.ends_with("; ask for less"), "{said}");
}

#[test]
fn a_cache_that_is_a_file_or_is_given_twice_is_refused() {
    let folder = folder();
    folder.write("file", b"");
    let said = sentence(&folder, &["--data", "photos", "--cache", "file:1MB"]);
    assert_eq!(said, "the cache file cannot be used: it is not a directory");
    let twice = ["--data", "photos", "--cache", "cache:1MB", "--cache", "./cache/:2MB"];
    let said = sentence(&folder, &twice);
    assert!(
        said.ends_with("cache cannot be used: it is given twice; remove one of them"),
        "{said}"
    );
    let twice = ["--data", "photos", "--cache", "ram:1MB", "--cache", "ram:2MB"];
    let said = sentence(&folder, &twice);
    assert_eq!(said, "--cache ram is given more than once: give it once, with the total size");
}

#[test]
fn an_invalid_order_file_is_refused() {
    let folder = folder();
    folder.write("empty", b"\n");
    folder.write("elsewhere", b"cat/0000.bin\n/etc/passwd\n");
    for (file, wanted) in [
        ("nothing", "--order: nothing cannot be read: No such file or directory (os error 2)"),
        (
            "empty",
            "--order: empty lists no file; write names of files below the dataset, one per line",
        ),
        (
            "elsewhere",
            "--order: line 2 of elsewhere: `/etc/passwd` is not below the dataset; write names below it, \
             one per line",
        ),
    ] {
        let options = ["--data", "photos", "--cache", "cache:1MB", "--order", file];
        assert_eq!(sentence(&folder, &options), wanted);
    }
}

/// Returns the command, run by an unprivileged user if the test runs as root.
fn unprivileged(folder: &Folder, options: &[&str]) -> Command {
    let args = [&["run"], options, &["--", "touch", "started"]].concat();
    let mut command = belady(folder, &args);
    if std::fs::metadata("/proc/self").is_ok_and(|facts| {
        use std::os::unix::fs::MetadataExt as _;
        facts.uid() == 0
    }) {
        let unprivileged = 65_534;
        command.uid(unprivileged).gid(unprivileged);
    }
    command
}

#[test]
fn a_directory_without_permission_is_refused() {
    let folder = folder();
    let mode = |name: &str, mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.path(name), mode).expect("a mode");
    };
    std::fs::create_dir(folder.path("closed")).expect("a folder");
    std::fs::create_dir(folder.path("open")).expect("a folder");
    mode("", 0o755);
    mode("closed", 0o500);
    mode("open", 0o777);
    let command = unprivileged(&folder, &["--data", "photos", "--cache", "closed/cache:1MB"]);
    let denied = "error: the cache closed/cache cannot be used: permission to write is denied\n";
    assert_eq!(said(&folder, command, 2), denied);
    mode("photos", 0o000);
    let command = unprivileged(&folder, &["--data", "photos", "--cache", "open/cache:1MB"]);
    assert_eq!(
        said(&folder, command, 2),
        "error: the dataset photos cannot be read: permission denied\n"
    );
    mode("photos", 0o755);
    mode("closed", 0o755);
}

#[test]
fn a_report_file_or_metrics_port_that_cannot_be_opened_is_refused() {
    let folder = folder();
    let base = ["--data", "photos", "--cache", "cache:1MB"];
    let with = |more: &[&'static str]| [&base, more].concat();
    let said = sentence(&folder, &with(&["--report-json", "nowhere/report.json"]));
    assert!(said.starts_with("--report-json nowhere/report.json cannot be written"), "{said}");
    let said = sentence(&folder, &with(&["--metrics", "127.0.0.1:0"]));
    assert!(said.contains("needs a token: set BELADY_METRICS_TOKEN"), "{said}");
    // The prepared job is removed, so the cache is not in use.
    assert_eq!(folder.json(&["cache", "ls", "cache", "--json"])[0]["in_use"], false);
}

#[test]
fn missing_and_invalid_options_are_refused() {
    let folder = folder();
    for (options, part) in [
        (&["--cache", "cache:1MB"][..], "--data"),
        (&["--data", "photos"], "--cache"),
        (&["--data", "photos", "--cache", "cache"], "a cache is a place and a size"),
        (&["--data", "photos", "--cache", "cache:0"], "has size 0"),
        (&["--data", "photos", "--cache", "cache:1MB", "--threads", "0"], "at least 1"),
        (
            &["--data", "photos", "--cache", "cache:1MB", "--revalidate", "maybe"],
            "start, open, never",
        ),
        (&["--data", "photos", "--cache", "cache:1MB", "--order", "o", "--learn"], "--learn"),
    ] {
        let args = [&["run"], options, &["--", "touch", "started"]].concat();
        let said = said(&folder, belady(&folder, &args), 2);
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    for program in [&[][..], &["touch", "started"], &["--"]] {
        let said = said(&folder, belady(&folder, &[&RUN, program].concat()), 2);
        assert!(said.contains("-- <PROGRAM>"), "{said}");
    }
    assert!(!folder.path("cache").exists());
}

#[test]
fn a_program_that_cannot_be_run_sets_the_shells_exit_status() {
    let folder = folder();
    folder.write("text", b"no program");
    for (program, status, wanted) in [
        ("no-such-program", 127, "there is no program `no-such-program`"),
        ("./text", 126, "`./text` cannot be run: Permission denied"),
    ] {
        let said = said(&folder, belady(&folder, &[&RUN, &["--", program][..]].concat()), status);
        assert!(said.starts_with(&format!("error: {wanted}")), "{said}");
    }
}

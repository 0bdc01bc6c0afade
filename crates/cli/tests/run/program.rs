//! A program under `belady run` behaves as it does alone: status, input, output, environment,
//! signals.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use crate::common::content;
use crate::{READ_AND_WAIT, RUN, Running, belady, folder, is_empty, let_end, sh};

#[test]
fn the_command_exits_with_the_programs_status() {
    let folder = folder();
    for (script, status) in [("exit 0", 0), ("exit 1", 1), ("exit 255", 255)] {
        folder.belady(&sh(&[], script)).assert().code(status);
    }
}

#[test]
fn the_command_ends_by_the_signal_that_ended_the_program() {
    let folder = folder();
    for (name, signal) in [("KILL", 9), ("TERM", 15), ("INT", 2), ("SEGV", 11)] {
        let script = format!("ulimit -c 0; kill -{name} $$");
        let ended = belady(&folder, &sh(&[], &script)).status().expect("the command runs");
        assert_eq!((ended.signal(), ended.code()), (Some(signal), None), "{name}");
        assert!(!ended.core_dumped(), "{name}");
    }
}

#[test]
fn a_limit_of_file_sizes_is_the_programs() {
    let folder = folder();
    // In blocks of 512 bytes: less than a file of the dataset, or than the board.
    let script = format!("{READ_AND_WAIT}; ulimit -f; ulimit -Hf; head -c 2000 /dev/zero > large");
    let of_shell = "ulimit -Sf 1; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", of_shell, env!("CARGO_BIN_EXE_belady")]).args(sh(&[], &script));
    let ended = command.current_dir(folder.path("")).output().expect("sh runs");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "1\nunlimited\n");
    assert!(!ended.status.success(), "the program's write is refused");
    assert_eq!(std::fs::metadata(folder.path("large")).expect("a file").len(), 512);
}

#[test]
fn a_hard_limit_of_file_sizes_stops_copies_and_not_the_program() {
    let folder = folder();
    let read = "cat photos/*/* | wc -c; head -c 2000 /dev/zero > large; echo $?";
    let limited = "ulimit -f 1; exec \"$0\" \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_belady")]).args(sh(&[], read));
    let ended = command.current_dir(folder.path("")).output().expect("sh runs");
    let out = String::from_utf8_lossy(&ended.stdout).into_owned();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    // Where the board is larger than the limit, nothing is copied and one sentence says so.
    assert!(out.starts_with("3003\n") && !out.ends_with("\n0\n"), "{out}{said}");
}

#[test]
fn the_metrics_token_does_not_reach_the_program() {
    let folder = folder();
    let script = "env | grep -c TOKEN; echo ready";
    let mut command = belady(&folder, &sh(&["--metrics", "127.0.0.1:0"], script));
    let ended = command.env("BELADY_METRICS_TOKEN", "secret").output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "0\nready\n");
}

#[test]
fn a_cache_larger_than_the_free_space_is_told_and_used() {
    let folder = folder();
    let script = format!("{READ_AND_WAIT}; cat photos/cat/0000.bin | wc -c");
    let run = ["run", "--data", "photos", "--cache", "cache:900TB", "--", "sh", "-c", &script];
    let ended = belady(&folder, &run).output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "1000\n", "{said}");
    assert!(said.starts_with("belady: the cache cache has space for "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_metrics_port_in_use_is_told_and_the_program_runs() {
    let folder = folder();
    let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = held.local_addr().expect("its address").to_string();
    let mut command = belady(&folder, &sh(&["--metrics", &address], "echo ran"));
    let ended = command.env("BELADY_METRICS_TOKEN", "secret").output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "ran\n", "{said}");
    assert!(said.contains(&address) && said.lines().count() == 1, "{said}");
}

#[test]
fn the_programs_input_and_output_are_unchanged() {
    let folder = folder();
    let bytes = content(5, 300_000);
    let cat = [&RUN, &["--report", "--", "cat"][..]].concat();
    let output = folder.belady(&cat).write_stdin(bytes.clone()).assert().success();
    assert!(output.get_output().stdout == bytes, "cat gave other bytes");
    let script = "cat photos/*/*; echo to errors >&2";
    let output = folder.belady(&sh(&[], script)).assert().success();
    let all = (0..3).flat_map(|at| content(at, 1000 + at)).collect::<Vec<u8>>();
    assert!(output.get_output().stdout == all, "cat gave other bytes");
    assert_eq!(output.get_output().stderr, b"to errors\n");
}

#[test]
fn the_program_inherits_arguments_environment_and_directory() {
    let folder = folder();
    let script = "ls /proc/self/fd; pwd; echo \"$0 $*\"; umask; ulimit -n; echo $HOME; \
                  grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    let plain = Command::new("sh")
        .args(["-c", script, "zero", "a b", ""])
        .current_dir(folder.path(""))
        .stdin(std::process::Stdio::null())
        .output()
        .expect("sh runs");
    let ours = [&RUN, &["--", "sh", "-c", script, "zero", "a b", ""][..]].concat();
    let ours = belady(&folder, &ours).output().expect("the command runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&ours.stdout), text(&plain.stdout));
    assert_eq!(text(&ours.stderr), text(&plain.stderr));
}

/// Returns whether the test, and so its children, ignore a signal, which a shell then cannot trap.
fn is_ignored(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("our own status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    u64::from_str_radix(mask.trim(), 16).expect("hexadecimal digits") & (1 << (number - 1)) != 0
}

#[test]
fn signals_to_the_command_are_forwarded_to_the_program() {
    let folder = folder();
    for (name, number) in [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("USR1", 10),
        ("USR2", 12),
        ("ALRM", 14),
        ("TERM", 15),
    ] {
        if is_ignored(number) {
            continue;
        }
        let script = format!(
            "trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.02; done"
        );
        let mut running = Running::start(&mut belady(&folder, &sh(&[], &script)));
        assert_eq!(running.line(), "ready");
        running.signal(name);
        assert_eq!(running.end(), (format!("got {name}\n"), Some(5)));
    }
}

#[test]
fn a_forwarded_signal_that_ends_the_program_ends_the_command() {
    let folder = folder();
    let mut running = Running::start(&mut belady(&folder, &sh(&[], "echo ready; exec sleep 1000")));
    assert_eq!(running.line(), "ready");
    running.signal("TERM");
    // No exit status: the command was ended by a signal too.
    assert_eq!(running.end(), (String::new(), None));
}

#[test]
fn the_command_waits_for_a_program_that_survives_a_signal() {
    let folder = folder();
    let script =
        "trap 'echo not yet' TERM; echo ready; until [ -e end ]; do sleep 0.02; done; exit 6";
    let mut running = Running::start(&mut belady(&folder, &sh(&[], script)));
    assert_eq!(running.line(), "ready");
    running.signal("TERM");
    assert_eq!(running.line(), "not yet");
    let_end(&folder);
    assert_eq!(running.end(), (String::new(), Some(6)));
}

#[test]
fn a_signal_of_the_program_to_its_process_group_is_not_sent_back() {
    let folder = folder();
    // In a new session, so that the test is not in its process group.
    let script = "trap 'n=x$n' TERM; kill -TERM 0; sleep 0.1; sleep 0.1; echo $n";
    let mut command = Command::new("setsid");
    command.args(["--wait", env!("CARGO_BIN_EXE_belady")]).args(sh(&[], script));
    command.current_dir(folder.path(""));
    assert_eq!(Running::start(&mut command).end(), ("x\n".to_owned(), Some(0)));
}

#[test]
fn the_program_inherits_ignored_signals() {
    let folder = folder();
    let inner = "kill -HUP $$; kill -HUP $PPID; echo alive";
    let args = sh(&[], inner);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_belady")]);
    command.args(args).current_dir(folder.path(""));
    assert_eq!(Running::start(&mut command).end(), ("alive\n".to_owned(), Some(0)));
}

#[test]
fn files_that_the_program_writes_go_to_the_dataset() {
    let folder = folder();
    let script = format!(
        "{READ_AND_WAIT}; echo new > photos/cat/0000.bin; echo more >> photos/dog/0001.bin; \
         cat photos/cat/0000.bin; tail -n 1 photos/dog/0001.bin | tail -c 5"
    );
    let text = folder.text(&sh(&[], &script));
    assert_eq!(text, "new\nmore\n");
    assert_eq!(std::fs::read(folder.path("photos/cat/0000.bin")).expect("a file"), b"new\n");
    // The next run does not serve the old copy.
    assert_eq!(folder.text(&sh(&[], "cat photos/cat/0000.bin")), "new\n");
}

#[test]
fn a_file_that_a_process_without_the_library_changes_is_not_read_from_its_copy() {
    let folder = folder();
    let script = format!(
        "{READ_AND_WAIT}
         env -i sh -c 'echo new > photos/cat/0000.bin; rm photos/dog/0001.bin'
         for turn in $(seq 500); do
             grep -q new photos/cat/0000.bin && ! [ -e photos/dog/0001.bin ] && echo seen && break
             sleep 0.02
         done
         cat photos/cat/0000.bin; cat photos/dog/0001.bin 2> /dev/null; echo $?"
    );
    assert_eq!(folder.text(&sh(&[], &script)), "seen\nnew\n1\n");
}

#[test]
fn the_command_prints_nothing_without_a_report() {
    let folder = folder();
    for options in [&[][..], &["--learn"], &["--revalidate", "never"], &["--threads", "1"]] {
        let args = sh(options, "cat photos/*/* > read 2> errors");
        let output = folder.belady(&args).assert().success().get_output().clone();
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
        assert!(is_empty(&folder.path("errors")));
    }
}

#[test]
fn copies_in_ram_are_removed_after_the_run() {
    let folder = folder();
    // The descriptor's link shows the path of the copy.
    let script = "cat photos/*/* > /dev/null
        until readlink /proc/self/fd/3 3< photos/cat/0000.bin | grep /dev/shm; do sleep 0.02; done";
    let ram = ["run", "--data", "photos", "--cache", "ram:1MB", "--", "sh", "-c", script];
    let copy = std::path::PathBuf::from(folder.text(&ram).trim_end());
    let root = copy.ancestors().find(|path| path.parent().is_some_and(|up| up.ends_with("shm")));
    let root = root.expect("a folder in memory");
    assert!(copy.starts_with("/dev/shm") && !root.exists(), "{}", root.display());
}

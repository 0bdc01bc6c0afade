//! `belady run` at a terminal, which `script` (of util-linux) provides: Ctrl-C and Ctrl-Z.

use std::io::Write as _;
use std::process::{Command, Stdio};

use belady_testing::not_run;

use crate::common::Folder;
use crate::{Running, folder, let_end};

/// Runs a script by a shell at a terminal; `$BELADY` is the command and its options.
fn at_a_terminal(folder: &Folder, shell: &str, script: &str) -> Option<Running> {
    if Command::new("script").arg("--version").output().is_err() {
        not_run("no `script`, which gives a terminal");
        return None;
    }
    folder.write("script.sh", script.as_bytes());
    let belady = format!("{} run --data photos --cache cache:1MB --", env!("CARGO_BIN_EXE_belady"));
    let mut command = Command::new("script");
    command.args(["-qec", &format!("exec {shell} script.sh"), "/dev/null"]);
    command.env("BELADY", belady).env("SHELL", "/bin/sh").current_dir(folder.path(""));
    Some(Running::start(command.stdin(Stdio::piped())))
}

fn press(running: &mut Running, key: u8) {
    let keys = running.child.stdin.as_mut().expect("a pipe");
    keys.write_all(&[key]).expect("a key is pressed");
    keys.flush().expect("a key is pressed");
}

const CTRL_C: u8 = 3;
const CTRL_Z: u8 = 26;

#[test]
fn ctrl_c_reaches_the_program_once() {
    let folder = folder();
    folder.write(
        "program.sh",
        b"trap 'n=$((n + 1)); echo pressed $n' INT; echo ready
          until [ -e end ]; do sleep 0.02; done; echo $n times",
    );
    let script = "stty -echo; trap : INT; $BELADY sh program.sh; echo status $?";
    let Some(mut running) = at_a_terminal(&folder, "sh", script) else { return };
    running.wait_for("ready");
    press(&mut running, CTRL_C);
    running.wait_for("pressed 1");
    press(&mut running, CTRL_C);
    running.wait_for("pressed 2");
    let_end(&folder);
    running.wait_for("2 times");
    running.wait_for("status 0");
    running.end();
}

#[test]
fn ctrl_c_stops_a_shells_loop() {
    let folder = folder();
    folder.write("program.sh", b"echo ready; until [ -e end ]; do sleep 0.02; done");
    let script = "stty -echo; for turn in 1 2 3; do echo turn $turn; $BELADY sh program.sh; done";
    for shell in ["bash", "sh"] {
        let Some(mut running) = at_a_terminal(&folder, shell, script) else { return };
        running.wait_for("turn 1");
        running.wait_for("ready");
        press(&mut running, CTRL_C);
        let (rest, _) = running.end();
        assert!(!rest.contains("turn"), "{shell}: {rest}");
    }
}

#[test]
fn ctrl_z_stops_the_program_and_fg_continues_it() {
    let folder = folder();
    folder.write(
        "program.sh",
        b"echo ready; until [ -e end ]; do sleep 0.02; done; echo done; exit 7",
    );
    let script =
        "stty -echo; $BELADY sh program.sh; echo stopped $?; touch end; fg; echo status $?";
    let Some(mut running) = at_a_terminal(&folder, "sh -m", script) else { return };
    running.wait_for("ready");
    press(&mut running, CTRL_Z);
    running.wait_for("stopped 148");
    running.wait_for("done");
    running.wait_for("status 7");
    running.end();
}

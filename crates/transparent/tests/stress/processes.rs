//! The processes that a test starts, with their descendants: their output and their end.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::roles::{Role, Settings};

/// The prefix of our lines; libtest prints too, and not always whole lines.
pub const MARK: &str = "stress: ";

/// Returns when a run counts as hung. It takes seconds on an idle machine.
fn patience() -> Duration {
    Duration::from_mins(5) * crate::scale()
}

/// Returns the command of this binary in a role.
pub fn command(role: Role, settings: &Settings) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["in_a_role", "--exact", "--nocapture"]).stdin(Stdio::null());
    command.envs(settings.to_environment(role));
    command
}

/// Receives our lines; disconnected when all writers have ended.
pub fn lines(child: &mut Child) -> Receiver<String> {
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if let Some((_, said)) = line.split_once(MARK)
                && sender.send(said.to_owned()).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// A launcher and its descendants, which are a process group. Dropping this kills them.
pub struct Running {
    child: Child,
    lines: Receiver<String>,
}

impl Running {
    pub fn launcher(settings: &Settings) -> Self {
        let mut child = command(Role::Launcher, settings)
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = lines(&mut child);
        Self { child, lines }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Kills the launcher but not its descendants.
    pub fn kill_the_launcher(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for all processes and returns their lines.
    pub fn finish(mut self) -> Vec<String> {
        let lines = self.receive();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the launcher failed, {status}: {lines:?}");
        lines
    }

    /// Waits for the descendants of a killed launcher.
    pub fn finish_alone(self) {
        let lines = self.receive();
        assert!(
            lines.iter().any(|line| line == "all readers are done"),
            "the program failed after its launcher was killed: {lines:?}"
        );
    }

    /// Receives lines until all processes have ended.
    fn receive(&self) -> Vec<String> {
        let end = Instant::now() + patience();
        let mut said = vec![];
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => said.push(line),
                Err(RecvTimeoutError::Disconnected) => return said,
                Err(RecvTimeoutError::Timeout) => {
                    let recent = said.split_off(said.len().saturating_sub(50));
                    panic!("the processes hang; last lines: {recent:#?}\n{}", dump(self.group()));
                }
            }
        }
    }

    fn group(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Usually all of them have ended.
        let _ = rustix::process::kill_process_group(self.group(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Returns what each thread of a process group waits for.
fn dump(group: Pid) -> String {
    let mut text = String::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = process.path();
        let Ok(stat) = fs::read_to_string(path.join("stat")) else { continue };
        // After the name, which may contain anything: state, parent, group.
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        if fields.nth(2) != Some(&group.as_raw_nonzero().to_string()) {
            continue;
        }
        for task in fs::read_dir(path.join("task")).into_iter().flatten().flatten() {
            let of = |name: &str| {
                fs::read_to_string(task.path().join(name)).unwrap_or_default().trim().to_owned()
            };
            let _ = writeln!(
                text,
                "{} {}: waits in {}, call {}, stack {}",
                task.path().display(),
                of("comm"),
                of("wchan"),
                of("syscall"),
                of("stack").replace('\n', " < ")
            );
        }
    }
    text
}

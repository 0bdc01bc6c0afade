//! Processes that a test has started, with all that they start: what they say, and their end.

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

/// Before each line that is ours; libtest prints too, and not always whole lines.
pub const MARK: &str = "stress: ";

/// A run takes seconds. What takes that long on the busiest machine hangs.
fn patience() -> Duration {
    Duration::from_mins(5) * crate::scale()
}

/// This binary, in a role.
pub fn command(role: Role, settings: &Settings) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["in_a_role", "--exact", "--nocapture"]).stdin(Stdio::null());
    command.envs(settings.to_environment(role));
    command
}

/// What our lines say, as they come; closed when all who could write one have gone.
pub fn lines(child: &mut Child) -> Receiver<String> {
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if let Some((_, told)) = line.split_once(MARK)
                && sender.send(told.to_owned()).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// A launcher and all below it, which are a group of processes. They do not outlive this.
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

    /// It alone, at once.
    pub fn kill_the_launcher(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for all; what they said.
    pub fn finish(mut self) -> Vec<String> {
        let lines = self.listen();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "the launcher failed, {status}: {lines:?}");
        lines
    }

    /// The same for those whose launcher was killed.
    pub fn finish_alone(self) {
        let lines = self.listen();
        assert!(
            lines.iter().any(|line| line == "all readers are done"),
            "the program went wrong when its launcher had gone: {lines:?}"
        );
    }

    /// Until nobody is left.
    fn listen(&self) -> Vec<String> {
        let end = Instant::now() + patience();
        let mut told = vec![];
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => told.push(line),
                Err(RecvTimeoutError::Disconnected) => return told,
                Err(RecvTimeoutError::Timeout) => {
                    let recent = told.split_off(told.len().saturating_sub(50));
                    panic!("they hang; last said: {recent:#?}\n{}", dump(self.group()));
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
        // Nobody is there any more, usually.
        let _ = rustix::process::kill_process_group(self.group(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// What each thread of a group of processes waits for.
fn dump(group: Pid) -> String {
    let mut text = String::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let path = process.path();
        let Ok(stat) = fs::read_to_string(path.join("stat")) else { continue };
        // After the name, which may hold anything: state, parent, group.
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

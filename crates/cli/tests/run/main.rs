//! `belady run` end to end: usage errors, the program's environment, reports, and the copies that
//! `belady cache` finds.

mod cache;
#[path = "../common/mod.rs"]
mod common;
mod program;
mod refused;
mod report;
mod terminal;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use common::Folder;

/// Makes a folder with the dataset `photos` of three files.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.class_folders(3);
    folder
}

/// Reads all files, and waits until each is opened in the cache, so that its copy is counted.
const READ_AND_WAIT: &str = "\
    cat photos/*/* > read
    for file in photos/*/*; do
        until readlink /proc/self/fd/9 9< $file | grep -q /cache/; do sleep 0.02; done
    done";

/// `belady run` on the dataset with one cache, before the program.
const RUN: [&str; 5] = ["run", "--data", "photos", "--cache", "cache:1MB"];

/// Returns the arguments of a run of a shell script.
fn sh<'a>(options: &[&'a str], script: &'a str) -> Vec<&'a str> {
    [&RUN, options, &["--", "sh", "-c", script]].concat()
}

/// A running command.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
        let out = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, out }
    }

    /// Waits for the next line of its output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("UTF-8");
        line.trim_end().to_owned()
    }

    /// Reads lines up to this one.
    #[track_caller]
    fn wait_for(&mut self, wanted: &str) {
        let mut seen = vec![];
        while seen.last().is_none_or(|line| line != wanted) {
            let mut line = String::new();
            let length = self.out.read_line(&mut line).expect("UTF-8");
            assert!(length > 0, "`{wanted}` is not in the output: {seen:?}");
            seen.push(line.trim_end().to_owned());
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), pid.as_str()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Waits for its end, and returns the rest of its output and its exit status.
    fn end(mut self) -> (String, Option<i32>) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("UTF-8");
        (rest, self.child.wait().expect("a status").code())
    }
}

/// Returns the command as a plain `Command`, which can run in the background.
fn belady(folder: &Folder, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belady"));
    command.args(args).current_dir(folder.path("")).stdin(Stdio::null());
    command.env_remove("BELADY_LOG").env_remove("LD_PRELOAD");
    command
}

/// Makes the file `end`, which a program waits for.
fn let_end(folder: &Folder) {
    folder.write("end", b"");
}

fn is_empty(path: &Path) -> bool {
    std::fs::read(path).is_ok_and(|bytes| bytes.is_empty())
}

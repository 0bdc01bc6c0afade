//! Starts the process of a node engine.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::directory;
use crate::error::NodeError;

/// A node engine that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its socket.
    pub socket: PathBuf,
    /// Its process.
    pub pid: u32,
}

/// Starts a program that [serves](crate::serve) on its standard input, which is a socket with this
/// name. The socket exists before the program runs, so ranks can connect at once.
///
/// The process is in a group of its own: Ctrl-C reaches the ranks, and the engine ends with them. Its
/// messages go to `messages`.
///
/// # Errors
/// If there is no place for the socket, or the program cannot be started.
pub fn launch(
    name: &str,
    program: &Path,
    arguments: &[&str],
    messages: Stdio,
) -> Result<Launched, NodeError> {
    let socket = directory::socket(name)?;
    let listener = directory::listen(&socket)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .arg(&socket)
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(Stdio::null())
        .stderr(messages)
        .process_group(0);
    let failed = |error| {
        // No process listens there.
        let _ = std::fs::remove_file(&socket);
        NodeError::Process { program: program.display().to_string(), error }
    };
    let mut child = command.spawn().map_err(failed)?;
    let pid = child.id();
    // The process outlives no rank, but this one may outlive it, and then cleans up if it was
    // killed.
    let reaper = std::thread::Builder::new().name("belady-reap".into());
    let left = socket.clone();
    let _ = reaper.spawn(move || {
        let _ = child.wait();
        directory::remove(&left);
    });
    Ok(Launched { socket, pid })
}

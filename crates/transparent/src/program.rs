//! The program itself: started as a child, watched until it ends.
//!
//! To whoever started the launcher, the two look like one process. Signals that reach the launcher
//! alone are passed on. The terminal sends its own (Ctrl-C, a hangup) to both, so those are only
//! survived. Stop signals have their usual effect on both: Ctrl-Z stops, `fg` goes on. What was
//! ignored before, as under nohup, stays ignored.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::backend::Handle;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

/// What people and batch systems send to a job.
const PASSED_ON: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT];
/// Those of them that are for whoever runs when the program has ended.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error(
        "there is no program `{}`: check its name, and the interpreter in its first line if it is a \
         script",
        .0.display()
    )]
    NotFound(OsString),
    #[error("`{}` cannot be run: {error}", program.display())]
    NotExecutable { program: OsString, error: io::Error },
    #[error("the program was not started, since its signals cannot be passed on: {0}")]
    Signals(io::Error),
    #[error("nobody knows how the program ended: {0}")]
    Lost(io::Error),
}

impl ProgramError {
    /// The status that shells give.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } => 126,
            Self::Signals(_) | Self::Lost(_) => 1,
        }
    }
}

/// Runs a program and its arguments with more in its environment; its exit status, which is 128 + n
/// if signal n ended it. Once in a process: signals that come afterwards end the caller.
pub fn run(
    program: &[OsString],
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<u8, ProgramError> {
    let (name, arguments) =
        program.split_first().ok_or_else(|| ProgramError::NotFound(OsString::new()))?;
    let mut command = Command::new(name);
    command.args(arguments).envs(environment);
    // Before the program starts: a signal that comes in between is kept for it.
    let relay = Relay::start().map_err(ProgramError::Signals)?;
    let started = command.spawn().map_err(|error| not_started(name, error));
    let ended = started.and_then(|child| {
        relay.begin(Pid::from_child(&child));
        wait_for_end(&child).map(|()| child).map_err(ProgramError::Lost)
    });
    // First no more signals, then the child is let go: its number may become another process's.
    relay.stop();
    ended?.wait().map(exit_code).map_err(ProgramError::Lost)
}

fn not_started(program: &OsString, error: io::Error) -> ProgramError {
    let program = program.clone();
    match error.kind() {
        io::ErrorKind::NotFound => ProgramError::NotFound(program),
        _ => ProgramError::NotExecutable { program, error },
    }
}

fn wait_for_end(child: &Child) -> io::Result<()> {
    let ended_but_there = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), ended_but_there) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(|_| ()).map_err(io::Error::from),
        }
    }
}

/// As a shell tells it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// A thread that passes signals on.
struct Relay {
    program: Sender<Pid>,
    close: Handle,
    /// From here on signals are for the launcher.
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Relay {
    fn start() -> io::Result<Self> {
        let ignored = ignored_signals();
        let ours = |list: &[i32]| -> Vec<i32> {
            list.iter().copied().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect()
        };
        let ended = Arc::new(AtomicBool::new(false));
        for signal in ours(&ENDING) {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&ended))?;
        }
        let mut signals = SignalsInfo::<WithOrigin>::new(ours(&PASSED_ON))?;
        let close = signals.handle();
        let (program, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("belady-signals".to_owned())
            .spawn(move || pass_on(&mut signals, &started))?;
        Ok(Self { program, close, ended, thread })
    }

    fn begin(&self, program: Pid) {
        // The thread waits for it.
        let _ = self.program.send(program);
    }

    fn stop(self) {
        self.ended.store(true, Ordering::SeqCst);
        self.close.close();
        drop(self.program);
        let _ = self.thread.join();
    }
}

fn pass_on(signals: &mut SignalsInfo<WithOrigin>, started: &Receiver<Pid>) {
    let Ok(program) = started.recv() else { return };
    for origin in signals.forever() {
        if is_for_the_program(&origin, program)
            && let Some(signal) = Signal::from_named_raw(origin.signal)
        {
            // It may have ended just now.
            let _ = kill_process(program, signal);
        }
    }
}

/// What the kernel sends, it sends to all who share the terminal. What the program sends to all
/// around it is not for itself again.
fn is_for_the_program(origin: &Origin, program: Pid) -> bool {
    let sender = origin.process.map(|process| process.pid);
    origin.cause != Cause::Kernel && sender != Some(program.as_raw_nonzero().get())
}

/// Bit n - 1 is for signal n. Where it cannot be known, none is.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Result<u8, ProgramError> {
        let more = [("GIVEN".into(), "yes".into())];
        run(&["sh", "-c", script].map(OsString::from), more)
    }

    #[test]
    fn the_status_is_the_programs() {
        assert_eq!(sh("exit 0").unwrap(), 0);
        assert_eq!(sh("exit 37").unwrap(), 37);
        assert_eq!(sh("test \"$GIVEN\" = yes").unwrap(), 0);
        assert_eq!(sh("kill -TERM $$").unwrap(), 128 + 15);
        assert_eq!(sh("kill -KILL $$").unwrap(), 128 + 9);
    }

    #[test]
    fn what_cannot_be_run_is_told_as_shells_do() {
        let refused = |program: &str| run(&[OsString::from(program)], []).unwrap_err();
        let missing = refused("no-such-program-here");
        assert_eq!(missing.exit_code(), 127);
        assert!(missing.to_string().contains("`no-such-program-here`"), "{missing}");
        let not_one = refused("/etc/passwd");
        assert_eq!(not_one.exit_code(), 126);
        assert!(not_one.to_string().contains("`/etc/passwd` cannot be run"), "{not_one}");
        assert_eq!(run(&[], []).unwrap_err().exit_code(), 127);
    }

    #[test]
    fn ignored_signals_are_known() {
        // Rust itself ignores this one.
        assert_ne!(ignored_signals() & (1 << (signal_hook::consts::SIGPIPE - 1)), 0);
        assert_eq!(ignored_signals() & (1 << (SIGTERM - 1)), 0);
    }
}

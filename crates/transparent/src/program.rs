//! Runs the program as a child process.
//!
//! To the launcher's parent, launcher and program look like one process. The launcher forwards
//! signals that only it receives. The terminal sends its signals (Ctrl-C, a hangup) to both, so the
//! launcher only survives those. Stop signals have their usual effect on both: Ctrl-Z stops, `fg`
//! continues. Signals that were ignored before, as under nohup, stay ignored. After a program that a
//! signal ended, the launcher ends by the same signal: a shell's loop stops at Ctrl-C.
//!
//! A limit of file sizes (`ulimit -f`) is the program's: it stops neither the launcher nor copies.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, kill_process, setrlimit,
    waitid,
};
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ,
};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::backend::Handle;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

/// The signals that users and batch systems send to a job.
const FORWARDED: [i32; 8] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT];
/// The signals that end the launcher after the program has ended.
const ENDING: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program or its interpreter does not exist.
    #[error(
        "there is no program `{}`; check its name, and the interpreter in its first line if it is a \
         script",
        .0.display()
    )]
    NotFound(OsString),
    /// The program cannot be executed.
    #[error("`{}` cannot be run: {error}", program.display())]
    NotExecutable {
        /// As the user gave it.
        program: OsString,
        /// The error of `exec`.
        error: io::Error,
    },
    /// The signal handlers cannot be installed.
    #[error("the program was not started, because its signals cannot be forwarded: {0}")]
    Signals(io::Error),
    /// Waiting for the program failed.
    #[error("the program's exit status is unknown: {0}")]
    Lost(io::Error),
}

impl ProgramError {
    /// Returns the exit status that shells use.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable { .. } => 126,
            Self::Signals(_) | Self::Lost(_) => 1,
        }
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramEnd {
    /// Its exit status, or 128 + n if signal n ended it.
    pub status: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl ProgramEnd {
    /// Ends this process by the signal that ended the program, without a core dump of its own.
    /// Returns if no signal did, or if it cannot be raised.
    pub fn imitate(self) {
        let Some(signal) = self.signal else { return };
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
}

/// A limit of file sizes that this process had when it started, and has no more.
#[derive(Debug)]
pub struct LiftedFileLimit(Rlimit);

impl LiftedFileLimit {
    /// Raises the soft limit to the hard one. Beyond that one, a write fails and does not end the
    /// process.
    ///
    /// # Errors
    /// If the signal handler cannot be installed.
    pub fn lift() -> io::Result<Self> {
        let limit = getrlimit(Resource::Fsize);
        // The program gets the default action again: `exec` resets handlers. What was ignored has to
        // stay ignored for it.
        if ignored_signals() & (1 << (SIGXFSZ - 1)) == 0 {
            signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        }
        let _ = setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, ..limit });
        Ok(Self(limit))
    }
}

/// Runs a program and its arguments with additional environment variables, without some, and with
/// its own limit of file sizes.
///
/// Call this once in a process: afterwards signals end the caller.
///
/// # Errors
/// If the program cannot be started or waited for.
pub fn run(
    program: &[OsString],
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    removed: &[&str],
    limit: &LiftedFileLimit,
) -> Result<ProgramEnd, ProgramError> {
    let (name, arguments) =
        program.split_first().ok_or_else(|| ProgramError::NotFound(OsString::new()))?;
    let mut command = Command::new(name);
    command.args(arguments).envs(environment);
    for variable in removed {
        command.env_remove(variable);
    }
    if limit.0.current != limit.0.maximum {
        let limit = limit.0;
        // SAFETY: a system call alone, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(move || Ok(setrlimit(Resource::Fsize, limit)?));
        }
    }
    // Before the program starts, so that an early signal is forwarded too.
    let relay = Relay::start().map_err(ProgramError::Signals)?;
    let started = command.spawn().map_err(|error| not_started(name, error));
    let ended = started.and_then(|child| {
        relay.begin(Pid::from_child(&child));
        wait_for_end(&child).map(|()| child).map_err(ProgramError::Lost)
    });
    // Stop forwarding before the child is reaped: its process id may be reused.
    relay.stop();
    ended?.wait().map(end_of).map_err(ProgramError::Lost)
}

fn not_started(program: &OsString, error: io::Error) -> ProgramError {
    let program = program.clone();
    match error.kind() {
        io::ErrorKind::NotFound => ProgramError::NotFound(program),
        _ => ProgramError::NotExecutable { program, error },
    }
}

fn wait_for_end(child: &Child) -> io::Result<()> {
    let without_reaping = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), without_reaping) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(|_| ()).map_err(io::Error::from),
        }
    }
}

fn end_of(status: ExitStatus) -> ProgramEnd {
    let signal = status.signal();
    let code = status.code().or_else(|| signal.map(|signal| 128 + signal));
    ProgramEnd { status: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1), signal }
}

/// A thread that forwards signals.
struct Relay {
    program: Sender<Pid>,
    close: Handle,
    /// Set when signals are for the launcher again.
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
        let mut signals = SignalsInfo::<WithOrigin>::new(ours(&FORWARDED))?;
        let close = signals.handle();
        let (program, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("belady-signals".to_owned())
            .spawn(move || forward(&mut signals, &started))?;
        Ok(Self { program, close, ended, thread })
    }

    fn begin(&self, program: Pid) {
        // The thread waits for this.
        let _ = self.program.send(program);
    }

    fn stop(self) {
        self.ended.store(true, Ordering::SeqCst);
        self.close.close();
        drop(self.program);
        let _ = self.thread.join();
    }
}

fn forward(signals: &mut SignalsInfo<WithOrigin>, started: &Receiver<Pid>) {
    let Ok(program) = started.recv() else { return };
    for origin in signals.forever() {
        if should_forward(&origin, program)
            && let Some(signal) = Signal::from_named_raw(origin.signal)
        {
            // The program may just have ended.
            let _ = kill_process(program, signal);
        }
    }
}

/// Returns whether to forward a signal. The kernel sends a signal to all processes of the terminal,
/// and a signal that the program itself sent to its group must not reach it twice.
fn should_forward(origin: &Origin, program: Pid) -> bool {
    let sender = origin.process.map(|process| process.pid);
    origin.cause != Cause::Kernel && sender != Some(program.as_raw_nonzero().get())
}

/// Returns the ignored signals: bit n - 1 is for signal n. None if /proc is unavailable.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Result<ProgramEnd, ProgramError> {
        let more = [("GIVEN".into(), "yes".into())];
        let limit = LiftedFileLimit::lift().unwrap();
        run(&["sh", "-c", script].map(OsString::from), more, &["HOME"], &limit)
    }

    #[test]
    fn the_exit_status_is_the_programs() {
        let end = |status, signal| ProgramEnd { status, signal };
        assert_eq!(sh("exit 0").unwrap(), end(0, None));
        assert_eq!(sh("exit 37").unwrap(), end(37, None));
        assert_eq!(sh("test \"$GIVEN$HOME\" = yes").unwrap(), end(0, None));
        assert_eq!(sh("kill -TERM $$").unwrap(), end(128 + 15, Some(15)));
        assert_eq!(sh("kill -KILL $$").unwrap(), end(128 + 9, Some(9)));
    }

    #[test]
    fn a_program_that_cannot_run_has_the_exit_status_of_a_shell() {
        let limit = LiftedFileLimit::lift().unwrap();
        let refused = |program: &str| run(&[OsString::from(program)], [], &[], &limit).unwrap_err();
        let missing = refused("no-such-program-here");
        assert_eq!(missing.exit_code(), 127);
        assert!(missing.to_string().contains("`no-such-program-here`"), "{missing}");
        let not_one = refused("/etc/passwd");
        assert_eq!(not_one.exit_code(), 126);
        assert!(not_one.to_string().contains("`/etc/passwd` cannot be run"), "{not_one}");
        assert_eq!(run(&[], [], &[], &limit).unwrap_err().exit_code(), 127);
    }

    #[test]
    fn ignored_signals_are_read_from_proc() {
        // Rust ignores SIGPIPE.
        assert_ne!(ignored_signals() & (1 << (signal_hook::consts::SIGPIPE - 1)), 0);
        assert_eq!(ignored_signals() & (1 << (SIGTERM - 1)), 0);
    }
}

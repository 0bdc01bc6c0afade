//! The job that this process belongs to.

use std::ffi::CStr;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use belady_board::message::Message;
use belady_board::{Attach, Board};

#[derive(Debug)]
pub struct Job {
    pub board: Board,
    attach: Attach,
}

/// Set before `main`, or never. Reading it takes no lock.
static JOB: OnceLock<Job> = OnceLock::new();

/// None if the library is to do nothing.
#[inline]
pub fn job() -> Option<&'static Job> {
    JOB.get()
}

/// Looks for the launcher that the environment speaks of.
pub fn join() {
    let Some(attach) = variable().and_then(Attach::parse) else { return };
    if !sees_the_same_files(attach.launcher) {
        return;
    }
    if let Some(board) = attach.board() {
        let _ = JOB.set(Job { board, attach });
    }
}

fn variable() -> Option<&'static [u8]> {
    let name = const { c"BELADY_RUN" };
    // SAFETY: before main there is one thread, and nobody changes the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: what getenv finds ends with a 0.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// In a container the same name may be another file: with another root, or with other file systems
/// mounted below it.
fn sees_the_same_files(launcher: u32) -> bool {
    let same = |what: &str| {
        let (mut ours, mut theirs) = ([0u8; 32], [0u8; 32]);
        let ours = file(&mut ours, format_args!("/proc/self/{what}"))?;
        let theirs = file(&mut theirs, format_args!("/proc/{launcher}/{what}"))?;
        Some(ours == theirs)
    };
    // There may be no such thing as namespaces.
    same("root") == Some(true) && same("ns/mnt") != Some(false)
}

fn file(room: &mut [u8; 32], name: std::fmt::Arguments<'_>) -> Option<(u64, u64)> {
    (&mut room[..31]).write_fmt(name).ok()?;
    let stat = rustix::fs::stat(CStr::from_bytes_until_nul(room).ok()?).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

impl Job {
    // Not inlined: it needs room for a message on the stack, and most calls send none.
    #[inline(never)]
    pub fn post(&self, message: Message<'_>) {
        if !self.attach.post(message) {
            self.board.head().lost.fetch_add(1, Relaxed);
        }
    }
}

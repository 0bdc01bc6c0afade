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
    if !has_same_root(attach.launcher) {
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

/// In a container with another root the same name may be another file.
fn has_same_root(launcher: u32) -> bool {
    let mut room = [0u8; 32];
    if write!(&mut room[..31], "/proc/{launcher}/root").is_err() {
        return false;
    }
    let Ok(theirs) = CStr::from_bytes_until_nul(&room) else { return false };
    match (rustix::fs::stat(c"/"), rustix::fs::stat(theirs)) {
        (Ok(ours), Ok(theirs)) => (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino),
        _ => false,
    }
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

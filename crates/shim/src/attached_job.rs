//! The job that this process belongs to.

use std::ffi::CStr;
use std::io::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use belady_board::message::ShimMessage;
use belady_board::{Attach, Board};

/// The job of the launcher that started this process.
#[derive(Debug)]
pub struct AttachedJob {
    pub board: Board,
    attach: Attach,
}

/// Set before `main` or never. Reading it takes no lock.
static JOB: OnceLock<AttachedJob> = OnceLock::new();

/// Returns the job; None if the shim is inactive.
#[inline]
pub fn job() -> Option<&'static AttachedJob> {
    JOB.get()
}

/// Attaches to the launcher that the environment names.
pub fn join() {
    let Some(attach) = variable().and_then(Attach::parse) else { return };
    if !sees_the_same_files(attach.launcher) {
        return;
    }
    if let Some(board) = attach.board() {
        let _ = JOB.set(AttachedJob { board, attach });
    }
}

fn variable() -> Option<&'static [u8]> {
    let name = const { c"BELADY_RUN" };
    // SAFETY: before main there is one thread, so the environment does not change.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: getenv returns a NUL-terminated string.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes())
}

/// Returns whether this process and the launcher have the same root and mounts. In a container the
/// same path may be another file.
fn sees_the_same_files(launcher: u32) -> bool {
    let same = |what: &str| {
        let (mut ours, mut theirs) = ([0u8; 32], [0u8; 32]);
        let ours = file(&mut ours, format_args!("/proc/self/{what}"))?;
        let theirs = file(&mut theirs, format_args!("/proc/{launcher}/{what}"))?;
        Some(ours == theirs)
    };
    // A kernel without namespaces has no `ns/mnt`.
    same("root") == Some(true) && same("ns/mnt") != Some(false)
}

fn file(buffer: &mut [u8; 32], name: std::fmt::Arguments<'_>) -> Option<(u64, u64)> {
    (&mut buffer[..31]).write_fmt(name).ok()?;
    let stat = rustix::fs::stat(CStr::from_bytes_until_nul(buffer).ok()?).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

impl AttachedJob {
    // Not inlined: it needs a message buffer on the stack, and most calls send none.
    #[inline(never)]
    pub fn send(&self, message: ShimMessage<'_>) {
        if !self.attach.send(message) {
            self.board.header().lost.fetch_add(1, Relaxed);
        }
    }
}

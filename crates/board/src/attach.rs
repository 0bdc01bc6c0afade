//! How a process of the program finds the board and the launcher's pipe.

use std::ffi::CStr;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags};

use crate::board::Board;
use crate::message::ShimMessage;
use crate::path::LONGEST;

/// The launcher's process id and its descriptors of the board and of the pipe.
///
/// A process opens both through `/proc/PID/fd/N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach {
    /// The launcher's process id.
    pub launcher: u32,
    /// The launcher's descriptor of the board.
    pub board: u32,
    /// The launcher's descriptor of the pipe's write end.
    pub pipe: u32,
    /// Identifies the board, see [`Board`].
    pub token: u64,
    /// The pipe's inode. After the launcher has exited, its process id may belong to another
    /// process.
    pub pipe_ino: u64,
}

impl Attach {
    /// Describes a board of this process.
    pub fn new(board: &Board, file: &OwnedFd, pipe: &OwnedFd) -> Self {
        Self {
            launcher: std::process::id(),
            board: file.as_raw_fd() as u32,
            pipe: pipe.as_raw_fd() as u32,
            token: board.header().token,
            pipe_ino: rustix::fs::fstat(pipe).map_or(0, |stat| stat.st_ino),
        }
    }

    /// Returns the value of [`crate::VARIABLE`].
    pub fn to_text(&self) -> String {
        let Self { launcher, board, pipe, token, pipe_ino } = self;
        format!("{launcher}:{board}:{pipe}:{token}:{pipe_ino}")
    }

    /// Parses what [`Attach::to_text`] returned.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut numbers = text.split(|&byte| byte == b':').map(number);
        let mut small = || u32::try_from(numbers.next()??).ok();
        let (launcher, board, pipe) = (small()?, small()?, small()?);
        let (token, pipe_ino) = (numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(Self { launcher, board, pipe, token, pipe_ino })
    }

    /// Maps the board; None if the launcher has exited.
    pub fn board(&self) -> Option<Board> {
        Board::map(&self.open(self.board, OFlags::RDWR)?, self.token)
    }

    /// Sends a message without blocking. Returns false if it was not sent.
    pub fn send(&self, message: ShimMessage<'_>) -> bool {
        let mut buffer = [0; LONGEST];
        let Some(bytes) = message.encode(&mut buffer) else { return false };
        let Some(pipe) = self.open(self.pipe, OFlags::WRONLY | OFlags::NONBLOCK) else {
            return false;
        };
        if !self.is_pipe(&pipe) {
            return false;
        }
        rustix::io::write(&pipe, bytes).is_ok_and(|written| written == bytes.len())
    }

    fn is_pipe(&self, file: &OwnedFd) -> bool {
        rustix::fs::fstat(file).is_ok_and(|stat| {
            let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            kind == rustix::fs::FileType::Fifo && stat.st_ino == self.pipe_ino
        })
    }

    fn open(&self, number: u32, flags: OFlags) -> Option<OwnedFd> {
        let mut buffer = [0u8; 64];
        let mut rest = &mut buffer[..];
        write!(rest, "/proc/{}/fd/{number}\0", self.launcher).ok()?;
        let path = CStr::from_bytes_until_nul(&buffer).ok()?;
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
    }
}

fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &digit| {
        let digit = digit.checked_sub(b'0').filter(|&digit| digit < 10)?;
        sum.checked_mul(10)?.checked_add(digit.into())
    })
}
